"""Positions: where a response is supervised (paper eq. `position-sampling`).

Positions are 0-based here; the paper counts from 1. A response of length L has the candidates E = {0, …, L−2}; its last
position is chosen if, and only if, it holds a real EOS.
"""

import math
from decimal import Decimal

import torch

from forkleft.errors import ForkLeftError
from forkleft.randomness import keyed_generator


def check_rho(rho: float) -> None:
    """Raise ForkLeftError unless 0 ≤ ρ ≤ 1."""
    if not 0 <= rho <= 1:
        raise ForkLeftError(f"rho is the share of positions to supervise: expected 0 to 1, found {rho}")


def selection_size(length: int, rho: float) -> int:
    """n = min(⌈ρL⌉, |E|) (paper eq. `position-sampling`)."""
    # In decimals, as ρ is written: in floating point 0.1 · 30 is above 3, and its ceiling would be 4.
    return min(math.ceil(Decimal(repr(float(rho))) * length), max(0, length - 1))


def select_positions(
    length: int, *, ends_with_eos: bool, rho: float, seed: int, update: int, question: str, stream: str
) -> list[int]:
    """S = U ∪ {e}, in ascending order: n of the candidates, uniformly without replacement, and a real EOS.

    The draw depends only on (seed, update, question, stream), length and ρ: not on processes, batch order or resuming.
    `stream` separates the response from the reference, which are drawn independently.
    """
    check_rho(rho)
    generator = keyed_generator(seed, update, question, stream)
    drawn = torch.randperm(max(0, length - 1), generator=generator)[: selection_size(length, rho)]
    return sorted(drawn.tolist()) + ([length - 1] if ends_with_eos else [])
