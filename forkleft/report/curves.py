"""The curves of a training run, from its metrics.jsonl."""

import json
from pathlib import Path

from matplotlib.figure import Figure

# Colours that stay apart for colour-blind eyes (Okabe and Ito).
_ROUTES = {
    "route_ce": ("both right", "#009E73"),
    "route_leftopd": ("teacher only", "#0072B2"),
    "route_gold": ("neither", "#999999"),
    "route_exclude": ("student only", "#E69F00"),
}
_INK, _STUDENT, _TEACHER = "#222222", "#D55E00", "#0072B2"
_SMOOTHED = 9


def draw_curves(metrics: Path, picture: Path) -> None:
    """Draw accuracy of the rollouts, shares of the routes, and losses over the updates."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "loss" in row]
    figure = Figure(figsize=(11, 3.7), dpi=150, layout="constrained")
    accuracy, routes, losses = figure.subplots(1, 3)
    steps = [row["step"] for row in rows]

    _line(accuracy, steps, [100 * row["student_accuracy"] for row in rows], "student", _STUDENT)
    _line(accuracy, steps, [100 * row["teacher_accuracy"] for row in rows], "teacher", _TEACHER)
    accuracy.set(title="right answers in training, %", ylim=(0, 104))

    counts = {name: _smooth([row[name] for row in rows]) for name in _ROUTES}
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

    for axes in (accuracy, routes, losses):
        axes.set_xlabel("update")
        axes.set_xlim(min(steps), max(max(steps), min(steps) + 1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(
            frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=4, handlelength=1.2
        )
    figure.savefig(picture)


def _line(axes, steps: list[int], values: list[float], label: str, colour: str) -> None:
    """The values, pale, and their moving mean."""
    axes.plot(steps, values, color=colour, alpha=0.25, linewidth=1)
    axes.plot(steps, _smooth(values), color=colour, linewidth=2, label=label)


def _smooth(values: list[float]) -> list[float]:
    """Means over a window that is centred where it can be."""
    half = _SMOOTHED // 2
    windows = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
    return [sum(window) / len(window) for window in windows]
