"""How often the lab's models are right on the held-out sets, beside the figures of their cards.

    forkleft lab accuracy

Each figure is an evaluation as `forkleft eval` makes it (`evaluate/evaluation.py`) of one of the lab's benchmarks.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.evaluate.benchmarks import ItemSet
from forkleft.evaluate.evaluation import run_evaluation
from forkleft.evaluate.protocols import Settings
from forkleft.evaluate.results import Record, Results, read_results
from forkleft.files import writing_to
from forkleft.lab.benchmarks import lab_set
from forkleft.lab.models import BATCH_SIZE, LabModel, Tally, load_model

_TEACHER = Settings(batch_size=BATCH_SIZE)
# In the answer slot a student sees masks to the end of its block, as it does when it writes.
_STUDENT = replace(_TEACHER, geometry="canvas")


def measure(lab_model: LabModel, items: ItemSet) -> Results:
    """The evaluation of a lab model on one of the lab's benchmarks. It leaves no files."""
    settings = _TEACHER if lab_model.student is None else _STUDENT
    with TemporaryDirectory() as folder:
        run_evaluation(lab_model.evaluated, [items], folder, settings=settings, console=Console(quiet=True))
        return read_results(folder)[items.benchmark.name]


def tally_of(found: Results) -> Tally:
    """Right answers out of all, as a card has them."""
    return Tally(found.summary["results"]["correct"], found.summary["results"]["items"])


def print_accuracy(
    models: Sequence[str], sets: Sequence[str], *, as_json: bool = False, records: Path | None = None
) -> None:
    """Measure shipped models on held-out sets and print a table, or a JSON object for each model and set.

    `records` names a file for one JSON line per model and question. Every name is checked before anything is measured;
    ForkLeftError names what exists.
    """
    if records is not None:
        with writing_to(records, "--records"):
            records.open("a", encoding="utf-8").close()
    items = {name: lab_set(name) for name in sets}
    loaded = [load_model(name) for name in models]
    console = Console(stderr=as_json)
    rows = []
    for lab_model, set_name, found in _measured(loaded, items, console):
        tally, card, results = tally_of(found), lab_model.card, found.summary["results"]
        row: dict[str, Any] = {"model": card.name, "set": set_name, "protocol": items[set_name].benchmark.protocol}
        row |= {"correct": tally.correct, "total": tally.total, "accuracy": tally.accuracy}
        row |= {"interval": list(tally.interval), "forwards_per_token": results["forwards"] / results["tokens"]}
        rows.append(row | {"card": card.accuracy[set_name].accuracy})
        if as_json:
            print(json.dumps(rows[-1]))
        if records is not None:
            with records.open("a", encoding="utf-8") as file:
                for record in found.records:
                    file.write(json.dumps({"model": card.name, "set": set_name} | _kept_fields(record)) + "\n")
    if not as_json:
        console.print(_table(rows))


def _measured(
    loaded: Sequence[LabModel], items: dict[str, ItemSet], console: Console
) -> Iterator[tuple[LabModel, str, Results]]:
    for lab_model in loaded:
        for set_name, item_set in items.items():
            with console.status(f"{lab_model.card.name} on {set_name}"):
                found = measure(lab_model, item_set)
            yield lab_model, set_name, found


def _kept_fields(record: Record) -> dict:
    """The fields of a record that are written to the file; `answer` is the one that the model gave."""
    fields = {"id": record.id, "response": record.response, "answer": record.extracted, "correct": record.correct}
    return fields | {"tokens": record.tokens, "forwards": record.forwards}


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
