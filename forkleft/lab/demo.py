"""The tour behind `forkleft demo` and `make demo`: the lab's questions, models answering them, and the scores."""

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forkleft.lab.accuracy import measure, print_accuracy
from forkleft.lab.models import MODELS, TEACHERS, load_model
from forkleft.lab.questions import held_out

_SHOWN = 3
_SETS = ("chain-3", "chain-4", "chain-5", "choice-2")


def demo() -> None:
    """Show the lab's world and measure its models."""
    console = Console()
    items = held_out("chain-4", _SHOWN)
    table = Table(title="Held-out questions, and what the three teachers write", show_lines=True)
    table.add_column("question")
    written = []
    for name in TEACHERS:
        table.add_column(name)
        written.append(measure(load_model(name), items).records)
    for row, item in enumerate(items):
        marks = ("[green]✓[/]" if records[row].correct else "[red]✗[/]" for records in written)
        texts = (escape(records[row].response or "") for records in written)
        table.add_row(item.question, *(f"{text} {mark}" for text, mark in zip(texts, marks, strict=True)))
    console.print(table)
    print_accuracy(MODELS, _SETS)
