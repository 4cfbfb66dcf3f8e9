"""Whether a checkpoint may be resumed: it must belong to the same run, and hold all that the run needs to go on."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from forkleft.config import ForkLeftConfig
from forkleft.data import Example
from forkleft.errors import ForkLeftError
from forkleft.folders import read_run
from forkleft.identity import fingerprint
from forkleft.students.student import Student

# What decides what is learned, beside the options of the method: a run is not resumed with other values.
_DECISIVE = (
    "seed",
    "data_seed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "dataloader_drop_last",
    "train_sampling_strategy",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "num_train_epochs",
    "max_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "optim_args",
    "bf16",
)
# Checkpoints that name none were written when `math` was the name of OPDLM's scorer, and choices were read otherwise.
_FORMAT = 2
# The batch size and the accumulation that follow from questions_per_update are compared instead of it.
_INDIFFERENT = {"rollout_batch_size", "answer_cache", "trace_steps", "save_at", "eval_at", "questions_per_update"}


def decisive(
    args: ForkLeftConfig,
    student: Student,
    model: torch.nn.Module,
    examples: Sequence[Example],
    *,
    teacher: str,
    answerer: str,
    processes: int,
) -> dict[str, Any]:
    """All that decides what a run learns, as it is kept in a checkpoint. teacher, answerer: their identities."""
    own = {field.name for field in fields(ForkLeftConfig)} - {field.name for field in fields(TrainingArguments)}
    values = {name: getattr(args, name) for name in [*_DECISIVE, *sorted(own - _INDIFFERENT)]}
    values |= {"family": asdict(student.family), "teacher": teacher, "answerer": answerer, "processes": processes}
    template = str(student.tokenizer.chat_template).encode()
    values |= {"chat_template": hashlib.sha256(template).hexdigest(), "stop_ids": student.vocabulary.stop_ids}
    adapters = getattr(model, "peft_config", {})
    values["adapters"] = {name: vars(config) for name, config in adapters.items()}
    if adapters:
        # A checkpoint holds the adapters alone; all other weights come from the student that is given.
        values["student"] = fingerprint(student.model)
    questions = [asdict(example) for example in examples]
    values["format"] = _FORMAT
    values["questions"] = hashlib.sha256(json.dumps(questions, sort_keys=True).encode()).hexdigest()
    return json.loads(json.dumps(values, default=_plain))


def check_resumable(folder: Path, ours: dict[str, Any]) -> None:
    """Raise ForkLeftError if a checkpoint belongs to another configuration, or has no optimiser state."""
    theirs = _as_of_today(read_run(folder) or {})
    differing = list(_differing(theirs, ours))
    if differing:
        told = "; ".join(f"{name} was {was!r}, is {now!r}" for name, was, now in differing)
        raise ForkLeftError(f"{folder} belongs to another configuration: {told}; restore these, or start a new run")
    if not list(folder.glob("optimizer*")):
        raise ForkLeftError(
            f"{folder} holds no optimiser state (it was saved with save_only_model), so that the run cannot go on as "
            "it would have; start a new run from its weights"
        )


def _as_of_today(run: dict[str, Any]) -> dict[str, Any]:
    """What an earlier checkpoint says of its run in the words of this format.

    Such a run is resumed with the verifier that it began with, under the name that this has now.
    """
    if not run or run.get("format") == _FORMAT:
        return run
    names = {"math": "opdlm", "choice": "choice (by other rules)"}
    return run | {"format": _FORMAT, "verifier": names.get(run["verifier"], run["verifier"])}


def _plain(value: Any) -> Any:
    """What JSON has no notation for. Sets are sorted: the order of strings in a set is another in every process."""
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)


def _differing(theirs: dict[str, Any], ours: dict[str, Any], within: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old and new value of all that differs; of dictionaries in both, only the differing entries."""
    for name in ours | theirs:
        was, now = theirs.get(name), ours.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            yield from _differing(was, now, f"{within}{name}.")
        elif was != now:
            yield f"{within}{name}", was, now
