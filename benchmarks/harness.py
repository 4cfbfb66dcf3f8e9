"""Interleaved timing and the rows of the table."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

REPEATS = 5


@dataclass(frozen=True)
class Result:
    """One row. `goal` reads like `>= 7`, or is None where a figure is only reported; `spread` is the lowest and
    highest ratio of the repeats."""

    name: str
    value: float
    goal: str | None
    spread: tuple[float, float]

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
    ratios = []
    for _ in range(repeats):
        times = []
        for side in (slow, fast):
            start = time.perf_counter()
            side()
            times.append(time.perf_counter() - start)
        ratios.append(times[0] / times[1])
    return Result(name, statistics.median(ratios), goal, (min(ratios), max(ratios)))
