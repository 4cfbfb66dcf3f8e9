"""Whether a checkpoint may be resumed: it must belong to the same run, and hold all that the run needs."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from forkleft.digests import differences, fingerprint, json_digest, text_digest
from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS, read_regular
from forkleft.students.student import Student
from forkleft.train import checkpoints
from forkleft.train.data import Example
from forkleft.train.run_config import RunConfig
from forkleft.train.run_files import read_run

# Options that decide what is learned, besides those of the method: a run cannot resume with other values.
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
# Checkpoints without this entry are from the time when `math` was OPDLM's scorer, and choices were read differently.
_FORMAT = 2
# Options of the method that are not compared. In place of questions_per_update, the batch size and the accumulation
# that follow from it are.
_INDIFFERENT = {
    *("rollout_batch_size", "answer_cache", "questions_per_update"),
    *("trace_steps", "showcase_questions", "save_at", "eval_at", "allow_unadapted", "accuracy_questions"),
}

# Bytes of the Trainer's state, which holds the whole log.
_LARGEST_STATE = 1 << 30

# How an update is divided. Other numbers with the same product give the same questions to each update. Batches that
# are filled (`tokens_per_batch`) have no such size.
_DIVISION = ("processes", "per_device_train_batch_size", "gradient_accumulation_steps")
_FILLED_DIVISION = ("processes", "gradient_accumulation_steps")
# Options by which rows are refused. A run that did so came only to the first of these, up to which all rules are equal.
_REFUSING = ("long_rows", "bad_rows")

# The entry of a run that says when it was made longer under a schedule that depends on its length.
LENGTHENED = "lengthened"
# The entry of a checkpoint that says that the evaluation of its update was not made, because the run was stopped.
UNEVALUATED = "unevaluated"
_NOT_COMPARED = (LENGTHENED, UNEVALUATED)
# Schedules that do not depend on the length of the run.
_WITHOUT_END = ("constant", "constant_with_warmup", "inverse_sqrt")


def decisive_options(args: RunConfig) -> dict[str, Any]:
    """What decides what a run learns: the part in its options."""
    own = {field.name for field in fields(args)} - {field.name for field in fields(TrainingArguments)}
    values = {name: getattr(args, name) for name in [*_DECISIVE, *sorted(own - _INDIFFERENT)]}
    return _as_json(values | {"processes": args.world_size, "format": _FORMAT})


def questions_digest(examples: Sequence[Example]) -> str:
    """Tells whether questions are the same."""
    named = ("id", "messages", "answer", "reference")
    return json_digest([{name: getattr(example, name) for name in named} for example in examples])


def decisive_data(student: Student, **digests: str) -> dict[str, Any]:
    """What decides what a run learns: the part in the data, by its digests, and in the student, without its weights."""
    return _as_json(
        {
            "family": asdict(student.family),
            "chat_template": text_digest(str(student.text_tokenizer.chat_template)),
            "stop_ids": student.vocabulary.stop_ids,
            **digests,
        }
    )


def decisive(
    args: RunConfig, student: Student, model: torch.nn.Module, *, digests: Mapping[str, str], **others: Any
) -> dict[str, Any]:
    """All that decides what a run learns, as a checkpoint keeps it.

    digests: of the data; others: what else decides, such as the identity of the teacher.
    """
    adapters = getattr(model, "peft_config", {})
    values: dict[str, Any] = {**others, "adapters": {name: vars(config) for name, config in adapters.items()}}
    if adapters:
        # A checkpoint holds only the adapters; all other weights come from the given student.
        values["student"] = fingerprint(student.model)
    return decisive_options(args) | decisive_data(student, **digests) | _as_json(values)


def name_of(found: Any) -> str:
    """A function, class or object of a user's, by its name in its module."""
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{named.__module__}:{named.__qualname__}"


def find_checkpoint(output: Path, resume: str | bool, *, digests: bool = True) -> Path:
    """The checkpoint from which a run resumes: the newest whole one (true), or the folder of that name.

    digests: check the digests of all its files. Raises ForkLeftError if there is none, if it is damaged, if it is not
    of the run in `output`, or if one that was named has later ones behind it: the run will write those anew.
    """
    if resume is True or resume == "true":
        return checkpoints.newest_whole(output, digests=digests)
    folder = Path(str(resume))
    checkpoints.check_whole(folder, digests=digests)
    if folder.resolve().parent != output.resolve():
        raise ForkLeftError(
            f"{folder} is not of the run in {output}: a run goes on in its own folder, with its metrics and its other "
            "checkpoints; set output_dir to that, or start a new run from these weights"
        )
    there = checkpoints.steps(output)
    named = next((step for step, path in there.items() if path.name == folder.resolve().name), 0)
    later = [path for step, path in there.items() if step > named]
    if whole := [path.name for path in later if checkpoints.fault(path, digests=False) is None]:
        raise ForkLeftError(
            f"{output} holds {', '.join(whole)} behind {folder.name}, which a run that goes on from there would "
            "remove; move them away, or resume from the newest (true)"
        )
    return folder


def check_resumable(folder: Path, ours: Mapping[str, Any], *, in_part: bool = False) -> str | None:
    """Raise ForkLeftError if a checkpoint belongs to another configuration, or has no optimiser state.

    ours: what decides the run; in_part: `ours` is not complete yet, and what is missing is not compared.
    The run may have another number of processes now, if its updates have the same questions as before. It may treat
    rows that it refused before in another way. It may be longer. If its schedule then differs from that of a run which
    was as long from the start, the result is a text for people that says so; else None.
    """
    theirs = {name: value for name, value in _as_of_today(read_run(folder) or {}).items() if name not in _NOT_COMPARED}
    if in_part:
        theirs = {name: value for name, value in theirs.items() if name in ours}
    differing = list(differences(theirs, ours))
    allowed = {name for name, was, _ in differing if name in _REFUSING and was == "refuse"}
    if _is_filled(ours):
        allowed.add("per_device_train_batch_size")
    if divided_anew(theirs, ours):
        allowed |= set(_DIVISION)
    differing = [change for change in differing if change[0] not in allowed]
    longer = [change for change in differing if _is_longer(theirs, ours, *change)]
    if others := [change for change in differing if change not in longer]:
        changes = "; ".join(f"{name} was {was!r}, is {now!r}" for name, was, now in others)
        hint = ""
        if any(name == "max_steps" for name, _, _ in others):
            hint = " (max_steps may grow, and not shrink)"
        raise ForkLeftError(
            f"{folder} belongs to another configuration: {changes}{hint}; restore these, or start a new run"
        )
    if not list(folder.glob("optimizer*")):
        raise ForkLeftError(
            f"{folder} holds no optimiser state (it was saved with save_only_model), so that the run cannot go on as "
            "it would have; start a new run from its weights"
        )
    if not longer or _knows_no_end(ours):
        return None
    return " and ".join(f"{name} was {was:g} before" for name, was, _ in longer)


def step_of(checkpoint: Path) -> int:
    """After how many updates a checkpoint was written. Raises ForkLeftError if its state does not say so."""
    path = checkpoint / "trainer_state.json"
    try:
        state = json.loads(read_regular(path, _LARGEST_STATE))
        step = state.get("global_step") if isinstance(state, dict) else None
        if not isinstance(step, int) or step < 0:
            raise ValueError(f"expected global_step, a number of updates, found {step!r:.40}")
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} cannot be read ({error}); resume from another checkpoint") from error
    return step


def divided_anew(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Whether two runs divide their updates differently, and these have the same questions all the same."""
    names = _FILLED_DIVISION if _is_filled(ours) else _DIVISION
    before, now = ([run.get(name) or 0 for name in names] for run in (theirs, ours))
    return before != now and math.prod(before) == math.prod(now) > 0


def _is_filled(run: Mapping[str, Any]) -> bool:
    return run.get("tokens_per_batch") is not None


def _is_longer(theirs: Mapping[str, Any], ours: Mapping[str, Any], name: str, was: Any, now: Any) -> bool:
    if name == "max_steps":
        return was is not None and 0 < was < now
    by_epochs = theirs.get("max_steps") == ours.get("max_steps") == -1
    return name == "num_train_epochs" and by_epochs and was is not None and was < now


def _knows_no_end(run: Mapping[str, Any]) -> bool:
    """Whether the learning rate of an update does not depend on how many there will be."""
    # A warm-up below 1 is a share of all updates.
    return run["lr_scheduler_type"] in _WITHOUT_END and not 0 < run["warmup_steps"] < 1


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values as they would be read back from a file."""
    return json.loads(json.dumps(values, default=_plain))


def _as_of_today(run: dict[str, Any]) -> dict[str, Any]:
    """What an older checkpoint says about its run, in today's format.

    Such a run resumes with the verifier that it began with, under its name of today.
    """
    if not run or run.get("format") == _FORMAT:
        return run
    names = {"math": "opdlm", "choice": "choice (by other rules)"}
    verifier = run.get("verifier")
    return run | {"format": _FORMAT, "verifier": names.get(str(verifier), verifier)}


def _plain(value: Any) -> Any:
    """Values that JSON cannot write. Sets are sorted: the order of strings in a set differs between processes."""
    return sorted(value, key=str) if isinstance(value, set | frozenset) else str(value)
