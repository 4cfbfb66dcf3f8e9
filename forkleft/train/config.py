"""`ForkLeftConfig`: the options of every run (`run_config.py`), and those of the method."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.rollout.orders import ORDERS, check_writing
from forkleft.train.run_config import RunConfig, check_not_negative, option
from forkleft.verify import Verifier
from forkleft.verify.kept import VERDICTS

# Batches up to this size are named to choose from; a recipe may hold any number.
_LISTED = 1000


@dataclass
class ForkLeftConfig(RunConfig):
    """How ForkLeft trains. Defaults are the paper's where it gives a value, else ours; `docs/method.md` explains the
    symbols. Everything in `RunConfig`, and with it in `transformers.TrainingArguments`, works as usual.
    """

    # Writing.
    rollout_order: str = option(
        "high_entropy",
        "Which positions the student commits first in training: high_entropy (the method), low_entropy, …",
    )
    passes: int = option(32, "R: passes in which a block is written; the block size or more gives one token a pass.")

    # The teacher.
    teacher_max_new_tokens: int = option(2048, "The budget of the teacher's own answers, in tokens.")
    answer_cache: str | None = option(
        None,
        "File (.jsonl) that keeps the teacher's answers; processes and runs may share it. Default: in output_dir.",
    )

    # Supervision.
    verifier: str = option(
        "math",
        "How answers are checked: math, opdlm (as the paper's scorer does), choice, lab, exact (the "
        "whole response), or your own function as package.module:function (in a file, with --trust-verifier).",
    )
    supervision: str = option(
        ObjectiveSettings.supervision,
        "routed: by the two verdicts (the method). opd, sft, sft+opd, mix: every question alike, for comparison.",
    )
    view: str = option(
        ObjectiveSettings.view,
        "How the student is read against the teacher: prefix (the method), target_masked (the B view).",
    )
    geometry: str = option(
        ObjectiveSettings.geometry,
        "What readouts show: truncated (what is known, and one mask), canvas (masks to the end of the block).",
    )
    read_attention: str = option(ObjectiveSettings.attention, "Attention in the prefix readout: native, or full.")
    rho: float = option(ObjectiveSettings.rho, "ρ: share of a response's positions that are supervised.")
    mu: float = option(ObjectiveSettings.mu, "μ: nats by which two contrasts must differ to be ranked.")
    delta: float = option(ObjectiveSettings.delta, "δ: margin of the ranking loss.")
    rank_weight: float = option(ObjectiveSettings.rank_weight, "λ: weight of the ranking loss.")
    alpha: float = option(
        ObjectiveSettings.alpha, "α: weight of the teacher's distribution in the mixture (supervision mix)."
    )
    merge_stops: bool = option(
        ObjectiveSettings.merge_stops,
        "Count all stop ids as one event in the KL, where student and teacher name EOS differently.",
    )

    # Data.
    long_prompts: str = option(
        "refuse", "A prompt that leaves no room for the budget in the context: refuse (stop and name it), or skip."
    )

    allow_unadapted: bool = option(
        False, "Train a converted student that was never adapted (forkleft adapt), though it writes noise."
    )

    # Updates.
    questions_per_update: int | None = option(
        None,
        "Questions of one update over all processes; gradient_accumulation_steps follows from it. Default: "
        "per_device_train_batch_size in every process and accumulation step.",
    )

    # Records.
    trace_steps: int = option(
        0, "Write full trajectories to traces.jsonl at the first update and every so many after it; 0 writes none."
    )
    showcase_questions: int = option(
        4,
        "Questions that are answered before and after training, in two orders, for the report; 0: none.",
    )

    def __post_init__(self) -> None:
        """Check what the method needs, and before it what every run needs."""
        chosen_by_metric = self.load_best_model_at_end or self.lr_scheduler_type == "reduce_lr_on_plateau"
        if chosen_by_metric and self.metric_for_best_model is None:
            self.metric_for_best_model = "accuracy"
        super().__post_init__()
        self.objective_settings()
        self.named_verifier()
        check_choice("rollout_order", self.rollout_order, ORDERS)
        check_choice("long_prompts", self.long_prompts, ("refuse", "skip"))
        check_writing(passes=self.passes)
        check_count("teacher_max_new_tokens", self.teacher_max_new_tokens)
        for name in ("trace_steps", "showcase_questions"):
            check_not_negative(name, getattr(self, name))
        if self.answer_file.suffix != ".jsonl":
            # A recipe may be somebody else's, and must not write what a shell or another program reads.
            raise ForkLeftError(
                f"answer_cache must be a file whose name ends in .jsonl, found {self.answer_cache!r:.200}; rename it"
            )
        if self.questions_per_update is not None:
            self._divide_update(self.questions_per_update)

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
            fitting = ", ".join(str(size) for size in range(1, min(share, _LISTED) + 1) if share % size == 0)
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
    def answer_file(self) -> Path:
        """Where the teacher's answers are kept."""
        return Path(self.answer_cache or self.output_path / "teacher_answers.jsonl")

    def named_verifier(self) -> Verifier:
        """The verifier that the options name. Raises ForkLeftError if there is none."""
        return self.verifier_named(self.verifier)

    @property
    def private_files(self) -> tuple[str, ...]:
        """The teacher's answers, which may not be ours to publish, and verdicts that nobody else needs."""
        return (self.answer_file.name, VERDICTS)

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
