"""In what order positions are committed, and how many at a time.

Training commits the highest entropy first (paper eq. `commit`), inference the highest confidence first (paper eq.
`inference`). Both are priorities, computed from the same forward. The highest priority is committed first; at a tie,
the lowest position.

Shapes: R rows, B positions of the current block (window), V vocabulary, U unresolved positions of all rows.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from forkleft.errors import ForkLeftError, check_choice, check_count

OrderName = Literal["high_entropy", "low_entropy", "confidence", "left_to_right", "random"]


@dataclass(frozen=True)
class Predictions:
    """What one forward predicts at the unresolved positions of all rows.

    entropy_U: H(p) in nats; confidence_U: max_u p(u); offset_U: the place in the block;
    noise_U: a number in [0, 1), fixed by seed and question; only for the random order and for functions, else None.
    """

    entropy_U: torch.Tensor
    confidence_U: torch.Tensor
    offset_U: torch.Tensor
    noise_U: torch.Tensor | None = None


# Gives `priority_U` of the unresolved positions, from the predictions of one forward.
Priority = Callable[[Predictions], torch.Tensor]
# A name of `ORDERS`, or the user's own function.
Order = str | Priority


def _noise(predictions: Predictions) -> torch.Tensor:
    if predictions.noise_U is None:
        raise ForkLeftError("the random order needs noise_U, found None; give a number in [0, 1) for each position")
    return predictions.noise_U


# Low entropy and high confidence are different orders: maximum probability is not minimum entropy.
ORDERS: dict[str, Priority] = {
    "high_entropy": lambda p: p.entropy_U,
    "low_entropy": lambda p: -p.entropy_U,
    "confidence": lambda p: p.confidence_U,
    "left_to_right": lambda p: -p.offset_U.to(p.entropy_U.dtype),
    "random": _noise,
}


_CACHED_NUMBERS = 2**18


def check_order(order: Order, option: str = "order") -> None:
    """Raise ForkLeftError, naming the option, if an order is neither one of `ORDERS` nor a function."""
    if not callable(order):
        check_choice(option, order, ORDERS)


def check_writing(
    *, passes: int | None = None, threshold: float | None = None, temperature: float = 0.0, top_p: float = 1.0
) -> None:
    """Raise ForkLeftError for impossible options of writing. All functions that take them use this check."""
    if passes is not None:
        check_count("passes", passes)
    if threshold is not None and not 0 <= threshold <= 1:
        raise ForkLeftError(f"threshold is a probability: expected 0 to 1, found {threshold}")
    if not 0 <= temperature < float("inf"):
        raise ForkLeftError(f"temperature must be 0 (the likeliest token) or more, found {temperature}")
    if not 0 < top_p <= 1:
        raise ForkLeftError(f"top_p must be above 0 and at most 1, found {top_p}")


def priority(order: Order, predictions: Predictions) -> torch.Tensor:
    """`priority_U` of the unresolved positions under an order; the highest is committed first.

    Raises ForkLeftError if a function does not give one finite number for each of them.
    """
    if not callable(order):
        return ORDERS[order](predictions)
    priority_U = order(predictions)
    expected, name = predictions.entropy_U.shape, getattr(order, "__name__", repr(order))
    found = f"one of shape {tuple(priority_U.shape)}" if isinstance(priority_U, torch.Tensor) else f"{priority_U!r:.60}"
    if not isinstance(priority_U, torch.Tensor) or priority_U.shape != expected:
        raise ForkLeftError(f"the order {name} must return a tensor of shape {tuple(expected)}, found {found}")
    if not priority_U.isfinite().all():
        raise ForkLeftError(f"the order {name} must return finite numbers, found NaN or infinity")
    return priority_U.to(predictions.entropy_U)


def commits_this_pass(unresolved: int, passes: int, this_pass: int) -> int:
    """k_r = ⌈|M_r| / (R − r + 1)⌉ (paper eq. `commit`), with r counted from 1."""
    return math.ceil(unresolved / (passes - this_pass + 1))


def choose(priority_RB: torch.Tensor, unresolved_RB: torch.Tensor, count_R: torch.Tensor) -> torch.Tensor:
    """`chosen_RB`: in each row the `count` unresolved positions of highest priority, the lowest position at a tie."""
    ranked_RB = priority_RB.masked_fill(~unresolved_RB, float("-inf")).argsort(dim=1, descending=True, stable=True)
    rank_RB = torch.empty_like(ranked_RB).scatter_(
        1, ranked_RB, torch.arange(ranked_RB.shape[1], device=ranked_RB.device).expand_as(ranked_RB)
    )
    return unresolved_RB & (rank_RB < count_R[:, None])


def entropy_and_confidence(logits_UV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy in nats (paper eq. `denoiser`) and maximum probability; −inf marks ids outside 𝒱.

    Overwrites the logits with logits relative to their maximum, which give the same distribution. This saves time: the
    vocabulary is long, and every pass over it counts.
    """
    # A few rows at a time stay in a processor's cache from one pass to the next. On a GPU this does not help.
    rows = max(1, _CACHED_NUMBERS // logits_UV.shape[-1]) if logits_UV.device.type == "cpu" else len(logits_UV)
    parts = [_entropy_and_confidence(part_CV) for part_CV in logits_UV.split(max(1, rows))]
    entropy_U, confidence_U = (torch.cat(column) for column in zip(*parts, strict=True))
    return entropy_U, confidence_U


def _entropy_and_confidence(logits_UV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    relative_UV = logits_UV.sub_(logits_UV.amax(dim=-1, keepdim=True))
    p_UV = relative_UV.softmax(dim=-1)
    confidence_U = p_UV.amax(dim=-1)
    # H = log Z − Σ p·z, where log Z = −log max p. Finite numbers replace −inf, since 0 · −inf would be NaN.
    relative_UV.clamp_(min=torch.finfo(logits_UV.dtype).min)
    with torch.autocast(logits_UV.device.type, enabled=False):  # which would round the products to bfloat16
        entropy_U = -confidence_U.log() - torch.linalg.vecdot(p_UV, relative_UV)
    return entropy_U.clamp(min=0), confidence_U


def sample(logits_UV: torch.Tensor, uniform_U: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """`token_U` drawn at `temperature` from the smallest set of likeliest tokens with mass `top_p`.

    `uniform_U` in [0, 1) decides each draw, so that the draws of a row do not depend on other rows.
    """
    p_UV, token_UV = (logits_UV / temperature).softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    mass_UV = p_UV.cumsum(dim=-1)
    kept_UV = p_UV.masked_fill(mass_UV - p_UV >= top_p, 0.0)
    reached_UV = kept_UV.cumsum(dim=-1)
    mark_U1 = (uniform_U * reached_UV[:, -1])[:, None]
    place_U1 = torch.searchsorted(reached_UV, mark_U1, right=True)
    last_U1 = (kept_UV > 0).sum(dim=-1, keepdim=True) - 1
    return token_UV.gather(1, place_U1.minimum(last_U1))[:, 0]
