"""Hostile input: whatever a file or a server says, a reader gives a value or raises the error that it promises.

`faults.targets` has the readers and what they are given. A case that raises something else, or does not come back, is
lost.
"""

import logging
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from faults.endurance import in_all
from faults.tally import Tallies, Tally
from faults.targets import Target, targets
from forkleft.verify import Verifier

# Seconds for one case; only what hangs takes so long.
_BOUND = 120
_WORKERS = 16
# Bytes that thousands of cases of a target may leave in memory; Hypothesis itself keeps tens of megabytes.
_GROWTH = 500 * 2**20


def run(cases: int, seed: int) -> list[Tally]:
    """So many cases, divided among all targets."""
    tallies = Tallies()
    chosen = targets()
    # The workers of the verifier count, too, and are started before.
    Verifier("math").judge([rf"\boxed{{{k}}}" for k in range(_WORKERS)], ["1"] * _WORKERS)
    total = sum(target.weight for target in chosen)
    with tempfile.TemporaryDirectory() as folder:
        for target in chosen:
            count = max(1, round(cases * target.weight / total))
            before = in_all()
            done, lost = attacked(target, Path(folder), count, seed)
            grown = in_all() - before
            if grown > _GROWTH:
                lost.append(f"{done} cases left {grown:,} bytes in memory")
            tallies.add(f"hostile {target.name}", lost, done, f"{grown / 2**20:+,.0f} MB")
    return tallies.all()


def attacked(target: Target, work: Path, cases: int, seed: int) -> tuple[int, list[str]]:
    """How many cases were tried, and what was lost."""
    done, lost = 0, []

    @seeded(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy)
    def case(value: Any) -> None:
        nonlocal done
        done += 1
        try:
            with _bounded():
                target.read(value, work)
        except target.allowed:
            pass
        except Exception as error:
            lost.append(f"{type(error).__name__}: {error!s:.200} on {value!r:.300}")

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        case()
    finally:
        logging.disable(level)
    return done, lost


@contextmanager
def _bounded() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {_BOUND} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_BOUND)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
