"""Interleaved timing and the rows of the table."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

REPEATS = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    """One row. `goal` reads like `>= 7`, or is None where a figure is only reported; `spread` is the lowest and
    highest value of the repeats; `unit` stands behind the value."""

    name: str
    value: float
    goal: str | None
    spread: tuple[float, float]
    unit: str = "x"

    @property
    def met(self) -> bool | None:
        """Whether the value reaches the goal, if there is one."""
        if self.goal is None:
            return None
        sign, bound = self.goal.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)


def ratio(
    name: str,
    slow: Callable[[], T],
    fast: Callable[[], T],
    goal: str | None,
    repeats: int = REPEATS,
    *,
    check: Callable[[T, T], None] | None = None,
) -> Result:
    """How many times longer `slow` takes than `fast`: the median over repeats that alternate between the two.

    check: gets what both have returned in the first repeat, before they run again, and asserts that it is the same.
    """
    ratios = []
    for repeat in range(repeats):
        slow_seconds, slow_result = timed(slow)
        fast_seconds, fast_result = timed(fast)
        if check is not None and not repeat:
            check(slow_result, fast_result)
        del slow_result, fast_result
        ratios.append(slow_seconds / fast_seconds)
    return Result(name, statistics.median(ratios), goal, (min(ratios), max(ratios)))


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """How many seconds `work` takes, and what it returns."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result
