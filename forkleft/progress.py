"""Progress that people can read: a bar that moves in a terminal, a plain line now and then anywhere else."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

# Without a terminal, a plain line after so many seconds.
_PLAIN_SECONDS = 20.0
# A phase is named if a step takes longer than this.
_LONG_SECONDS = 3.0
# How often it is checked whether a phase takes long.
_PULSE_SECONDS = 1.0
_WIDEST_BAR, _NARROWEST_BAR = 20, 4
# With only 16 colours, Rich's own colours of "done" and "not done" look the same.
_BAR: dict[str, Any] = {"style": "bright_black", "complete_style": "cyan", "finished_style": "green"}


class Meter:
    """Shows how many steps are done, the time left and gone, the phase of a long step, and some figures.

    name: what a step is. total: how many there are. done: steps that were done before. shown: False for a process that
    shows nothing, because another does. bar: False for plain lines in a terminal, too. at_ends: always print a plain
    line after the first and the last step. clock: gives seconds.

    with Meter(console, "question", 960) as meter:
        meter.move(1)
        meter.tell("right 48%")
    """

    def __init__(
        self,
        console: Console,
        name: str,
        total: int,
        *,
        done: int = 0,
        shown: bool = True,
        bar: bool = True,
        at_ends: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.name, self.total, self.done = console, name, total, done
        self._shown, self._draw, self._clock = shown, bar and console.is_terminal, clock
        self._figures, self._phase, self._slow = "", "", False
        self._panel: RenderableType | None = None
        self._before, self._at_ends = done, at_ends
        # The start; the time span that the estimate uses; when the step and its phase began.
        self._begun = self._counted_from = self._counted_to = self._step_at = self._phase_at = clock()
        self._said_at = float("-inf") if at_ends else self._begun
        self._phase_said = False
        # What the caller expects: when the last step will be done.
        self._end_at: float | None = None
        self._live: Live | None = None
        self._over = threading.Event()

    def __enter__(self) -> "Meter":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Draw the bar, or start to watch for long phases."""
        if self._shown and self._draw:
            self._live = Live(console=self.console, get_renderable=self.picture)
            self._live.start()
        elif self._shown:
            threading.Thread(target=self._watch, daemon=True).start()

    def stop(self) -> None:
        """Stop drawing, and leave the bar as it is."""
        self._over.set()
        if self._live is not None:
            self._live.stop()

    def move(self, done: int) -> None:
        """Say how many steps are done by now."""
        now = self._clock()
        self._slow = now - self._step_at > _LONG_SECONDS
        self.done, self._counted_to, self._step_at = done, now, now

    def interrupt(self) -> None:
        """Say that something that is not a step has just ended.

        Before the first step, its time does not count in the estimate. Between steps it does: it will come again.
        """
        self._step_at = self._counted_to = self._clock()
        if self.done == self._before:
            self._counted_from = self._counted_to

    def expect(self, left: float) -> None:
        """Set the seconds left, if the caller knows better than the mean of the steps so far."""
        self._end_at = self._clock() + left

    @property
    def drawn(self) -> bool:
        """Whether somebody sees a bar that moves."""
        return self._shown and self._draw

    def tell(self, figures: str, panel: RenderableType | None = None) -> None:
        """Show figures; without a terminal, only if some time has passed since the last line.

        panel: in a terminal, what to draw in place of the figures.
        """
        self._figures, self._panel = figures, panel
        if (self._at_ends and self.done == self.total) or self._clock() - self._said_at > _PLAIN_SECONDS:
            self._say(f"{self.name} {self.done} of {self.total}", figures)

    def phase(self, name: str) -> None:
        """Name what is being done now; empty for nothing."""
        self._phase, self._phase_at, self._phase_said = name, self._clock(), False

    @property
    def gone(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._begun

    def left(self) -> float | None:
        """Seconds left: as the caller expects, else from the mean of all steps so far.

        None before the first step if the caller expects nothing, and once the estimate has run out.
        """
        if self._end_at is not None:
            left = self._end_at - self._clock()
        elif self.done == self._before:
            return None
        else:
            mean = (self._counted_to - self._counted_from) / (self.done - self._before)
            left = mean * (self.total - self.done) - (self._clock() - self._counted_to)
        return left if left > 0 else None

    def picture(self) -> Group:
        """A line for the time, which fits 80 columns, or two in a narrow terminal; and the figures or the panel."""
        row, times = [self.name, f"{self.done}/{self.total}"], [*self._times(), *self._phases()]
        room = self.console.width - _width([*row, *times])
        parts: list[RenderableType] = []
        if room < _NARROWEST_BAR:
            parts.append(Text("  ".join(times), no_wrap=True, overflow="ellipsis"))
            room = self.console.width - _width(row)
        else:
            row += times
        width = max(_NARROWEST_BAR, min(_WIDEST_BAR, room))
        line = Table.grid(padding=(0, 2, 0, 0))
        for _ in range(len(row) + 1):
            line.add_column(no_wrap=True)
        line.add_row(Text(row[0]), ProgressBar(self.total, self.done, width=width, **_BAR), *row[1:])
        if self._panel is not None:
            parts.append(self._panel)
        elif self._figures:
            parts.append(Text(self._figures, no_wrap=True, overflow="ellipsis"))
        return Group(line, *parts)

    def _times(self) -> Iterator[str]:
        if (left := self.left()) is not None:
            yield f"{clock_time(left)} left"
        yield f"{clock_time(self.gone)} gone"

    def _phases(self) -> Iterator[str]:
        now = self._clock()
        if self._phase and (self._slow or now - self._step_at > _LONG_SECONDS):
            yield f"{self._phase} {now - self._phase_at:.0f} s"

    def _watch(self) -> None:
        while not self._over.wait(_PULSE_SECONDS):
            self.tick()

    def tick(self) -> None:
        """Without a terminal: name a long phase, once."""
        now = self._clock()
        lasts, silent = now - self._phase_at > _LONG_SECONDS, now - self._said_at > _PLAIN_SECONDS
        if self._phase and lasts and silent and not self._phase_said:
            self._phase_said = True
            self._say(f"{self.name} {min(self.done + 1, self.total)} of {self.total}", *self._phases())

    def _say(self, *words: str) -> None:
        if self._shown and self._live is None:
            self._said_at = self._clock()
            parts = [words[0], ", ".join(self._times()), *words[1:]]
            self.console.print("  ".join(filter(None, parts)), highlight=False, markup=False, soft_wrap=True)


def _width(words: Sequence[str]) -> int:
    """The columns that words take, with two spaces behind each."""
    return sum(len(word) + 2 for word in words)


def clock_time(seconds: float) -> str:
    """Hours, minutes and seconds: 0:03:20, or 27:00:00."""
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
