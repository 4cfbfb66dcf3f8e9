"""The curves of a training run, from its metrics.jsonl."""

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forkleft.files import read_appended
from forkleft.report.charts import smooth
from forkleft.report.evaluations import evaluated

# Colours that stay apart for colour-blind eyes (Okabe and Ito).
_ROUTES = {
    "route_ce": ("both right", "#009E73"),
    "route_leftopd": ("teacher only", "#0072B2"),
    "route_gold": ("neither", "#999999"),
    "route_exclude": ("student only", "#E69F00"),
}
_INK, _STUDENT, _TEACHER = "#222222", "#D55E00", "#0072B2"
_MARKERS = "Dosv^"


def draw_curves(metrics: Path, picture: Path) -> None:
    """Draw right answers, shares of the routes, and losses over the updates. Draws nothing if no update was logged.

    Right answers are those of both models in training and, as points, those of the student in evaluations, where it
    decodes as it does in use.
    """
    logged = [row for _, row in read_appended(metrics) if row is not None]
    rows = [row for row in logged if "loss" in row]
    if not rows:
        return
    if "student_accuracy" not in rows[0]:
        _draw_adaptation(logged, rows, picture)
        return
    figure = Figure(figsize=(11, 3.7), dpi=150, layout="constrained")
    accuracy, routes, losses = figure.subplots(1, 3)
    steps = [row["step"] for row in rows]

    _line(accuracy, steps, [100 * row["student_accuracy"] for row in rows], "student", _STUDENT)
    _line(accuracy, steps, [100 * row["teacher_accuracy"] for row in rows], "teacher", _TEACHER)
    evaluations = evaluated(logged)
    for (name, points), marker in zip(evaluations.items(), cycle(_MARKERS)):
        _points(accuracy, {step: 100 * value for step, value in points.items()}, name, marker)
    accuracy.set(title="right answers, %", ylim=(0, 104))

    counts = {name: smooth([row[name] for row in rows]) for name in _ROUTES}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    shares = [[100 * c / t for c, t in zip(values, totals, strict=True)] for values in counts.values()]
    labels, colours = zip(*_ROUTES.values(), strict=True)
    routes.stackplot(steps, shares, labels=labels, colors=colours, alpha=0.9)
    routes.set(title="routes, % of questions", ylim=(0, 100))

    for name, label, colour in (("loss", "all", _INK), ("loss_leftopd", "teacher only", "#0072B2")):
        known = [(row["step"], row[name]) for row in rows if name in row]
        _line(losses, [step for step, _ in known], [value for _, value in known], label, colour)
    losses.set(title="loss, nats")
    losses.set_ylim(bottom=0)

    shown = [*steps, *(step for points in evaluations.values() for step in points)]
    for axes in (accuracy, routes, losses):
        axes.set_xlabel("update")
        axes.set_xlim(min(shown), max(max(shown), min(shown) + 1))
        axes.spines[["top", "right"]].set_visible(False)
        # Four names fit below a panel, unless the name of a data set is among them.
        columns = 4 if axes is not accuracy or len(evaluations) < 2 else 2
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "ncols": columns}
        axes.legend(frameon=False, fontsize=8, handlelength=1.2, **place)
    figure.savefig(picture)


def _draw_adaptation(logged: list[dict[str, Any]], rows: list[dict[str, Any]], picture: Path) -> None:
    """Draw the losses of a student that learns to denoise, in training and on held-out rows, and its right answers."""
    evaluations = evaluated(logged)
    figure = Figure(figsize=(11 if evaluations else 5.5, 3.7), dpi=150, layout="constrained")
    losses, *others = figure.subplots(1, 2 if evaluations else 1, squeeze=False)[0]
    kinds = (("loss_denoising", "denoising", _STUDENT), ("loss_causal", "next token", _TEACHER))
    for name, label, colour in kinds:
        known = {row["step"]: row[name] for row in rows if name in row}
        if known:
            _line(losses, list(known), list(known.values()), label, colour)
    held_out = sorted({name for row in logged for name in row if name.startswith("eval_") and name.endswith("_loss")})
    for name, marker in zip(held_out, cycle(_MARKERS)):
        kind = "next token" if name.endswith("_causal_loss") else "denoising"
        which = name.removeprefix("eval_").removesuffix("loss").removesuffix("causal_").strip("_")
        points = {row["step"]: row[name] for row in logged if name in row}
        _points(losses, points, f"{which or 'held-out'}, {kind}", marker)
    losses.set(title="loss, nats a token", xlabel="update")
    losses.set_ylim(bottom=0)
    for axes in others:
        for (name, points), marker in zip(evaluations.items(), cycle(_MARKERS)):
            _points(axes, {step: 100 * value for step, value in points.items()}, name, marker)
        axes.set(title="right answers, %", ylim=(0, 104), xlabel="update")
    for axes in (losses, *others):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            frameon=False, fontsize=8, handlelength=1.2, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4
        )
    figure.savefig(picture)


def _points(axes: Axes, points: Mapping[int, float], label: str, marker: str) -> None:
    """What evaluations found."""
    style: dict[str, Any] = {"color": _INK, "marker": marker, "markersize": 5, "linewidth": 1}
    # So that markers are not cut in half at the edges.
    axes.plot(list(points), list(points.values()), label=label, clip_on=False, zorder=3, **style)


def _line(axes: Axes, steps: list[int], values: list[float], label: str, colour: str) -> None:
    """The values, pale, and their moving mean."""
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
    axes.plot(steps, smooth(values), color=colour, linewidth=2, label=label)
