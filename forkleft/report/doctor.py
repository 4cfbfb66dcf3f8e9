"""The output of `forkleft doctor`."""

from collections.abc import Sequence

import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

from forkleft.objective.checks import CHECKS, Finding, examine
from forkleft.objective.served import compare_served
from forkleft.students import Student
from forkleft.teacher import RemoteTeacher, Teacher

# A check with a bound above this, in nats or relative, could hardly fail.
_WIDE = 1.0
_VERSIONS = f"PyTorch {torch.__version__}, Transformers {transformers_version}"
_OTHER_ATTENTION = (
    "If only the checks of one way to attend fail, use the other: --dense-attention (in a recipe dense_attention: "
    "true) switches FlexAttention off."
)


def table(findings: Sequence[Finding], student: Student) -> Table:
    """The findings of a student as a table for a terminal."""
    readouts = "FlexAttention" if student.device.type == "cuda" and not student.dense_attention else "SDPA"
    caption = (
        "Largest difference between our way and the plain way, in nats (of gradients: relative to the largest one); up "
        f"to the bound it is rounding. Readouts through {readouts}, rollouts through SDPA; {_VERSIONS}."
    )
    return _table(findings, _named(student.model), caption)


def teacher_table(findings: Sequence[Finding], teacher: Teacher, url: str) -> Table:
    """The findings of a teacher, in memory and on a server, as a table for a terminal."""
    caption = f"Largest difference between the two, in nats; up to the bound it is rounding. {_VERSIONS}."
    return _table(findings, f"{_named(teacher.model)}, and on {url}", caption)


def _named(model: PreTrainedModel) -> str:
    place = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else str(model.device)
    return f"{type(model).__name__}, {str(model.dtype).removeprefix('torch.')} on {place}"


def _table(findings: Sequence[Finding], title: str, caption: str) -> Table:
    shown = Table(title=title, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
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


def teacher_doctor(local: Teacher, remote: RemoteTeacher) -> bool:
    """Compare a teacher in memory with the same on a server, print the table, and return whether they are the same."""
    console = Console()
    with console.status("both read the teacher's own answers"):
        findings = compare_served(local, remote)
    console.print(teacher_table(findings, local, remote.server.url))
    if all(finding.holds for finding in findings):
        console.print("The server gives the same teacher.", highlight=False)
        return True
    console.print(
        "[bold red]The server gives another teacher[/], or computes less precisely: is it the same checkpoint, in the "
        "same --dtype, not quantised?",
        highlight=False,
    )
    return False
