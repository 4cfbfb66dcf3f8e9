"""What `forkleft doctor` shows."""

from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import __version__ as transformers_version

from forkleft.objective.checks import CHECKS, Finding, examine
from forkleft.students import Student


def table(findings: Sequence[Finding], student: Student) -> Table:
    """The findings for a person."""
    model, device = student.model, student.device
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    readouts = "FlexAttention" if device.type == "cuda" else "SDPA"
    shown = Table(
        title=f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {place}",
        caption=f"Largest difference between our way and the plain way; up to the bound it is rounding. Readouts "
        f"through {readouts}, rollouts through SDPA; PyTorch {torch.__version__}, Transformers {transformers_version}.",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("check")
    for column in ("difference", "bound", ""):
        shown.add_column(column, justify="right", no_wrap=True)
    for one in findings:
        mark = "[green]holds[/]" if one.holds else "[bold red]broken[/]"
        row = (f"{one.name}\n[dim]{escape(one.meaning)}[/]", f"{one.difference:.1e}", f"{one.bound:.0e}", mark)
        shown.add_row(*row)
    return shown


def doctor(student: Student) -> bool:
    """Print the table; whether everything holds. Says which check is running: a large model takes a minute."""
    console = Console()
    names = [check.name for check in CHECKS]
    with console.status("") as status:

        def begin(name: str) -> None:
            line = f"check {names.index(name) + 1} of {len(names)}: {name}"
            if console.is_terminal:
                status.update(line)
            else:
                console.print(line, highlight=False)

        findings = examine(student, begin)
    console.print(table(findings, student))
    if all(one.holds for one in findings):
        console.print("Everything holds here.", highlight=False)
        return True
    low = student.model.dtype not in (torch.float32, torch.float64)
    advice = "Try a higher precision (--dtype float32), then report the table." if low else "Please report the table."
    console.print(f"[bold red]Something is broken here.[/] {advice}", highlight=False)
    return False
