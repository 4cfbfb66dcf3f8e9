"""In what order positions are committed, and how many at a time.

Training commits the highest entropy first (paper eq. `commit`), inference the highest confidence first (paper eq.
`inference`). Both are priorities, computed from the same forward. The highest priority is committed first; at a tie,
the lowest position.

Shapes: R rows, B positions of the current block (window), V vocabulary, U unresolved positions of all rows, C of them
at a time; W words of a run.
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


# Four megabytes, and as much again for their exponentials.
_CACHED_NUMBERS = 2**20
_RUN_WORDS = 256
# Up to so many numbers, the calls that cutting takes cost more than it saves.
_FEW_NUMBERS = 2**16


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

    Raises ForkLeftError if a function does not give one number for each of them. Whether these are finite is left to
    `check_priority`, once they are on the host: to look at them here would be to wait for the device.
    """
    if not callable(order):
        return ORDERS[order](predictions)
    priority_U = order(predictions)
    expected = predictions.entropy_U.shape
    found = f"one of shape {tuple(priority_U.shape)}" if isinstance(priority_U, torch.Tensor) else f"{priority_U!r:.60}"
    if not isinstance(priority_U, torch.Tensor) or priority_U.shape != expected:
        raise ForkLeftError(f"the order {_name(order)} must return a tensor of shape {tuple(expected)}, found {found}")
    return priority_U.to(predictions.entropy_U)


def check_priority(order: Order, priority_U: torch.Tensor) -> None:
    """Raise ForkLeftError, naming the order, unless all its priorities are finite."""
    if not priority_U.isfinite().all():
        raise ForkLeftError(f"the order {_name(order)} must return finite numbers, found NaN or infinity")


def _name(order: Order) -> str:
    return order if isinstance(order, str) else getattr(order, "__name__", repr(order))


def commits_this_pass(unresolved: int, passes: int, this_pass: int) -> int:
    """k_r = ⌈|M_r| / (R − r + 1)⌉ (paper eq. `commit`), with r counted from 1."""
    return math.ceil(unresolved / (passes - this_pass + 1))


def choose(priority_RB: torch.Tensor, count_R: torch.Tensor) -> torch.Tensor:
    """`chosen_RB`: in each row the `count` positions of highest priority, the lowest position at a tie.

    Where nothing is to be chosen, the priority is −inf; at least `count` others must be left.
    """
    ranked_RB = priority_RB.argsort(dim=1, descending=True, stable=True)
    rank_RB = torch.empty_like(ranked_RB).scatter_(
        1, ranked_RB, torch.arange(ranked_RB.shape[1], device=ranked_RB.device).expand_as(ranked_RB)
    )
    return rank_RB < count_R[:, None]


def summarise(logits_UV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Entropy in nats (paper eq. `denoiser`), maximum probability, and its token; −inf marks ids outside 𝒱.

    Overwrites the logits with logits relative to their maximum, which give the same distribution. This saves time: the
    vocabulary is long, and every pass over it counts.
    """
    # A few rows at a time stay in a processor's cache from one pass to the next. On a GPU this does not help.
    rows = max(1, _CACHED_NUMBERS // logits_UV.shape[-1]) if logits_UV.device.type == "cpu" else len(logits_UV)
    parts = [_summarise(part_CV) for part_CV in logits_UV.split(max(1, rows))]
    entropy_U, confidence_U, token_U = (torch.cat(column) for column in zip(*parts, strict=True))
    return entropy_U, confidence_U, token_U


def _summarise(logits_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    top_C, token_C = maximum(logits_CV)
    relative_CV = logits_CV.sub_(top_C[:, None])
    exp_CV = relative_CV.exp()
    sum_C = exp_CV.sum(dim=-1)
    # H = log Z − Σ e^z·z / Z, with max p = 1 / Z. Finite numbers replace −inf, since 0 · −inf would be NaN.
    relative_CV.clamp_(min=torch.finfo(logits_CV.dtype).min)
    entropy_C = sum_C.log() - exp_CV.mul_(relative_CV).sum(dim=-1) / sum_C
    return entropy_C.clamp_(min=0), sum_C.reciprocal(), token_C


def maximum(logits_CV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each row and where it is; the first place at a tie.

    On a CPU, finding the place takes ten times as long as finding the maximum. So long rows are cut into runs of W
    words: the maximum of each is found first, and the place only within the best.
    """
    words = logits_CV.shape[1]
    if logits_CV.device.type != "cpu" or words < 4 * _RUN_WORDS or logits_CV.numel() < _FEW_NUMBERS:
        return logits_CV.max(dim=-1)
    whole = words // _RUN_WORDS
    highest = [logits_CV[:, : whole * _RUN_WORDS].unflatten(1, (whole, _RUN_WORDS)).amax(dim=-1)]
    if words % _RUN_WORDS:
        highest.append(logits_CV[:, whole * _RUN_WORDS :].amax(dim=-1, keepdim=True))
    top_C, best_C = torch.cat(highest, dim=1).max(dim=-1)
    # The last run may be shorter. Its last word then stands for the rest; the first place still wins.
    place_CW = best_C[:, None] * _RUN_WORDS + torch.arange(_RUN_WORDS, device=logits_CV.device)
    place_CW.clamp_(max=words - 1)
    within_C1 = logits_CV.gather(1, place_CW).argmax(dim=-1, keepdim=True)
    return top_C, place_CW.gather(1, within_C1)[:, 0]


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
    # Of logits that are not finite nothing is kept. The caller refuses them, later; here only the place must exist.
    last_U1 = ((kept_UV > 0).sum(dim=-1, keepdim=True) - 1).clamp_(min=0)
    return token_UV.gather(1, place_U1.minimum(last_U1))[:, 0]
