"""Progress over a grid: finished cells, running cells, and the time left; plain lines if there is no terminal."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from forkleft.progress import Meter, clock_time
from forkleft.study.cells import CellFolder, Failure, Task
from forkleft.study.timing import Rates


class GridProgress:
    """Prints what happens to the cells of a grid. Within its context the last line of a terminal shows the progress."""

    def __init__(self, console: Console, total: int, rates: Rates, jobs: int) -> None:
        self.console, self.total, self.rates, self.jobs = console, total, rates, jobs
        self.done = 0
        self._elsewhere: set[str] = set()
        self._left = 0.0
        # Without a terminal the lines that `_line` prints are enough.
        self._meter = Meter(console, "cells", total, shown=console.is_terminal)

    def __enter__(self) -> "GridProgress":
        self._meter.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._meter.stop()

    def was_there(self) -> None:
        """Count a cell that was finished before."""
        self.done += 1

    def finished(self, folder: CellFolder) -> None:
        """Count a cell that has just been finished."""
        self.done += 1
        self._line(f"{folder.cell.label}: done")

    def failed(self, folder: CellFolder, failure: Failure) -> None:
        """Count a cell that failed."""
        self.done += 1
        self._line(f"{folder.cell.label}: FAILED, {failure.error}", style="bold red")

    def elsewhere(self, folder: CellFolder) -> None:
        """Say, once, that another run works on a cell."""
        if folder.cell.digest not in self._elsewhere:
            self._elsewhere.add(folder.cell.digest)
            self._line(f"{folder.cell.label}: another run works on it; waiting")

    def ended(self, task: Task, seconds: float) -> None:
        """Learn from a finished task how long others will take."""
        if not task.resumed:
            self.rates.add(task.name, seconds, task.units)

    def update(self, working: Mapping[str, tuple[Sequence[Task], float]], waiting: Iterable[Sequence[Task]]) -> None:
        """Update the last line.

        working: by the cell's label, the tasks that are left and the seconds that the first of them has taken; waiting:
        the tasks of the other cells.
        """
        left = sum(max(0.0, self._seconds(tasks) - elapsed) for tasks, elapsed in working.values())
        self._left = (left + sum(map(self._seconds, waiting))) / self.jobs
        self._meter.move(self.done)
        self._meter.expect(self._left)
        self._meter.tell(", ".join(working))

    def _seconds(self, tasks: Iterable[Task]) -> float:
        return sum(self.rates.seconds(task.name, task.units) for task in tasks)

    def _line(self, text: str, style: str | None = None) -> None:
        text = f"[{self.done}/{self.total}] {text}"
        if self.done < self.total and self._left:
            text += f"; about {clock_time(self._left)} left"
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
