"""The tour behind `forkleft demo` and `make demo`: the lab's questions, its teachers answering them, and the scores."""

from rich.console import Console
from rich.markup import escape

from forkleft.lab.accuracy import measure, print_accuracy
from forkleft.lab.models import MODELS, TEACHERS, load_model
from forkleft.lab.questions import held_out

_SHOWN = 3
_SETS = ("chain-3", "chain-4", "chain-5", "choice-2")


def demo() -> None:
    """Show the lab's world and measure its models."""
    console = Console()
    items = held_out("chain-5", _SHOWN)
    with console.status("the teachers are answering"):
        written = {name: measure(load_model(name), items).records for name in TEACHERS}
    console.print("[bold]Questions that no model was trained on, and what the teachers write[/]\n")
    for row, item in enumerate(items):
        console.print(f"{'question':<15} [bold]{item.question}[/]")
        for name, records in written.items():
            mark = "[green]✓[/]" if records[row].correct else "[red]✗[/]"
            console.print(f"{name:<15} {escape(records[row].response or '')} {mark}", highlight=False)
        console.print()
    print_accuracy(MODELS, _SETS)
