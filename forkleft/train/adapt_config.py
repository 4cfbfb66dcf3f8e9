"""`AdaptConfig`: the options of every run (`run_config.py`), and those of adaptation."""

from dataclasses import dataclass, field
from typing import get_args

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.objective.denoising import WHOLE_RANGE, Weighting
from forkleft.train.run_config import RunConfig, check_not_negative, option
from forkleft.verify import Verifier

LONG_ROWS = ("refuse", "skip", "cut", "split")
BAD_ROWS = ("refuse", "skip")


@dataclass
class AdaptConfig(RunConfig):
    """How a student learns to denoise. Everything in `RunConfig`, and so in `transformers.TrainingArguments`, works as
    usual. An update has `per_device_train_batch_size` rows in every process and accumulation step, or, with
    `tokens_per_batch`, as many as fit.
    """

    # Denoising.
    weighting: str = option(
        "uniform",
        "How hidden positions count: uniform (all alike), or 1/t (by one over the hidden share of their block).",
    )
    mask_shares: list[float] = field(
        default_factory=lambda: list(WHOLE_RANGE),
        metadata={"help": "The share of a block that is hidden is drawn between these two, anew for each block."},
    )
    first_mask_shares: list[float] | None = field(
        default=None,
        metadata={
            "help": "The same at the first update of denoising, e.g. [0, 0.3]; moves evenly to mask_shares within "
            "mask_share_steps updates."
        },
    )
    mask_share_steps: int = option(0, "See first_mask_shares.")

    # Next-token prediction.
    causal_steps: int = option(
        0, "Updates of next-token prediction, with causal attention, before denoising begins (a causal warm-up)."
    )
    causal_weight: float = option(0.0, "Weight of next-token prediction beside denoising, in the same updates.")
    causal_only: bool = option(
        False, "Next-token prediction in all updates, as the lab's teachers learn; the student is not adapted by it."
    )

    # Rows.
    max_length: int = option(1024, "Tokens of a row of plain text; a longer one is treated as long_rows says.")
    long_rows: str = option(
        "refuse",
        "A row that does not fit (a text: max_length; a response: max_new_tokens; both: the context): refuse (stop and "
        "name it), skip; cut (leave out the end of a text) or split (a text becomes several rows), with which a "
        "response, never cut, is skipped.",
    )
    bad_rows: str = option(
        "refuse",
        "A row that is wrong (no text where there should be some, a stop or mask token in a response, messages that "
        "the chat template refuses, another kind than other rows): refuse (stop and name it), skip.",
    )
    tokens_per_batch: int | None = option(
        None,
        "Fill each batch of a device with rows up to so many tokens, instead of per_device_train_batch_size rows (in "
        "evaluations, per_device_eval_batch_size). Counted as they are in a forward: with block attention, a response "
        "counts about twice.",
    )

    # Accuracy.
    verifier: str | None = option(
        None, "How answers are checked, as in forkleft train; needed for data with answers, and for accuracy_questions."
    )
    accuracy_questions: int = option(
        0, "Held-out questions that are also answered and verified in every evaluation; 0: only the loss is measured."
    )

    # Of Transformers, where the default is another than in `RunConfig`.
    learning_rate: float = option(5e-5, "Peak learning rate.")
    per_device_train_batch_size: int = option(32, "Rows a device works on at a time.")
    per_device_eval_batch_size: int = option(32, "Held-out rows a device works on at a time.")

    def __post_init__(self) -> None:
        """Check what adaptation needs, and before it what every run needs."""
        super().__post_init__()
        check_choice("weighting", self.weighting, get_args(Weighting))
        check_choice("long_rows", self.long_rows, LONG_ROWS)
        check_choice("bad_rows", self.bad_rows, BAD_ROWS)
        _check_shares("mask_shares", self.mask_shares)
        if self.first_mask_shares is not None:
            _check_shares("first_mask_shares", self.first_mask_shares)
        if (self.first_mask_shares is None) != (self.mask_share_steps == 0):
            raise ForkLeftError("first_mask_shares and mask_share_steps belong together: give both, or neither")
        for name in ("mask_share_steps", "causal_steps", "causal_weight", "accuracy_questions"):
            check_not_negative(name, getattr(self, name))
        for name in ("max_new_tokens", "per_device_eval_batch_size"):
            check_count(name, getattr(self, name))
        if self.max_length < 2:
            raise ForkLeftError(f"max_length must be at least 2, found {self.max_length}")
        if self.tokens_per_batch is not None:
            check_count("tokens_per_batch", self.tokens_per_batch)
        beside = [name for name in ("causal_steps", "causal_weight", "first_mask_shares") if getattr(self, name)]
        if self.causal_only and beside:
            raise ForkLeftError(f"causal_only leaves nothing for {beside[0]} to decide; give one of them")
        self.named_verifier()
        if self.accuracy_questions and self.verifier is None:
            raise ForkLeftError("accuracy_questions are to be verified; name the verifier (math, lab, …)")

    def named_verifier(self) -> Verifier | None:
        """The verifier that the options name, if they do. Raises ForkLeftError if it does not exist."""
        return None if self.verifier is None else self.verifier_named(self.verifier)

    def check_length(self, updates: int | None) -> None:
        """Also raise ForkLeftError for a run that ends before it denoises, or before its shares are reached."""
        super().check_length(updates)
        if updates is None or self.causal_only:
            return
        if self.causal_steps >= updates:
            raise ForkLeftError(
                f"causal_steps ({self.causal_steps}) must be fewer than the updates of the run ({updates}), or it ends "
                "before the student learns to denoise; lower them, or train longer (causal_only: true trains on next "
                "tokens alone)"
            )
        if self.causal_steps + self.mask_share_steps > updates:
            raise ForkLeftError(
                f"mask_share_steps ({self.mask_share_steps}, after causal_steps {self.causal_steps}) must end within "
                f"the updates of the run ({updates}), or mask_shares are never reached; lower them, or train longer"
            )

    def is_causal(self, update: int) -> bool:
        """Whether an update (0-based) predicts next tokens alone."""
        return self.causal_only or update < self.causal_steps

    @property
    def predicts_next(self) -> bool:
        """Whether any update predicts next tokens."""
        return self.causal_only or bool(self.causal_steps or self.causal_weight)

    def shares_at(self, update: int) -> tuple[float, float]:
        """Between which shares of a block are hidden in an update (0-based)."""
        (low, high), first = self.mask_shares, self.first_mask_shares
        done = (update - self.causal_steps) / self.mask_share_steps if self.mask_share_steps else 1.0
        if first is None or done >= 1:
            return low, high
        done = max(0.0, done)
        return first[0] + done * (low - first[0]), first[1] + done * (high - first[1])


def _check_shares(name: str, shares: list[float]) -> None:
    if len(shares) != 2 or not 0 <= shares[0] <= shares[1] <= 1:
        raise ForkLeftError(f"{name} must be two shares from 0 to 1, the smaller one first, found {shares}")
