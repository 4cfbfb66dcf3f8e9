"""The matrix products of a piece of work, alone: what it would take if everything else took no time.

Every product is noted while the work is done, attention as the products that it consists of, and all are computed again
with nothing in between, in the same shapes and layouts.
"""

import statistics
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.harness import REPEATS, Result, timed

# A product: the operation, and size and stride of both factors.
_Factor = tuple[tuple[int, ...], tuple[int, ...]]
_Product = tuple[str, _Factor, _Factor]


class Products(TorchDispatchMode):
    """Notes every matrix product that is computed under it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "bmm"):
            self._add(name, args[0], args[1])
        elif name in ("addmm", "addmm_", "baddbmm"):
            self._add("bmm" if args[1].dim() == 3 else "mm", args[1], args[2])
        elif name.startswith("_scaled_dot_product"):
            self._attention(args, backward="backward" in name)
        return func(*args, **kwargs or {})

    def _attention(self, args: Any, *, backward: bool) -> None:
        """Scores and their product with the values; in the backward the scores again, and four products more."""
        query, key, value = args[1:4] if backward else args[:3]
        rows, heads, asking, _ = query.shape
        query, key, value = (x.expand(rows, heads, -1, -1).flatten(0, 1) for x in (query, key, value))
        scores = query.new_empty(rows * heads, asking, key.shape[1])
        self._add("bmm", query, key.transpose(1, 2))
        if not backward:
            self._add("bmm", scores, value)
            return
        self._add("bmm", query, value.transpose(1, 2))
        self._add("bmm", scores, key)
        for _ in range(2):
            self._add("bmm", scores.transpose(1, 2), query)

    def _add(self, name: str, left: torch.Tensor, right: torch.Tensor) -> None:
        self.found.append((name, *((tuple(x.shape), x.stride()) for x in (left, right))))


def products_alone(found: Iterable[_Product]) -> Callable[[], None]:
    """A function that computes the products once more, on random factors."""
    factors: dict[_Factor, torch.Tensor] = {}

    def factor(shape: _Factor) -> torch.Tensor:
        if shape not in factors:
            size, stride = shape
            # As much memory as is reached: a factor that was expanded has the same element in many places.
            reached = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
            factors[shape] = torch.randn(reached).as_strided(size, stride)
        return factors[shape]

    calls = [(getattr(torch, name), factor(left), factor(right)) for name, left, right in found]

    @torch.no_grad()
    def run() -> None:
        for multiply, left, right in calls:
            multiply(left, right)

    return run


def beside_products(work: Callable[[], object], repeats: int = REPEATS) -> list[tuple[float, float]]:
    """In each repeat the seconds of the work, and of its products alone; the two sides alternate."""
    with Products() as products:
        work()
    alone = products_alone(products.found)
    alone()
    return [(timed(work)[0], timed(alone)[0]) for _ in range(repeats)]


def products_row(name: str, work: Callable[[], object], goal: str | None) -> Result:
    """A row of the table: the work as a multiple of its products."""
    ratios = [whole / bare for whole, bare in beside_products(work)]
    return Result(name, statistics.median(ratios), goal, (min(ratios), max(ratios)))
