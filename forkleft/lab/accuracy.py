"""How often the lab's models are right on the held-out sets.

    forkleft lab accuracy

Two protocols, as for the real benchmarks. On `chain-*` the model writes its answer: a teacher greedily, a student with
its native sampler, most confident positions first. On `choice-*` the offered letters are compared by their likelihood
in the answer slot after the assistant prefix `"answer": "`; a student sees masks from the slot to the end of the block,
as it does when it writes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from forkleft import prompts
from forkleft.lab.models import LabModel, Tally, load_model
from forkleft.lab.questions import LETTERS, Question, held_out
from forkleft.objective.readouts import Reading, prefix_hidden
from forkleft.rollout import generate
from forkleft.verify import extract

ANSWER_PREFIX = '"answer": "'
# Six steps of eight characters, the marked answer and the stop token, and some room to go wrong in.
MAX_NEW_TOKENS = 64
_BATCH = 128


@dataclass(frozen=True)
class Record:
    """What a model did with one question. `response` is None in the slot protocol, where nothing is written."""

    id: str
    response: str | None
    answer: str | None
    correct: bool
    tokens: int
    forwards: int


@dataclass(frozen=True)
class Measurement:
    """A record for each question of a set."""

    records: tuple[Record, ...]

    @property
    def tally(self) -> Tally:
        """Right answers out of all."""
        return Tally(sum(record.correct for record in self.records), len(self.records))

    @property
    def forwards_per_token(self) -> float:
        """Forwards of the model for each token of the responses."""
        return sum(record.forwards for record in self.records) / sum(record.tokens for record in self.records)


def measure(lab_model: LabModel, items: Sequence[Question]) -> Measurement:
    """What a model does with a set of questions, under the set's protocol."""
    answer = {
        ("generated", False): _greedy_records,
        ("generated", True): _native_records,
        ("slot", False): _causal_slot_records,
        ("slot", True): _masked_slot_records,
    }[protocol_of(items), lab_model.student is not None]
    records: list[Record] = []
    for start in range(0, len(items), _BATCH):
        records += answer(lab_model, items[start : start + _BATCH])
    return Measurement(tuple(records))


def protocol_of(items: Sequence[Question]) -> str:
    """How a set is measured: `generated` answers, or likelihood in the answer `slot`."""
    return "generated" if items[0].choices is None else "slot"


def prompt_ids(lab_model: LabModel, items: Sequence[Question]) -> list[list[int]]:
    """Each question through the chat template."""
    return [prompts.prompt_ids(lab_model.tokenizer, [{"role": "user", "content": item.prompt}]) for item in items]


@torch.inference_mode()
def _greedy_records(lab_model: LabModel, items: Sequence[Question]) -> list[Record]:
    tokenizer = lab_model.tokenizer
    batch = tokenizer.pad({"input_ids": prompt_ids(lab_model, items)}, padding_side="left", return_tensors="pt")
    ids_BT = lab_model.model.generate(**batch, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    written_BT = ids_BT[:, batch["input_ids"].shape[1] :]
    lengths = (written_BT != tokenizer.pad_token_id).sum(dim=1).tolist()
    texts = tokenizer.batch_decode(written_BT, skip_special_tokens=True)
    return [_written(item, text, n, n) for item, text, n in zip(items, texts, lengths, strict=True)]


def _native_records(lab_model: LabModel, items: Sequence[Question]) -> list[Record]:
    trajectories = generate(
        lab_model.student, prompt_ids(lab_model, items), max_new_tokens=MAX_NEW_TOKENS, batch_size=_BATCH
    )
    return [_written(item, t.text, len(t.tokens), t.forwards) for item, t in zip(items, trajectories, strict=True)]


@torch.inference_mode()
def _causal_slot_records(lab_model: LabModel, items: Sequence[Question]) -> list[Record]:
    prefix = _slot_prefix(lab_model)
    slots = [prompt + prefix for prompt in prompt_ids(lab_model, items)]
    batch = lab_model.tokenizer.pad({"input_ids": slots}, padding_side="left", return_tensors="pt")
    return _letter_records(lab_model, items, lab_model.model(**batch, logits_to_keep=1).logits[:, -1])


@torch.no_grad()
def _masked_slot_records(lab_model: LabModel, items: Sequence[Question]) -> list[Record]:
    prefix = _slot_prefix(lab_model)
    # The slot's own token is hidden; any letter holds its place.
    response = prefix + lab_model.tokenizer.convert_tokens_to_ids([LETTERS[0]])
    readings = [
        Reading(item.id, prompt, response, [len(prefix)])
        for item, prompt in zip(items, prompt_ids(lab_model, items), strict=True)
    ]
    hidden_BW = prefix_hidden(lab_model.student, readings, budget=MAX_NEW_TOKENS, geometry="canvas")
    return _letter_records(lab_model, items, lab_model.student.logits(hidden_BW))


def _slot_prefix(lab_model: LabModel) -> list[int]:
    return lab_model.tokenizer.encode(ANSWER_PREFIX, add_special_tokens=False)


def _written(item: Question, text: str, tokens: int, forwards: int) -> Record:
    answer = extract(text, "lab")
    return Record(item.id, text, answer, answer == item.answer, tokens, forwards)


def _letter_records(lab_model: LabModel, items: Sequence[Question], logits_BV: torch.Tensor) -> list[Record]:
    letter_ids = lab_model.tokenizer.convert_tokens_to_ids(list(LETTERS))
    letters = [LETTERS[place] for place in logits_BV[:, letter_ids].argmax(dim=-1).tolist()]
    return [Record(item.id, None, a, a == item.answer, 1, 1) for item, a in zip(items, letters, strict=True)]


def print_accuracy(
    models: Sequence[str], sets: Sequence[str], *, as_json: bool = False, records: Path | None = None
) -> None:
    """Measure shipped models on held-out sets and print a table, or a JSON object for each model and set.

    `records` names a file for one JSON line per model and question. Every name is checked before anything is measured;
    ForkLeftError names what exists.
    """
    items = {name: held_out(name) for name in sets}
    loaded = [load_model(name) for name in models]
    console = Console(stderr=as_json)
    rows = []
    for lab_model, set_name, found in _measured(loaded, items, console):
        tally, card = found.tally, lab_model.card
        row = {"model": card.name, "set": set_name, "protocol": protocol_of(items[set_name])}
        row |= {"correct": tally.correct, "total": tally.total, "accuracy": tally.accuracy}
        row |= {"interval": list(tally.interval), "forwards_per_token": found.forwards_per_token}
        rows.append(row | {"card": card.accuracy[set_name].accuracy})
        if as_json:
            print(json.dumps(rows[-1]))
        if records is not None:
            with records.open("a", encoding="utf-8") as file:
                for record in found.records:
                    file.write(json.dumps({"model": card.name, "set": set_name} | asdict(record)) + "\n")
    if not as_json:
        console.print(_table(rows))


def _measured(
    loaded: Sequence[LabModel], items: dict[str, list[Question]], console: Console
) -> Iterator[tuple[LabModel, str, Measurement]]:
    for lab_model in loaded:
        for set_name, questions in items.items():
            with console.status(f"{lab_model.card.name} on {set_name}"):
                found = measure(lab_model, questions)
            yield lab_model, set_name, found


def _table(rows: Sequence[dict]) -> Table:
    table = Table(
        title="Right answers on held-out questions, %",
        caption="chain: the model writes its answer; choice: likelihood in the answer slot.\n"
        "95% Wilson intervals; card: what was measured when training ended.",
        box=box.SIMPLE_HEAD,
    )
    for column in ("model", "set"):
        table.add_column(column, no_wrap=True)
    for column in ("count", "right", "interval", "card", "forwards\nper tok."):
        table.add_column(column, justify="right", no_wrap=True)
    previous = None
    for row in rows:
        if previous not in (None, row["model"]):
            table.add_section()
        low, high = row["interval"]
        table.add_row(
            row["model"] if row["model"] != previous else "",
            row["set"],
            f"{row['correct']}/{row['total']}",
            f"[bold]{100 * row['accuracy']:.1f}[/]",
            f"{100 * low:.1f}–{100 * high:.1f}",
            f"{100 * row['card']:.1f}",
            f"{row['forwards_per_token']:.2f}" if row["protocol"] == "generated" else "",
        )
        previous = row["model"]
    return table
