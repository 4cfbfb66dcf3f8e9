"""How often the lab's models are right on the held-out sets.

    forkleft lab accuracy

Two protocols, those of the real benchmarks (`evaluate/protocols.py`). On `chain-*` the model writes its answer: a
teacher greedily, a student one token a pass, most confident positions first. On `choice-*` the offered letters
are compared by their likelihood in the answer slot; a student sees masks from the slot to the end of the block, as it
does when it writes.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft import prompts
from forkleft.evaluate.benchmarks import Protocol
from forkleft.evaluate.protocols import Evaluated, Settings, Try, answer
from forkleft.files import told_of
from forkleft.lab.benchmarks import item_of, lab_benchmark
from forkleft.lab.models import LabModel, Tally, load_model
from forkleft.lab.questions import Question, held_out
from forkleft.teacher import Teacher

_SETTINGS = Settings(geometry="canvas", batch_size=128)


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
    model: Evaluated | None = lab_model.student
    if model is None:
        stop_ids = lab_model.model.generation_config.eos_token_id
        model = Teacher(lab_model.model, lab_model.tokenizer, stop_ids=stop_ids, batch_size=_SETTINGS.batch_size)
    benchmark = lab_benchmark("lab", protocol_of(items))
    records: list[Record] = []
    for start in range(0, len(items), _SETTINGS.batch_size):
        tries = [Try(item_of(question)) for question in items[start : start + _SETTINGS.batch_size]]
        for one, reply in zip(tries, answer(model, benchmark, tries, _SETTINGS), strict=True):
            told = (reply.response, reply.extracted, reply.correct, reply.tokens, reply.forwards)
            records.append(Record(one.item.id, *told))
    return Measurement(tuple(records))


def protocol_of(items: Sequence[Question]) -> Protocol:
    """How a set is measured: `generated` answers, or likelihood in the answer `slot`."""
    return "generated" if items[0].choices is None else "slot"


def prompt_ids(lab_model: LabModel, items: Sequence[Question]) -> list[list[int]]:
    """Each question through the chat template."""
    return [prompts.prompt_ids(lab_model.tokenizer, [{"role": "user", "content": item.prompt}]) for item in items]


def print_accuracy(
    models: Sequence[str], sets: Sequence[str], *, as_json: bool = False, records: Path | None = None
) -> None:
    """Measure shipped models on held-out sets and print a table, or a JSON object for each model and set.

    `records` names a file for one JSON line per model and question. Every name is checked before anything is measured;
    ForkLeftError names what exists.
    """
    if records is not None:
        with told_of(records, "--records"):
            records.open("a", encoding="utf-8").close()
    items = {name: held_out(name) for name in sets}
    loaded = [load_model(name) for name in models]
    console = Console(stderr=as_json)
    rows = []
    for lab_model, set_name, found in _measured(loaded, items, console):
        tally, card = found.tally, lab_model.card
        row: dict[str, Any] = {"model": card.name, "set": set_name, "protocol": protocol_of(items[set_name])}
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
