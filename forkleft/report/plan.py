"""The output of `forkleft plan`."""

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.scale.devices import GB
from forkleft.scale.plan import Plan, nearest
from forkleft.scale.setting import Setting

_PHASES = {"rollout": "while the student writes", "teacher": "while the teacher works", "update": "while it learns"}
_PLACES = {False: "teacher in memory", True: "teacher on a server"}
# Alternatives that are shown.
_SHOWN = 3
# A part below this share of a GPU is not worth a row.
_SMALL = 0.05 * GB


def show(plans: Sequence[Plan], sources: Sequence[str], console: Console | None = None) -> None:
    """Print the plans of one recipe side by side, and for each that does not fit the nearest settings that do.

    sources: where the shapes of student and teacher come from.
    """
    console = console or Console()
    setting = plans[0].setting
    for line in _head(setting, sources):
        console.print(line, highlight=False, markup=False)
    console.print(_table(plans), highlight=False)
    for plan in plans:
        for line in _advice(plan):
            console.print(line, highlight=False, markup=False)
    console.print(
        "Computed, not measured. Memory is that of the worst batch: every question on the route that reads most, every "
        "response and reference as long as the budget. Times depend on the figures of the device and on shares of them "
        "that are assumptions (docs/scale.md); expect them to be right within a factor of two.",
        highlight=False,
        style="dim",
    )


def _head(setting: Setting, sources: Sequence[str]) -> Iterator[str]:
    student, teacher, question = setting.student, setting.teacher, setting.question
    yield f"devices   {setting.cluster}"
    yield f"student   {student.name}, {_billions(student.weights)} weights ({sources[0]})"
    yield f"teacher   {teacher.name}, {_billions(teacher.weights)} weights ({sources[1]})"
    lengths = f"prompts of {question.prompt} tokens, responses of {question.response}"
    yield f"update    {setting.questions} questions, {lengths}"
    family = setting.family
    blocks = f"blocks of {family.block_size}" if family.attention == "block" else "full attention"
    yield f"          {blocks}, {min(setting.passes, family.sub_block or family.block_size)} passes each"
    routes = ", ".join(f"{share:.0%} {route}" for route, share in setting.routes.items() if share)
    yield f"routes    {routes} (assumed)"


def _table(plans: Sequence[Plan]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for plan in plans:
        table.add_column(_PLACES[plan.setting.served], justify="right", no_wrap=True)

    def row(name: str, values: Sequence[str], style: str = "") -> None:
        table.add_row(name, *values, style=style)

    row("processes", [_processes(plan.setting) for plan in plans])
    row("questions at once, forwards", [f"{plan.setting.at_once} x {plan.setting.accumulated}" for plan in plans])
    table.add_section()
    row("memory of a GPU, GB", [""] * len(plans), style="bold")
    for name in dict.fromkeys(name for plan in plans for name in plan.memory.lasting):
        parts = [plan.memory.lasting.get(name, 0.0) for plan in plans]
        if max(parts) > _SMALL:
            row(f"  {name}", [_gb(part) for part in parts])
    for phase, title in _PHASES.items():
        phases = [plan.memory.phases.get(phase, {}) for plan in plans]
        row(f"  {title}", [_gb(sum(parts.values())) for parts in phases])
        for name in dict.fromkeys(name for parts in phases for name in parts):
            parts = [found.get(name, 0.0) for found in phases]
            if max(parts) > _SMALL:
                row(f"    {name}", [_gb(part) for part in parts], style="dim")
    row("  fullest moment", [_gb(plan.memory.peak) for plan in plans], style="bold")
    row(f"  usable of {plans[0].setting.cluster.device.memory / GB:.0f}", [_gb(plan.usable) for plan in plans])
    row("", ["[green]fits[/]" if plan.fits else "[bold red]does not fit[/]" for plan in plans])
    table.add_section()
    row("seconds of an update", [_number(plan.time.update) for plan in plans], style="bold")
    for phase in plans[0].time.phases:
        row(f"  {phase}", [_number(plan.time.phases[phase]) for plan in plans])
    row("TFLOPs of a process", [_number(sum(vars(plan.flops).values()) / 1e12) for plan in plans])
    table.add_section()
    row(f"days of {plans[0].time.updates} updates", [_number(plan.time.days) for plan in plans], style="bold")
    row("hours of answers before them", [_number(plan.time.answer_hours) for plan in plans])
    row("GPU hours of both", [_number(plan.time.device_hours) for plan in plans])
    return table


def _advice(plan: Plan) -> Iterator[str]:
    if plan.fits:
        return
    place = _PLACES[plan.setting.served]
    found = nearest(plan.setting)
    if not found:
        yield f"With the {place}, nothing near this setting fits: name more or larger GPUs, or smaller models."
        return
    yield f"With the {place} it fits with:"
    for changes, other in found[:_SHOWN]:
        figures = f"{_gb(other.memory.peak)} GB, {other.time.days:.2f} days"
        yield f"  {', '.join(changes)}  ({figures})"


def _processes(setting: Setting) -> str:
    kind = "FSDP2" if setting.sharded else "DDP"
    server = f", server on {setting.server_gpus}" if setting.served else ""
    return f"{setting.processes} ({kind}){server}" if setting.processes > 1 else f"1{server}"


def _gb(size: float) -> str:
    return f"{size / GB:.1f}" if size else "–"


def _number(value: float) -> str:
    """Two or three digits that say something: 1,963, 14.8, 0.51, 0.0004."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2g}"


def _billions(count: int) -> str:
    return f"{count / 1e9:.1f} billion" if count >= 1e8 else f"{count / 1e6:.2f} million"
