"""The lab's shipped models: ordinary Transformers folders inside the package, each with a card.

A card (`card.json`, and `README.md` for people) gives the data, the recipe, the exact command that trained the weights,
their digest, and the accuracy measured when the training ended.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCardData
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, Qwen3ForCausalLM

from forkleft.digests import file_digest
from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import wilson_interval
from forkleft.files import write_json, write_text
from forkleft.lab.questions import HELD_OUT_SETS
from forkleft.students import Family, Student
from forkleft.students.bundled import model_path
from forkleft.students.loading import write_sidecar
from forkleft.teacher import Teacher
from forkleft.vocabulary import resolve_mask_id, resolve_stop_ids

TEACHERS = ("teacher-strong", "teacher-medium", "teacher-weak")
# A family's students differ in their pretraining seed.
STUDENTS = (
    *("student-block", "student-block-2", "student-block-3"),
    *("student-shifted", "student-shifted-2", "student-shifted-3"),
)
MODELS = TEACHERS + STUDENTS
# Questions at a time. The models are small.
BATCH_SIZE = 128
# Blocks of 32 hold four steps of a chain. A result is told by the step after it only where both are in one block: that
# is so for three results of four. Steps fall differently into the blocks of the second family, which count from the
# start of the sequence.
FAMILIES = {
    "block": Family("block", block_size=32, anchor="prompt_end", head="same"),
    "shifted": Family("block", block_size=32, anchor="absolute", head="shifted"),
}

_WEIGHT_FILE = "model.safetensors"


@dataclass(frozen=True)
class Tally:
    """Right answers out of all, on one held-out set."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float:
        """A fraction in [0, 1]."""
        return self.correct / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval."""
        return wilson_interval(self.correct, self.total)


@dataclass(frozen=True)
class Card:
    """What is known of a lab model."""

    name: str
    lab_version: int
    command: str
    recipe: dict[str, Any]
    accuracy: dict[str, Tally]
    # A student's family; None for an autoregressive model.
    family: str | None = None
    # Known once the weights are written.
    parameters: int = 0
    sha256: str = ""


@dataclass(frozen=True)
class LabModel:
    """A loaded lab model, in evaluation mode."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    card: Card

    @cached_property
    def student(self) -> Student | None:
        """The model as a diffusion student; None if it is autoregressive."""
        return None if self.card.family is None else lab_student(self.model, self.tokenizer, FAMILIES[self.card.family])

    @cached_property
    def evaluated(self) -> Student | Teacher:
        """The model as evaluations take it: a student, or a teacher."""
        stop_ids = resolve_stop_ids(self.tokenizer, self.model.generation_config)
        return self.student or Teacher(self.model, self.tokenizer, stop_ids=stop_ids, batch_size=BATCH_SIZE)


def lab_student(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, family: Family) -> Student:
    """A lab model as a student, usually of one of the lab's families."""
    stop_ids = resolve_stop_ids(tokenizer, model.generation_config)
    return Student.from_model(model, family, resolve_mask_id(tokenizer, model.config), stop_ids, tokenizer=tokenizer)


def load_model(name: str) -> LabModel:
    """Load a shipped model. Raises ForkLeftError if its name is unknown or its files are missing or damaged."""
    return load_folder(model_path(name))


def load_folder(folder: Path) -> LabModel:
    """Load a lab model that `forkleft.lab.pretrain` wrote, checking its weights against its card."""
    card = read_card(folder)
    weights = folder / _WEIGHT_FILE
    if not weights.is_file():
        raise ForkLeftError(f"{weights} is missing; reinstall forkleft, or train it again: {card.command}")
    if (found := file_digest(weights)) != card.sha256:
        raise ForkLeftError(
            f"{weights} is damaged: its card gives sha256 {card.sha256[:12]}…, found {found[:12]}…; "
            f"reinstall forkleft, or train it again: {card.command}"
        )
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        # Without a configuration Transformers would build a model of its default size: gigabytes.
        if not (folder / name).is_file():
            raise ForkLeftError(f"{folder / name} is missing; reinstall forkleft, or train it again: {card.command}")
    try:
        model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return LabModel(model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False), card)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ForkLeftError(f"{folder} is damaged ({reason}); reinstall forkleft, or train it again") from error


def read_card(folder: Path) -> Card:
    """The card of a lab model, without loading its weights."""
    path = folder / "card.json"
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["accuracy"] = {name: Tally(**fields["accuracy"][name]) for name in HELD_OUT_SETS}
        return Card(**fields)
    except FileNotFoundError:
        raise ForkLeftError(f"{path} is missing: {folder} holds no lab model; reinstall forkleft") from None
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ForkLeftError(f"{path} is damaged ({error}); reinstall forkleft") from error


def save_model(folder: Path, lab_model: LabModel) -> None:
    """Write model, tokenizer and card to `folder`; the card's digest and size are taken from what was written."""
    model, tokenizer = lab_model.model, lab_model.tokenizer
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if lab_model.student is not None:
        write_sidecar(folder, lab_model.student)
    card = asdict(lab_model.card) | {"parameters": model.num_parameters(), "sha256": file_digest(folder / _WEIGHT_FILE)}
    write_json(folder / "card.json", card)
    write_text(folder / "README.md", _page(read_card(folder)))


def _page(card: Card) -> str:
    rows = []
    for name, tally in card.accuracy.items():
        low, high = tally.interval
        rows.append(f"| {name} | {tally.correct} / {tally.total} | {tally.accuracy:.1%} | {low:.1%} – {high:.1%} |")
    kind = "An autoregressive model, stock `Qwen3ForCausalLM`,"
    if card.family is not None:
        kind = f"A diffusion model of the lab's family `{card.family}`, stock `Qwen3ForCausalLM` weights"
    shares = ":".join(f"{share:g}" for share in card.recipe["shares"])
    return "\n".join(
        [
            "---",
            ModelCardData(library_name="transformers", license="apache-2.0").to_yaml(),
            "---",
            "",
            f"# {card.name} (ForkLeft lab, version {card.lab_version})",
            "",
            f"{kind} of {card.parameters:,} parameters, trained from nothing on the lab's chains "
            f"of 2 to 6 steps (operators + : - : * in shares {shares}; {card.recipe['choice_share']:.0%} of the "
            f"questions two-step multiple-choice): {_steps(card)} of {card.recipe['batch']} questions, "
            f"seed {card.recipe['seed']}, {card.recipe['threads']} thread(s).",
            "",
            "Command:",
            "",
            f"    {card.command}",
            "",
            "Accuracy on held-out questions when the training ended (95% Wilson interval):",
            "",
            "| set | correct | accuracy | interval |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
            f"sha256 of `{_WEIGHT_FILE}`: `{card.sha256}`",
            "",
        ]
    )


def _steps(card: Card) -> str:
    steps, causal = card.recipe["steps"], card.recipe["causal_steps"]
    if not causal:
        return f"{steps:,} steps"
    last = card.recipe.get("last_steps", 0)
    end = f" and {last:,} with blocks of 32, in which `*` is mostly guessed," if last else ","
    return f"{causal:,} steps of next-token prediction, then {steps:,} of denoising{end}"
