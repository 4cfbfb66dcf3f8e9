"""The tour behind `forkleft demo` and `make demo`: the lab's questions, a teacher answering them, and the scores."""

from rich.console import Console
from rich.table import Table

from forkleft.lab.accuracy import ACCURACY_SETS, greedy_responses, print_accuracy
from forkleft.lab.models import MODELS, load_model
from forkleft.lab.questions import held_out
from forkleft.verify import verify

_SHOWN = 3


def demo() -> None:
    """Show the lab's world and measure its models."""
    console = Console()
    teachers = {name: load_model(name) for name in ("teacher-strong", "teacher-weak")}
    items = held_out("chain-4", _SHOWN)
    written = {name: greedy_responses(lab.model, lab.tokenizer, items) for name, lab in teachers.items()}
    table = Table(title="Held-out questions, and what two teachers write", show_lines=True)
    for column in ("question", *teachers):
        table.add_column(column)
    for row, item in enumerate(items):
        cells = []
        for name in teachers:
            right = verify(written[name][row], item.answer, "lab")
            cells.append(f"{written[name][row]} {'[green]✓[/]' if right else '[red]✗[/]'}")
        table.add_row(item.question, *cells)
    console.print(table)
    print_accuracy(MODELS, ACCURACY_SETS)
