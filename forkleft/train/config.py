"""`ForkLeftConfig`: all of `TrainingArguments`, and the options of the method."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.rollout.decoding import check_decoding
from forkleft.rollout.orders import ORDERS, check_writing
from forkleft.verify import LETTERS, Verifier

NO_BF16 = "bf16: true asks for a GPU that computes in bfloat16, and there is none here"
# Transformers accepts most of these and fails only once the models are loaded.
_COUNTS = ("rollout_batch_size", "teacher_max_new_tokens", "per_device_train_batch_size", "gradient_accumulation_steps")
_NOT_NEGATIVE = ("trace_steps", "showcase_questions", "learning_rate", "weight_decay", "adam_epsilon", "max_grad_norm")


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ForkLeftConfig(TrainingArguments):
    """How ForkLeft trains. Defaults are the paper's where it gives a value, else ours; `docs/method.md` explains the
    symbols.

    Everything in `transformers.TrainingArguments` works as usual. Options whose default differs from Transformers' are
    listed here too.
    """

    # Writing.
    rollout_order: str = _option(
        "high_entropy",
        "Which positions the student commits first in training: high_entropy (the method), low_entropy, …",
    )
    passes: int = _option(32, "R: passes in which a block is written; the block size or more gives one token a pass.")
    max_new_tokens: int = _option(1024, "The response budget in tokens, for rollouts and reference solutions.")
    rollout_batch_size: int = _option(32, "Responses that are written at a time on one device.")
    eval_decoding: str = _option(
        "static", "How the student writes in evaluations: static (one token a pass), native (its family's settings)."
    )

    # The teacher.
    teacher_max_new_tokens: int = _option(2048, "The budget of the teacher's own answers, in tokens.")
    answer_cache: str | None = _option(
        None, "File that keeps the teacher's answers; processes and runs may share it. Default: in output_dir."
    )

    # Supervision.
    verifier: str = _option(
        "math",
        "How answers are checked: math, opdlm (as the paper's scorer does), choice, lab, or your own function as "
        "package.module:function.",
    )
    letters: str = _option(LETTERS, "What the verifier choice may find chosen: the letters that the questions offer.")
    supervision: str = _option(
        ObjectiveSettings.supervision,
        "routed: by the two verdicts (the method). opd, sft, sft+opd, mix: every question alike, for comparison.",
    )
    view: str = _option(
        ObjectiveSettings.view,
        "How the student is read against the teacher: prefix (the method), target_masked (the B view).",
    )
    geometry: str = _option(
        ObjectiveSettings.geometry,
        "The prefix readout: truncated (prefix and one mask), canvas (masks to the end of the block).",
    )
    read_attention: str = _option(ObjectiveSettings.attention, "Attention in the prefix readout: native, or full.")
    rho: float = _option(ObjectiveSettings.rho, "ρ: share of a response's positions that are supervised.")
    mu: float = _option(ObjectiveSettings.mu, "μ: nats by which two contrasts must differ to be ranked.")
    delta: float = _option(ObjectiveSettings.delta, "δ: margin of the ranking loss.")
    rank_weight: float = _option(ObjectiveSettings.rank_weight, "λ: weight of the ranking loss.")
    alpha: float = _option(
        ObjectiveSettings.alpha, "α: weight of the teacher's distribution in the mixture (supervision mix)."
    )
    merge_stops: bool = _option(
        ObjectiveSettings.merge_stops,
        "Count all stop ids as one event in the KL, where student and teacher name EOS differently.",
    )

    # Data.
    prompt_template: str = _option(
        "{question}\nPlease reason step by step, and put your final answer within \\boxed{}.",
        "The user turn of a question; {question} is replaced. Data with messages is taken as it is.",
    )
    reference_template: str = _option(
        "{solution}\n\n\\boxed{{answer}}",
        "A reference solution that does not verify gets this form; {solution} and {answer} are replaced.",
    )
    long_prompts: str = _option(
        "refuse", "A prompt that leaves no room for the budget in the context: refuse (stop and name it), or skip."
    )

    # Updates.
    questions_per_update: int | None = _option(
        None,
        "Questions of one update over all processes; gradient_accumulation_steps follows from it. Default: "
        "per_device_train_batch_size in every process and accumulation step.",
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
    trace_steps: int = _option(
        0, "Write full trajectories to traces.jsonl at the first update and every so many after it; 0 writes none."
    )
    showcase_questions: int = _option(
        4,
        "Questions that are answered before and after training, in two orders, for the report; 0: none.",
    )

    # Of TrainingArguments, where the defaults differ.
    learning_rate: float = _option(1e-6, "Peak learning rate.")
    lr_scheduler_type: str = _option("constant_with_warmup", "Constant after the warm-up.")
    per_device_train_batch_size: int = _option(
        32, "Questions a device works on at a time; at most its share of questions_per_update."
    )
    max_grad_norm: float = _option(1.0, "Gradients are clipped to this norm.")
    weight_decay: float = _option(0.0, "Weight decay of AdamW.")
    logging_steps: float = _option(1, "Updates between two lines of the log.")
    logging_nan_inf_filter: bool = _option(False, "A loss that is not finite stops the training instead.")
    remove_unused_columns: bool = _option(False, "The columns of the data are questions and answers, not model inputs.")
    # None only until `__post_init__`, which decides.
    bf16: bool | None = _option(  # type: ignore[assignment]
        None, "Autocast to bfloat16, over float32 weights. Default: where the GPU can."
    )
    report_to: str | list[str] | None = field(
        default="none", metadata={"help": "Trackers beside metrics.jsonl, which is always written."}
    )

    def __post_init__(self) -> None:
        """Check what the method needs, then what Transformers needs."""
        chosen_by_metric = self.load_best_model_at_end or self.lr_scheduler_type == "reduce_lr_on_plateau"
        if chosen_by_metric and self.metric_for_best_model is None:
            self.metric_for_best_model = "accuracy"
        if self.bf16 is None:
            self.bf16 = not self.use_cpu and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
        elif not can_bf16(self.bf16, self.use_cpu):
            raise ForkLeftError(
                f"{NO_BF16}; turn it off to train in float32 (--bf16 false), or autocast on the CPU (--use_cpu true)"
            )
        super().__post_init__()
        if self.data_seed is None:
            self.data_seed = self.seed
        self.objective_settings()
        self.named_verifier()
        check_choice("rollout_order", self.rollout_order, ORDERS)
        check_decoding(self.eval_decoding, "eval_decoding")
        check_choice("long_prompts", self.long_prompts, ("refuse", "skip"))
        check_choice("train_sampling_strategy", self.train_sampling_strategy, ("random", "sequential"))
        self._check_numbers()
        _check_trackers(self.report_to if isinstance(self.report_to, list) else [])
        if self.remove_unused_columns:
            raise ForkLeftError("remove_unused_columns would remove the questions; leave it off")
        if self.fp16 or self.deepspeed is not None:
            raise ForkLeftError("fp16 and DeepSpeed step where ForkLeft must be able not to; use bf16, and FSDP")
        if self.n_gpu > 1:
            raise ForkLeftError(
                f"found {self.n_gpu} GPUs in one process; start one process for each with torchrun or accelerate launch"
            )

        if self.questions_per_update is not None:
            self._divide_update(self.questions_per_update)

    def _check_numbers(self) -> None:
        check_writing(passes=self.passes)
        for name in _COUNTS:
            check_count(name, getattr(self, name))
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            if not (value >= 0 and math.isfinite(value)):
                raise ForkLeftError(f"{name} must not be negative, found {value}")
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ForkLeftError(f"{name} must be at least 0 and below 1, found {getattr(self, name)}")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ForkLeftError(
                f"max_steps must be at least 1, found {self.max_steps}; -1, the default, leaves it to num_train_epochs"
            )
        if self.max_steps == -1 and not (self.num_train_epochs > 0 and math.isfinite(self.num_train_epochs)):
            raise ForkLeftError(f"num_train_epochs must be above 0, found {self.num_train_epochs}")
        for name in ("save_at", "eval_at"):
            check_steps(name, getattr(self, name), None if self.max_steps == -1 else self.max_steps)

    def _divide_update(self, questions: int) -> None:
        """Set how many questions a process works on at a time, and how often, so that an update has `questions`."""
        processes, accumulated = self.world_size, self.gradient_accumulation_steps
        if questions < 1 or questions % processes:
            raise ForkLeftError(
                f"questions_per_update must be a multiple of the processes, which are {processes}, found {questions}; "
                "change either"
            )
        share = questions // processes
        at_once = min(self.per_device_train_batch_size, share)
        if share % at_once:
            fitting = ", ".join(str(size) for size in range(1, share + 1) if share % size == 0)
            raise ForkLeftError(
                f"questions_per_update {questions} gives each of {processes} process(es) {share} questions, which "
                f"batches of {at_once} do not divide; set per_device_train_batch_size to one of {fitting}"
            )
        steps = share // at_once
        if accumulated not in (1, steps):
            raise ForkLeftError(
                f"gradient_accumulation_steps is {accumulated}, but questions_per_update {questions} makes it {steps}; "
                "leave out one of the two"
            )
        self.per_device_train_batch_size, self.gradient_accumulation_steps = at_once, steps

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
    def answer_file(self) -> Path:
        """Where the teacher's answers are kept."""
        return Path(self.answer_cache or self.output_path / "teacher_answers.jsonl")

    def named_verifier(self) -> Verifier:
        """The verifier that the options name. Raises ForkLeftError if there is none."""
        return Verifier.of(self.verifier, self.letters)

    def objective_settings(self) -> ObjectiveSettings:
        """The part of the configuration that the objective knows."""
        # The settings themselves check these words.
        named: dict[str, Any] = {
            "supervision": self.supervision,
            "view": self.view,
            "geometry": self.geometry,
            "attention": self.read_attention,
        }
        return ObjectiveSettings(
            budget=self.max_new_tokens,
            rho=self.rho,
            mu=self.mu,
            delta=self.delta,
            rank_weight=self.rank_weight,
            **named,
            merge_stops=self.merge_stops,
            alpha=self.alpha,
        )


def can_bf16(bf16: bool | None, use_cpu: bool) -> bool:
    """Whether this machine has what `bf16` needs; a CPU can autocast if the user wants it."""
    return not bf16 or use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available()


def check_steps(name: str, steps: Sequence[int] | None, updates: int | None) -> None:
    """Raise ForkLeftError if a list names an update that a training of `updates` (None: unknown) does not have."""
    outside = [step for step in steps or () if step < 1 or (updates is not None and step > updates)]
    if outside:
        last = "on" if updates is None else f"to {updates}, the last"
        hint = "; eval_on_start evaluates before the first" if name == "eval_at" and 0 in outside else ""
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
