"""The output of `forkleft doctor`."""

from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import __version__ as transformers_version

from forkleft.objective.checks import CHECKS, Finding, examine
from forkleft.students import Student

# A check with a bound above this, in nats or relative, could hardly fail.
_WIDE = 1.0
_OTHER_ATTENTION = (
    "If only the checks of one way to attend fail, use the other: --dense-attention (in a recipe dense_attention: "
    "true) switches FlexAttention off."
)


def table(findings: Sequence[Finding], student: Student) -> Table:
    """The findings as a table for a terminal."""
    model, device = student.model, student.device
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    readouts = "FlexAttention" if device.type == "cuda" and not student.dense_attention else "SDPA"
    shown = Table(
        title=f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {place}",
        caption="Largest difference between our way and the plain way, in nats (of gradients: relative to the largest "
        f"one); up to the bound it is rounding. Readouts through {readouts}, rollouts through SDPA; PyTorch "
        f"{torch.__version__}, Transformers {transformers_version}.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    shown.add_column("check")
    for column in ("difference", "bound", ""):
        shown.add_column(column, justify="right", no_wrap=True)
    for number, finding in enumerate(findings):
        if number:
            # An empty row; without it, the meaning of a check looks like another check.
            shown.add_row()
        if finding.skipped is not None:
            shown.add_row(f"{escape(finding.name)}\n[dim]{escape(finding.skipped)}[/]", "", "", "[dim]skipped[/]")
            continue
        mark = "[green]holds[/]" if finding.holds else "[bold red]broken[/]"
        unit = "relative" if "gradient" in finding.name else "nats"
        numbers = (f"{finding.difference:.1e} {unit}", f"{finding.bound:.0e} {unit}")
        row = (f"{escape(finding.name)}\n[dim]{escape(finding.meaning)}[/]", *numbers, mark)
        shown.add_row(*row)
    return shown


def doctor(student: Student) -> bool:
    """Run the checks, print the table, and return whether everything holds.

    Says which check is running: a large model takes a minute.
    """
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
    if wide := [finding.name for finding in findings if finding.bound > _WIDE]:
        name = str(student.model.dtype).removeprefix("torch.")
        again = "" if name in ("float32", "float64") else "; run it in float32 (--dtype float32) to check the maths"
        console.print(
            f"Wide bounds ({'; '.join(wide)}): in {name} rounding alone reaches this far for this model{again}.",
            highlight=False,
            markup=False,
        )
    broken = [finding for finding in findings if finding.skipped is None and not finding.holds]
    if not broken:
        console.print("Everything holds here.", highlight=False)
        return True
    low = student.model.dtype not in (torch.float32, torch.float64)
    advice = "Try a higher precision (--dtype float32), then report the table." if low else "Please report the table."
    console.print(f"[bold red]Something is broken here.[/] {advice}", highlight=False)
    if student.device.type == "cuda":
        console.print(_OTHER_ATTENTION, highlight=False)
    return False
