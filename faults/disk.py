"""Disk: runs on a disk that is full, read-only, or answers late. They say so in one line, and go on when it is mended.

A full disk is a small file system in memory with only so much room, drawn at random up to what the whole run needs.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faults import scenarios
from faults.crashes import Whole, left_alone
from faults.scenarios import Scenario
from faults.spawner import SECONDS, Spawner
from faults.tally import Tallies, Tally

_MEGABYTES = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")
_USER_MISTAKE = 2


def run(work: Path, cases: int, seed: int) -> list[Tally]:
    """So many full disks, and for each kind of run a read-only one and a pause. work: a folder for the runs.

    Where nothing can be mounted, a row says so in place of the disks.
    """
    tallies, draw = Tallies(), random.Random(seed)
    refused = not_mounted(work / "try")
    with Spawner() as spawner, scenarios.answer_server() as asked:
        for scenario in (scenarios.training(), scenarios.evaluation(), scenarios.answering(asked)):
            here = work / scenario.name
            here.mkdir(parents=True)
            whole = left_alone(spawner, scenario, here)
            needed = pages_of(whole.folder)
            for _ in range(0 if refused else max(1, cases // 3)):
                lost = full_disk(spawner, scenario, here, whole, draw.randrange(needed))
                tallies.add(f"{scenario.name}: full disk", lost)
            if refused:
                tallies.add(f"{scenario.name}: full and read-only disks", injected=0, figures=refused)
            else:
                tallies.add(f"{scenario.name}: read-only disk", read_only(spawner, scenario, here))
            event = draw.choice([event for event in whole.events if event.startswith(("write", "rename"))])
            tallies.add(f"{scenario.name}: paused", paused(spawner, scenario, here, whole, event))
    return tallies.all()


def not_mounted(folder: Path) -> str:
    """Why no disk can be mounted, for the table; empty if one can."""
    try:
        with mounted(folder):
            return ""
    except OSError as error:
        return f"not possible here: {error}"


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    """A small disk at a folder. Raises PermissionError where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    size = f"size={_MEGABYTES}m"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise PermissionError(f"cannot mount a disk of our own at {folder}: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def pages_of(folder: Path) -> int:
    """How many pages the files of a folder take: a disk in memory gives room by the page."""
    return sum(-(-path.stat().st_size // _PAGE) for path in folder.rglob("*") if path.is_file())


def full_disk(spawner: Spawner, scenario: Scenario, work: Path, whole: Whole, room: int) -> list[str]:
    """A run with so many pages of room, which must say that it needs more; then with enough. What was lost."""
    log = work / "full.log"
    log.unlink(missing_ok=True)
    with mounted(work / "disk") as disk:
        folder, filler = disk / "run", disk / "filler"
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, _MEGABYTES * 2**20 - room * _PAGE)
        spawner.start(scenario.words(folder), log)
        code = spawner.wait()
        # 0: only the report had no room, which a warning says.
        if lost := _not_named(code, log, (0, _USER_MISTAKE), f"with {room} pages of room"):
            return lost
        filler.unlink()
        for _ in range(2 if code == 0 else 1):
            spawner.start(scenario.words(folder), log)
            if (code := spawner.wait()) != 0:
                return [f"with room again, after {room} pages, it ended with code {code}: {_end_of(log)}"]
        return [f"after {room} pages of room: {text}" for text in scenario.differences(whole.folder, folder)]


def read_only(spawner: Spawner, scenario: Scenario, work: Path) -> list[str]:
    """A run on a disk that cannot be written to, which must say so."""
    log = work / "read-only.log"
    with mounted(work / "disk") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        spawner.start(scenario.words(disk / "run"), log)
        return _not_named(spawner.wait(), log, (_USER_MISTAKE,), "on a read-only disk")


def paused(spawner: Spawner, scenario: Scenario, work: Path, whole: Whole, event: str) -> list[str]:
    """A run that stands still in the middle of a write, as on a disk in a network that is gone for a while."""
    folder, log = scenarios.fresh(work / "run"), work / "paused.log"
    log.unlink(missing_ok=True)
    pid = spawner.start(scenario.words(folder), log, folder=folder, at=event, signal=int(signal.SIGSTOP))
    _await_stop(pid)
    time.sleep(1.0)
    os.kill(pid, signal.SIGCONT)
    if code := spawner.wait():
        return [f"paused at {event!r}, it ended with code {code}: {_end_of(log)}"]
    return [f"paused at {event!r}: {text}" for text in scenario.differences(whole.folder, folder)]


def _await_stop(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        # T: stopped; Z: it has ended without coming there.
        if state in "TZ":
            return
        time.sleep(0.01)


def _not_named(code: int | None, log: Path, expected: Sequence[int], when: str) -> list[str]:
    """What is wrong with an end that must be told in one line, without a traceback."""
    said = log.read_text(encoding="utf-8", errors="replace")
    if code not in expected or "Traceback" in said:
        return [f"{when} it ended with code {code}: {_end_of(log)}"]
    return []


def _end_of(log: Path) -> str:
    return " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:])
