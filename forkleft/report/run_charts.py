"""The charts of training runs, from their metrics: of one run in detail, of several with a line for each."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forkleft.report.charts import COLOURS, Point, Series, area_chart, line_chart, mean_series
from forkleft.report.evaluations import evaluated
from forkleft.report.gather import Run

# The name of each route on the page, with its colour. Paths of the data: `route_ce`, `loss_ce` ….
_ROUTES = {
    "ce": ("both right", 3),
    "leftopd": ("teacher only", 1),
    "gold": ("neither", 4),
    "exclude": ("student only", 6),
}


def by_update(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The logged rows, with questions and seconds for one update each, where a row may be of several.

    Added are `share`, of the teacher's route, and `seconds`, of all phases.
    """
    found, before = [], 0
    for row in rows:
        count = max(1, row["step"] - before)
        before = row["step"]
        seconds = {name: value / count for name, value in row.items() if name.startswith("seconds_")}
        share = row["route_leftopd"] / max(1, row["questions"])
        own = {"questions": row["questions"] / count, "share": share, "seconds": sum(seconds.values())}
        found.append({**row, **seconds, **own})
    return found


def _points(rows: Sequence[Mapping[str, Any]], name: str, scale: float = 1.0) -> list[tuple[float, float]]:
    return [(row["step"], scale * row[name]) for row in rows if name in row and math.isfinite(row[name])]


def charts_of_one(run: Run) -> list[str]:
    """The charts of a run: lines and layers for each of its figures."""
    rows, steps = run.updates, [row["step"] for row in run.updates]
    right = [
        Series("student in training", _points(rows, "student_accuracy", 100), 1),
        Series("teacher", _points(rows, "teacher_accuracy", 100), 2),
    ]
    for number, (name, points) in enumerate(evaluated(run.logged).items()):
        own = [(float(step), 100 * value) for step, value in points.items()]
        right.append(Series(f"student {name}, in use", own, 8 - number % COLOURS, marked=True))
    shares = {
        told: [100 * row[f"route_{route}"] / max(1, row["questions"]) for row in rows]
        for route, (told, _) in _ROUTES.items()
    }
    phases = dict.fromkeys(name for row in rows for name in row if name.startswith("seconds_"))
    times = {name.removeprefix("seconds_"): [row.get(name, 0.0) for row in by_update(rows)] for name in phases}

    def lines(title: str, unit: str, *named: tuple[str, str, int]) -> str:
        return line_chart(title, [Series(told, _points(rows, name), colour) for name, told, colour in named], unit=unit)

    by_route = [(f"loss_{route}", told, colour) for route, (told, colour) in _ROUTES.items()]
    return [
        line_chart("Right answers", right, unit="%"),
        area_chart("Routes", steps, shares, unit="% of questions", colours=[colour for _, colour in _ROUTES.values()]),
        lines("Loss by route", "nats", *by_route, ("loss", "all, with ranking", 8)),
        lines("KL to the teacher", "nats", ("kl", "all positions", 1), ("eos_kl", "at the end token", 5)),
        lines("Ranking loss", "", ("rank_loss", "ranking loss", 5)),
        lines(
            "Entropies at supervised positions",
            "nats",
            ("mask_entropy", "student, all blank", 6),
            ("left_entropy", "student, left known", 1),
            ("teacher_entropy", "teacher, left known", 2),
        ),
        lines("Response length", "tokens", ("response_tokens", "tokens", 3)),
        area_chart("Time by phase", steps, times, unit="seconds an update"),
    ]


def charts_of_several(runs: Sequence[Run]) -> list[str]:
    """The charts of several runs: a figure in each, and a line for each group of runs, their mean."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)

    def lines(title: str, unit: str, points_of: Callable[[Run], list[Point]], *, marked: bool = False) -> str:
        series = []
        for number, (group, members) in enumerate(groups.items(), start=1):
            own = [points for run in members if (points := points_of(run))]
            if own:
                series.append(mean_series(group, own, number, marked=marked))
        return line_chart(title, series, unit=unit)

    def compared(title: str, unit: str, name: str, scale: float = 1.0) -> str:
        return lines(title, unit, lambda run: _points(by_update(run.updates), name, scale))

    def held_out(run: Run) -> list[Point]:
        """Of the first set that is evaluated."""
        points = next(iter(evaluated(run.logged).values()), {})
        return [(float(step), 100 * value) for step, value in points.items()]

    return [
        compared("Right in training", "%", "student_accuracy", 100),
        lines("Right held-out, in use", "%", held_out, marked=True),
        compared("On the teacher’s route", "% of questions", "share", 100),
        compared("Loss", "nats", "loss"),
        compared("Loss on the teacher’s route", "nats", "loss_leftopd"),
        compared("KL to the teacher", "nats", "kl"),
        compared("Ranking loss", "", "rank_loss"),
        compared("Student’s entropy, left known", "nats", "left_entropy"),
        compared("Response length", "tokens", "response_tokens"),
        compared("Time of an update", "seconds", "seconds"),
    ]
