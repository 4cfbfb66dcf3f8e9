"""Interleaved timing and the rows of the table."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

REPEATS = 3


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
    name: str, slow: Callable[[], object], fast: Callable[[], object], goal: str | None, repeats: int = REPEATS
) -> Result:
    """How many times longer `slow` takes than `fast`: the median over repeats that alternate between the two."""
    ratios = [seconds(slow) / seconds(fast) for _ in range(repeats)]
    return Result(name, statistics.median(ratios), goal, (min(ratios), max(ratios)))


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
