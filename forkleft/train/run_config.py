"""`RunConfig`: all of `TrainingArguments`, and the options that every training of a student has.

`ForkLeftConfig` (`config.py`) and `AdaptConfig` (`adapt_config.py`) add those of their objective.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.rollout.decoding import check_decoding
from forkleft.verify import LETTERS, Verifier

NO_BF16 = "bf16: true asks for a GPU that computes in bfloat16, and there is none here"
# Transformers accepts most of these and fails only once the models are loaded.
_COUNTS = ("rollout_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
_NOT_NEGATIVE = ("learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm")


def option(default: Any, text: str) -> Any:
    """An option with its default and its help text."""
    return field(default=default, metadata={"help": text})


@dataclass
class RunConfig(TrainingArguments):
    """What the configurations of all runs share.

    Everything in `transformers.TrainingArguments` works as usual. Options whose default differs from Transformers' are
    listed here too.
    """

    # Writing.
    max_new_tokens: int = option(1024, "The response budget in tokens, for rollouts and reference solutions.")
    rollout_batch_size: int = option(32, "Responses that are written at a time on one device.")
    eval_decoding: str = option(
        "static", "How the student writes in evaluations: static (one token a pass), native (its family's settings)."
    )

    # Data.
    letters: str = option(LETTERS, "What the verifier choice may find chosen: the letters that the questions offer.")
    prompt_template: str = option(
        "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "The user turn of a question; {question} is replaced. Data with messages is taken as it is.",
    )
    reference_template: str = option(
        "{solution}\n\n\\boxed{{answer}}",
        "A reference solution that does not verify gets this form; {solution} and {answer} are replaced.",
    )

    # Records.
    save_at: list[int] | None = field(
        default=None,
        metadata={
            "help": "Updates to save a checkpoint after, e.g. [5, 10, 50], beside those of save_strategy; "
            "save_total_limit leaves them alone."
        },
    )
    eval_at: list[int] | None = field(
        default=None,
        metadata={"help": "Updates to evaluate after, e.g. [5, 10, 50], beside those of eval_strategy."},
    )

    # Of TrainingArguments, where the defaults differ.
    learning_rate: float = option(1e-6, "Peak learning rate.")
    lr_scheduler_type: str = option("constant_with_warmup", "Constant after the warm-up.")
    per_device_train_batch_size: int = option(
        32, "Questions a device works on at a time; at most its share of questions_per_update."
    )
    max_grad_norm: float = option(1.0, "Gradients are clipped to this norm.")
    weight_decay: float = option(0.0, "Weight decay of AdamW.")
    logging_steps: float = option(1, "Updates between two lines of the log.")
    logging_nan_inf_filter: bool = option(False, "A loss that is not finite stops the training instead.")
    remove_unused_columns: bool = option(False, "The columns of the data are questions and answers, not model inputs.")
    ddp_find_unused_parameters: bool | None = option(
        False, "Whether DDP looks for weights without a gradient; every update reaches all, so there are none."
    )
    # None only until `__post_init__`, which decides.
    bf16: bool | None = option(  # type: ignore[assignment]
        None, "Autocast to bfloat16, over float32 weights. Default: where the GPU can."
    )
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "Trackers beside metrics.jsonl, which is always written."}
    )

    def __post_init__(self) -> None:
        """Check what every run needs, then what Transformers needs."""
        if self.bf16 is None:
            self.bf16 = not self.use_cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        elif not can_bf16(self.bf16, self.use_cpu):
            raise ForkLeftError(
                f"{NO_BF16}; turn it off to train in float32 (--bf16 false), or autocast on the CPU (--use_cpu true)"
            )
        super().__post_init__()
        if self.data_seed is None:
            self.data_seed = self.seed
        check_decoding(self.eval_decoding, "eval_decoding")
        check_choice("train_sampling_strategy", self.train_sampling_strategy, ("random", "sequential"))
        self._check_numbers()
        _check_trackers(self.report_to if isinstance(self.report_to, list) else [])
        if self.remove_unused_columns:
            raise ForkLeftError("remove_unused_columns would remove the questions; leave it off")
        if self.fp16 or self.deepspeed is not None:
            raise ForkLeftError("fp16 and DeepSpeed step where ForkLeft must be able not to; use bf16, and FSDP")
        started = int(os.environ.get("WORLD_SIZE", "1"))
        if started > 1 and self.world_size == 1:
            raise ForkLeftError(
                f"started as {started} processes, but without a GPU they do not work together; add --use_cpu true"
            )
        if self.n_gpu > 1:
            raise ForkLeftError(
                f"found {self.n_gpu} GPUs in one process; start one process for each with torchrun or accelerate launch"
            )

    def _check_numbers(self) -> None:
        for name in _COUNTS:
            check_count(name, getattr(self, name))
        for name in _NOT_NEGATIVE:
            check_not_negative(name, getattr(self, name))
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ForkLeftError(f"{name} must be at least 0 and below 1, found {getattr(self, name)}")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ForkLeftError(
                f"max_steps must be at least 1, found {self.max_steps}; -1, the default, leaves it to num_train_epochs"
            )
        if self.max_steps == -1 and not (self.num_train_epochs > 0 and math.isfinite(self.num_train_epochs)):
            raise ForkLeftError(f"num_train_epochs must be above 0, found {self.num_train_epochs}")
        self.check_length(None if self.max_steps == -1 else self.max_steps)

    def check_length(self, updates: int | None) -> None:
        """Raise ForkLeftError for options that name updates which a run of so many (None: unknown) does not have."""
        for name in ("save_at", "eval_at"):
            check_steps(name, getattr(self, name), updates)

    @property
    def output_path(self) -> Path:
        """The folder of the run."""
        # Transformers has already set this name if none was given.
        return Path(self.output_dir or "trainer_output")

    @property
    def order_seed(self) -> int:
        """The seed of the order of questions."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def private_files(self) -> tuple[str, ...]:
        """Names of files in the folder of the run that are not published with the model, beside those of every run."""
        return ()

    def verifier_named(self, name: str) -> Verifier:
        """The verifier of this name. Raises ForkLeftError if there is none."""
        return Verifier.of(name, self.letters)


def can_bf16(bf16: bool | None, use_cpu: bool) -> bool:
    """Whether this machine has what `bf16` needs; a CPU can autocast if the user wants it."""
    return not bf16 or use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available()


def check_not_negative(name: str, value: float) -> None:
    """Raise ForkLeftError if a number is negative or not finite."""
    if not (value >= 0 and math.isfinite(value)):
        raise ForkLeftError(f"{name} must not be negative, found {value}")


def check_steps(name: str, steps: Sequence[int] | None, updates: int | None) -> None:
    """Raise ForkLeftError if a list names an update that a training of `updates` (None: unknown) does not have."""
    outside = [step for step in steps or () if step < 1 or (updates is not None and step > updates)]
    if outside:
        last = "on" if updates is None else f"to {updates}, the last"
        hint = "; eval_on_start evaluates before the first" if name == "eval_at" and 0 in outside else ""
        if updates is not None and max(outside) > updates:
            # As for a recipe that is tried in a short run.
            hint = f"; `--{name} []` leaves them out"
        raise ForkLeftError(f"{name} must hold updates from 1 {last}, found {', '.join(map(str, outside))}{hint}")


def _check_trackers(names: Sequence[str]) -> None:
    for name in names:
        if name in get_available_reporting_integrations():
            continue
        try:
            # To find out what is missing, make the tracker, as Transformers does once the models are loaded.
            for tracker in get_reporting_integration_callbacks([name]):
                tracker()
        except (ValueError, RuntimeError, ImportError) as error:
            raise ForkLeftError(
                f"report_to names {name!r}, which cannot be used here: {error}; leave it out, or install it "
                "(metrics.jsonl is always written)"
            ) from error
