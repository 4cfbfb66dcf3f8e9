"""Runs the cells of a grid that are missing, several at a time, each as ordinary commands in its own folder.

A runner holds the lock of a cell while it works on it, and its commands inherit the lock. So a second runner on the
same root takes other cells and waits for those that it needs, and the cell of a killed runner is free as soon as its
command has ended too. The files on disk say what is done, so a new runner resumes where the last one stopped.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from forkleft.errors import ForkLeftError
from forkleft.processes import KEEP_BUFFERS, PROGRAM, THREADS
from forkleft.signals import at_first_signal, leave
from forkleft.study.cells import CellFolder, Failure, Task, writing
from forkleft.study.grid import Cell
from forkleft.study.progress import GridProgress

_POLL_SECONDS = 0.1


def run_cells(
    cells: Mapping[str, Cell], root: Path, progress: GridProgress, *, jobs: int, program: Sequence[str] = PROGRAM
) -> dict[str, Failure]:
    """Make what is missing of cells, in their order, up to `jobs` at a time; returns the failures by digest.

    program: the words that start `forkleft`. If a cell fails, only the cells that need it are not made.
    """
    return _Runner(cells, root, progress, jobs, program).run()


@dataclass(frozen=True)
class _Work:
    """A cell in work: its lock, the tasks that are left, and the running command of the first of them."""

    folder: CellFolder
    lock: TextIO
    tasks: list[Task]
    process: subprocess.Popen
    log: TextIO
    started: float


class _Runner:
    def __init__(
        self, cells: Mapping[str, Cell], root: Path, progress: GridProgress, jobs: int, program: Sequence[str]
    ) -> None:
        self.cells, self.progress, self.jobs, self.program = cells, progress, jobs, program
        threads = str(max(1, (os.cpu_count() or 1) // jobs))
        ours = dict.fromkeys(THREADS, threads) | {"TOKENIZERS_PARALLELISM": "false"}
        self.environment = KEEP_BUFFERS | os.environ | ours
        self.waiting = {digest: CellFolder(root, cell) for digest, cell in cells.items()}
        # Read only once; they are for the time left.
        self.tasks = {digest: folder.tasks() for digest, folder in self.waiting.items()}
        self.working: dict[str, _Work] = {}
        self.failures: dict[str, Failure] = {}

    def run(self) -> dict[str, Failure]:
        with at_first_signal(leave):
            try:
                while self.waiting or self.working:
                    for work in list(self.working.values()):
                        if work.process.poll() is not None:
                            self._end(work)
                    for folder in list(self.waiting.values()):
                        if len(self.working) < self.jobs and self._begin(folder):
                            del self.waiting[folder.cell.digest]
                    self._say_how_far()
                    time.sleep(_POLL_SECONDS if self.waiting or self.working else 0)
            finally:
                self._stop()
        return self.failures

    def _say_how_far(self) -> None:
        now = time.monotonic()
        working = {work.folder.cell.label: (work.tasks, now - work.started) for work in self.working.values()}
        self.progress.update(working, [self.tasks[digest] for digest in self.waiting])

    def _begin(self, folder: CellFolder) -> bool:
        """Begin a cell, or see that there is nothing to begin; False if it must wait."""
        if folder.is_finished():
            folder.forget_failure()
            self.progress.was_there()
            return True
        needs = folder.cell.needs
        if broken := next((need for need in needs if need in self.failures), None):
            self._fail(folder, f"it needs {self.cells[broken].label}, which failed", self.failures[broken].command)
            return True
        if any(need in self.waiting or need in self.working for need in needs):
            return False
        try:
            if (lock := folder.lock()) is None:
                self.progress.elsewhere(folder)
                return False
            try:
                folder.prepare()
                if not self._start(folder, lock):
                    # Another runner finished the cell before we had its lock.
                    self.progress.was_there()
            except ForkLeftError:
                lock.close()
                raise
        except ForkLeftError as error:
            self._fail(folder, str(error), folder.tasks()[0].command)
        return True

    def _start(self, folder: CellFolder, lock: TextIO) -> bool:
        """Start the next command of a cell whose lock we have. If nothing is left to do, unlock it and return False."""
        tasks = folder.tasks()
        if not tasks:
            lock.close()
            return False
        with writing(folder.path):
            folder.begin(tasks[0])
            log = folder.log.open("a", encoding="utf-8")
            log.write(f"$ {tasks[0].command}\n")
            log.flush()
        process = subprocess.Popen(
            [*self.program, *tasks[0].words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self.environment,
            pass_fds=(lock.fileno(),),
            # Ctrl-C reaches a whole process group. A command gets its signal from us, once: a second would end it
            # before it has saved.
            process_group=0,
        )
        self.working[folder.cell.digest] = _Work(folder, lock, tasks, process, log, time.monotonic())
        return True

    def _end(self, work: _Work) -> None:
        """Write down how a command ended, and start the next one of its cell."""
        folder, task, seconds = work.folder, work.tasks[0], time.monotonic() - work.started
        del self.working[folder.cell.digest]
        work.log.close()
        try:
            if work.process.returncode:
                raise ForkLeftError(_reason(work))
            folder.succeed(task, seconds)
            self.progress.ended(task, seconds)
            if any(left.name == task.name for left in folder.tasks()):
                raise ForkLeftError(f"{task.name} ended without its result; see {folder.log}")
            if not self._start(folder, work.lock):
                self.progress.finished(folder)
        except ForkLeftError as error:
            work.lock.close()
            self._fail(folder, str(error), task.command)

    def _fail(self, folder: CellFolder, error: str, command: str) -> None:
        failure = Failure(error, command)
        self.failures[folder.cell.digest] = failure
        # On a full disk the failure cannot be written down either.
        with suppress(ForkLeftError):
            folder.fail(failure)
        self.progress.failed(folder, failure)

    def _stop(self) -> None:
        """Ask the commands that still run to end, because we were, and wait: a training saves what it has learned.

        A second signal ends the wait, and the commands end by themselves.
        """
        for work in self.working.values():
            work.process.terminate()
        for work in self.working.values():
            work.process.wait()


def _reason(work: _Work) -> str:
    """Why a command failed: the last line that it printed, or the signal that ended it."""
    name, code, log = work.tasks[0].name, work.process.returncode, work.folder.log
    if code < 0:
        return f"{name} was killed by signal {-code} ({signal.Signals(-code).name}); see {log}"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    begun = max((k for k, line in enumerate(lines) if line.startswith("$ ")), default=-1)
    said = [line.strip() for line in lines[begun + 1 :] if line.strip()]
    ours = [line.removeprefix("forkleft: ") for line in said if line.startswith("forkleft: ")]
    return f"{name} ended with code {code}: {(ours or said or ['it said nothing'])[-1]}"
