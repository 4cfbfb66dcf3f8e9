"""What is known about a run before its models are loaded: whether it can start, and what it would do.

Loading a teacher of 30 billion weights takes minutes. A mistake should show before that.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import get_token
from transformers import PreTrainedModel, Trainer
from transformers.optimization import get_scheduler
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import OptimizerNames

from forkleft.errors import ForkLeftError
from forkleft.students import Student
from forkleft.teacher import Teacher
from forkleft.train.adapt import data_digests, sample_batches
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_data import Samples, SampleStream
from forkleft.train.batches import Batches, batches_of
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example
from forkleft.train.folders import RunFolder
from forkleft.train.recipes import AdaptRecipe, Recipe, StudentRecipe
from forkleft.train.resume import (
    check_resumable,
    decisive_data,
    decisive_options,
    find_checkpoint,
    questions_digest,
)
from forkleft.train.run_config import RunConfig

# More updates than this are shown as an interval.
_LISTED = 6


@dataclass(frozen=True)
class Prepared:
    """A run that can start. student, teacher: without weights; examples, held_out: its questions."""

    student: Student
    teacher: Teacher
    examples: list[Example]
    held_out: list[Example] | None


@dataclass(frozen=True)
class AdaptData:
    """The data of an adaptation that can start."""

    train: Samples | SampleStream
    held_out: Samples | None


def check_options(recipe: StudentRecipe, config: RunConfig) -> None:
    """Raise ForkLeftError for options that do not fit together, or that Transformers would refuse later."""
    evaluated = [name for name in ("eval_at", "eval_on_start") if getattr(config, name)]
    evaluated += ["eval_strategy"] if config.eval_strategy != "no" else []
    if evaluated and recipe.eval_data is None:
        raise ForkLeftError(
            f"{evaluated[0]} asks for evaluations, and there is no eval_data; name it, or leave that out"
        )
    if config.push_to_hub and not (config.hub_token or get_token()):
        raise ForkLeftError("push_to_hub needs a token of the hub; log in (hf auth login), or leave it out")
    weight = torch.nn.Parameter(torch.zeros(1))
    # Only the names of the model's modules matter.
    stand_in: Any = torch.nn.Linear(1, 1)
    try:
        # Making it shows which packages and arguments it needs.
        Trainer.get_optimizer_cls_and_kwargs(config, stand_in)
    except (ValueError, ImportError, TypeError) as error:
        raise ForkLeftError(
            f"the optimiser {OptimizerNames(config.optim).value} cannot be made: {error}; choose another optim"
        ) from error
    updates, given = max(1, config.max_steps), config.lr_scheduler_kwargs
    try:
        get_scheduler(
            config.lr_scheduler_type,
            torch.optim.SGD([weight], lr=config.learning_rate),
            num_warmup_steps=config.get_warmup_steps(updates),
            num_training_steps=updates,
            scheduler_specific_kwargs=given if isinstance(given, dict) else None,
        )
    except (ValueError, TypeError) as error:
        raise ForkLeftError(
            f"the schedule {SchedulerType(config.lr_scheduler_type).value} cannot be made of lr_scheduler_kwargs "
            f"{config.lr_scheduler_kwargs}: {error}"
        ) from error


def check_folder(
    config: RunConfig, folder: RunFolder, data: Mapping[str, Any] | None = None
) -> tuple[Path | None, str | None]:
    """The checkpoint to resume, if any, and what a changed length means (`check_resumable`).

    folder: the output folder; data: what decides the run besides its options, once it is known (`decisive_data`).
    Raises ForkLeftError if the folder cannot be written to, holds the files of another run, or has nothing to resume,
    as far as this shows without weights.
    """
    folder.check_usable()
    run = decisive_options(config) | dict(data or {})
    if not config.resume_from_checkpoint:
        folder.check_new(run)
        return None, None
    checkpoint = find_checkpoint(folder.path, config.resume_from_checkpoint, digests=False)
    return checkpoint, check_resumable(checkpoint, run, in_part=True)


def check_updates(config: RunConfig, batches: Batches | None) -> int:
    """How many updates a run makes. Raises ForkLeftError if it makes fewer than its options name.

    batches: of an epoch; None for a source without a length, where `max_steps` decides.
    """
    updates = config.max_steps
    if updates == -1:
        if batches is None:
            raise ForkLeftError("a source that is streamed has no known length; say with max_steps how long to train")
        updates = math.ceil(config.num_train_epochs * math.ceil(len(batches) / config.gradient_accumulation_steps))
    config.check_length(updates)
    return updates


def plan_of(recipe: Recipe, config: ForkLeftConfig, folder: RunFolder, found: Prepared) -> Iterator[tuple[str, str]]:
    """What a run would do, as rows of a name and a text."""
    data = decisive_data(found.student, questions=questions_digest(found.examples))
    updates = check_updates(config, batches_of(config, len(found.examples)))
    together = config.train_batch_size * config.gradient_accumulation_steps * config.world_size
    yield from _student_lines(recipe, found.student)
    yield "teacher", f"{recipe.teacher}, {_size(found.teacher.model)} in {recipe.teacher_dtype}"
    if recipe.teacher_url is not None:
        yield "", f"on {recipe.teacher_url}, except its output head"
    if recipe.answers_url is not None:
        yield "", f"its answers from {recipe.answers_url}"
    solved = sum(example.reference is not None for example in found.examples)
    yield "questions", f"{len(found.examples)} of {recipe.train_data}, {solved} with a reference solution"
    if found.held_out is not None:
        yield "", f"{len(found.held_out)} of {recipe.eval_data} for evaluation"
    passes = updates * together / len(found.examples)
    yield "updates", f"{updates} of {together} questions, {passes:.3g} times through the data"
    yield from _run_lines(recipe, config, folder, data, updates, _counted(config.train_batch_size, "question"))


def adapt_plan(
    recipe: AdaptRecipe, config: AdaptConfig, folder: RunFolder, student: Student, data: AdaptData
) -> Iterator[tuple[str, str]]:
    """What an adaptation would do, as rows of a name and a text."""
    batches = None if isinstance(data.train, SampleStream) else sample_batches(student, data.train, config)
    updates = check_updates(config, batches)
    yield from _student_lines(recipe, student)
    if isinstance(data.train, SampleStream):
        yield "data", f"{recipe.train_data}, read while training, {data.train.kind}"
    else:
        yield "data", f"{len(data.train.samples)} rows of {recipe.train_data}, {data.train.kind}"
    if data.held_out is not None:
        yield "", f"{len(data.held_out.samples)} rows of {recipe.eval_data} for evaluation"
    at_once = _counted(config.train_batch_size, "row")
    if config.tokens_per_batch is not None:
        at_once = f"up to {config.tokens_per_batch} tokens"
    passes = "" if batches is None else f", {updates * config.gradient_accumulation_steps / len(batches):.3g} times"
    causal = ", all of next-token prediction" if config.causal_only else ""
    if config.causal_steps:
        causal = f", the first {config.causal_steps} of next-token prediction"
    yield "updates", f"{updates}{causal}{passes and f'{passes} through the data'}"
    yield from _run_lines(recipe, config, folder, decisive_data(student, **data_digests(data.train)), updates, at_once)


def _student_lines(recipe: StudentRecipe, student: Student) -> Iterator[tuple[str, str]]:
    family = student.family
    trained = "all weights" if recipe.lora_rank is None else f"adapters of rank {recipe.lora_rank}"
    yield "student", f"{recipe.student}, {_size(student.model)}, {trained} trained in float32"
    yield "", f"{family.attention} attention, blocks of {family.block_size}, anchor {family.anchor}, {family.head} head"


def _run_lines(
    recipe: StudentRecipe, config: RunConfig, folder: RunFolder, data: Mapping[str, Any], updates: int, at_once: str
) -> Iterator[tuple[str, str]]:
    """Where a run computes, writes and saves. at_once: what a device works on at a time."""
    checkpoint, other_course = check_folder(config, folder, data)
    devices = [
        f"{_counted(config.world_size, 'process', 'processes')} on {config.device.type}",
        f"{at_once} at a time",
        _counted(config.gradient_accumulation_steps, "accumulation step"),
        *(["bf16 autocast"] if config.bf16 else []),
    ]
    yield "devices", ", ".join(devices)
    yield "output", str(folder.path.absolute())
    strategy = SaveStrategy(config.save_strategy).value
    yield "", f"checkpoints {_when(strategy, config.save_steps, config.save_at, updates)}"
    if recipe.eval_data is not None:
        strategy, at, delay = IntervalStrategy(config.eval_strategy).value, config.eval_at, config.eval_delay
        yield "", f"evaluations {_when(strategy, config.eval_steps, at, updates, delay=delay)}"
        if config.eval_on_start:
            yield "", "and one evaluation before the first update"
    if checkpoint is not None:
        yield "", f"goes on from {checkpoint.name}"
    if other_course is not None:
        yield "", f"on another schedule than before: {other_course} (docs/training.md)"


def _counted(number: int, name: str, several: str | None = None) -> str:
    return f"{number} {name if number == 1 else several or f'{name}s'}"


def _when(strategy: str, steps: float | None, at: list[int] | None, updates: int, *, delay: float = 0) -> str:
    """After which updates a run does something, as text. `steps` below 1 are a share of all; delay: none earlier."""
    listed = set(at or ())
    times = {"epoch": ["after every epoch"], "best": ["at the best"]}.get(strategy, [])
    if strategy == "steps" and steps is not None:
        every = int(steps) if steps >= 1 else math.ceil(updates * steps)
        # Transformers adds the last update.
        found = [step for step in (*range(every, updates, every), updates) if step >= delay]
        if len(found) > _LISTED:
            times, listed = [f"every {every} updates"], listed | {step for step in found if step % every}
        else:
            listed |= set(found)
    if listed:
        times = [*times, f"after {'update' if len(listed) == 1 else 'updates'} {', '.join(map(str, sorted(listed)))}"]
    return " and ".join(times) or "none"


def _size(model: PreTrainedModel) -> str:
    return f"{sum(parameter.numel() for parameter in model.parameters()):,} weights"
