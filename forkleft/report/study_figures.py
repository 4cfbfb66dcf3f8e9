"""The figures of a study.

Arms keep their colour in all figures. Faint dots and lines are seeds, dark ones their mean with its 95% interval.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from forkleft.evaluate.statistics import Estimate
from forkleft.study.analysis import Analysis, bases, teachers, tokens_a_forward
from forkleft.study.cells import writing
from forkleft.study.effects import Effect
from forkleft.study.results import PARTS, StudyResults

# Colours that stay apart for colour-blind eyes (Okabe and Ito), the darkest first.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")
_ROUTES = (("both right", "#009E73"), ("teacher only", "#0072B2"), ("neither", "#BBBBBB"), ("student only", "#E69F00"))
_BASE, _AXIS, _GRID = "#666666", "#444444", "#E6E6E6"
_STYLE: dict[Any, Any] = {
    "font.size": 11,
    "axes.titlesize": 11.5,
    "axes.labelsize": 11,
    "xtick.labelsize": 10.5,
    "ytick.labelsize": 11,
    "legend.fontsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    # The same file from the same numbers, and text that can be searched.
    "svg.hashsalt": "forkleft",
    "svg.fonttype": "none",
}
_MEAN = "mean"


def draw_study(results: StudyResults, analysis: Analysis, folder: Path) -> list[str]:
    """Draw all figures that have data, each as PNG and SVG; returns their names. Files of other figures are removed."""
    drawings: dict[str, Callable[[StudyResults, Analysis], Figure | None]] = {
        "accuracy": _draw_accuracy,
        "differences": _draw_differences,
        "interaction": _draw_interaction,
        "curve": _draw_curve,
        "strength": _draw_strength,
        "decoding": _draw_decoding,
        "routes": _draw_routes,
    }
    made = []
    with matplotlib.rc_context(_STYLE), writing(folder):
        for name, draw in drawings.items():
            figure = draw(results, analysis)
            for ending in (".png", ".svg"):
                picture = folder / f"{name}{ending}"
                if figure is None:
                    picture.unlink(missing_ok=True)
                    continue
                # Without the date, which would change the file.
                when = {"Date": None} if ending == ".svg" else {}
                figure.savefig(picture, dpi=160, metadata=when)
            if figure is not None:
                made.append(name)
    return made


def _draw_accuracy(results: StudyResults, analysis: Analysis) -> Figure | None:
    """Each arm on each benchmark and on their mean, beside the base; the teacher, often far away, as a number."""
    decoding = next(iter(results.decoding))
    arms = [row for row in analysis.rows[decoding] if row.kind == "arm"]
    if not arms:
        return None
    shared = {row.kind: row.accuracy for row in analysis.rows[decoding] if row.name == row.kind}
    begun = {row.name: row.accuracy for row in analysis.rows[decoding] if row.kind == "base"}
    figure, panels = _panels(results, height=1.5 + 0.42 * len(arms), share=True)
    for axes, name in panels.items():
        if "base" in shared:
            found = _of(shared["base"], name)
            axes.axvspan(100 * found.low, 100 * found.high, color=_BASE, alpha=0.12, linewidth=0)
            axes.axvline(100 * found.value, color=_BASE, linestyle="--", linewidth=1.3, label="base")
        if "teacher" in shared:
            text = f"teacher {100 * _of(shared['teacher'], name).value:.1f}"
            axes.annotate(text, (1, 0.01), xycoords="axes fraction", ha="right", fontsize=9, color=_BASE)
        for height, row in enumerate(reversed(arms)):
            colour, marker = _look(results, row.name)
            seeds = [100 * value for value in _seed_values(results, row.name, decoding, name)]
            _seed_dots(axes, seeds, [height + 0.16 * shift for shift in _shifts(len(seeds))], colour)
            found = _of(row.accuracy, name)
            axes.plot([100 * found.low, 100 * found.high], [height, height], color=colour, linewidth=2.4, zorder=5)
            axes.plot(100 * found.value, height, marker, color=colour, markersize=8, markeredgecolor="white", zorder=6)
            own = begun.get(bases(results)[row.name])
            if "base" not in shared and own is not None:
                label = "base of the arm" if not height else None
                axes.plot(100 * _of(own, name).value, height, "|", color=_BASE, markersize=20, mew=2, label=label)
        axes.set_ylim(-0.75, len(arms) - 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.grid(axis="x", color=_GRID, linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(range(len(arms)), [row.name for row in reversed(arms)])
    figure.supxlabel("right answers, %", fontsize=11)
    _legend(figure, panels, columns=1)
    return figure


def _draw_differences(results: StudyResults, analysis: Analysis) -> Figure | None:
    """Each difference: its mean over the benchmarks, with seeds, and below it each benchmark."""
    compared = analysis.comparisons
    if not compared:
        return None
    names = list(results.benchmarks) if len(results.benchmarks) > 1 else []
    step = 1.25 + 0.5 * len(names)
    figure = Figure(figsize=(8.6, 1.2 + 0.36 * step * len(compared)), layout="constrained")
    axes = figure.subplots()
    axes.axvline(0, color=_AXIS, linewidth=1.2, zorder=1)
    ticks, labels = [], []
    for number, comparison in enumerate(reversed(compared)):
        top = number * step
        colour = _COLOURS[0] if comparison.difference.mean.low > 0 or comparison.difference.mean.high < 0 else _BASE
        for line, name in enumerate(names):
            height, found = top - 0.62 - 0.5 * line, comparison.difference.benchmarks[name]
            axes.plot([100 * found.low, 100 * found.high], [height, height], color=colour, linewidth=1, alpha=0.55)
            axes.plot(100 * found.value, height, "o", color="white", markeredgecolor=colour, markersize=4.5, alpha=0.9)
            ticks.append(height)
            labels.append(name)
        by_seed = [100 * value for value in comparison.difference.by_seed]
        _seed_dots(axes, by_seed, [top + 0.16 * shift for shift in _shifts(len(by_seed))], colour)
        found = comparison.difference.mean
        axes.plot([100 * found.low, 100 * found.high], [top, top], color=colour, linewidth=2.8, zorder=5)
        axes.plot(100 * found.value, top, "o", color=colour, markersize=9, markeredgecolor="white", zorder=6)
        ticks.append(top)
        labels.append(comparison.name if len(results.decoding) == 1 else f"{comparison.name}, {comparison.decoding}")
        count = f"{comparison.difference.seeds} seeds" if comparison.difference.seeds > 1 else "1 seed"
        text = f"p {_p(comparison.difference.p)}\nHolm p {_p(comparison.holm)}\n{count}"
        axes.annotate(text, (1.01, top), xycoords=("axes fraction", "data"), va="center", fontsize=9, color="#333333")
    axes.set_yticks(ticks, labels)
    main = {comparison.name for comparison in compared}
    main |= {f"{comparison.name}, {comparison.decoding}" for comparison in compared}
    for tick, label in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set(fontweight="bold") if label in main else tick.set(fontsize=9, color="#555555")
    axes.set_ylim(-0.62 - 0.5 * len(names), (len(compared) - 1) * step + 0.75)
    axes.set_xlabel("difference, percentage points (grey: its interval holds zero)")
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure


def _draw_interaction(results: StudyResults, analysis: Analysis) -> Figure | None:
    """The levels of the second factor along the axis, a line for each level of the first."""
    decoding = next(iter(results.decoding))
    rows = {row.name: row for row in analysis.rows[decoding] if row.kind == "arm"}
    if not results.effects:
        return None
    (line_factor, lines), (axis_factor, columns) = results.effects.items()
    if not all(arm in rows for arms in lines.values() for arm in arms):
        return None
    figure, panels = _panels(results, height=3.7, share=False)
    for axes, name in panels.items():
        for number, (level, arms) in enumerate(lines.items()):
            # The second level of a factor stands left, so that its effect is a rise to the right.
            order = [next(arm for arm in arms if arm in columns[side]) for side in reversed(columns)]
            colour, marker = _COLOURS[number], _MARKERS[number]
            seeds = [_seed_values(results, arm, decoding, name) for arm in order]
            if len(seeds[0]) == len(seeds[1]):
                for pair in zip(*seeds, strict=True):
                    axes.plot([0, 1], [100 * value for value in pair], color=colour, alpha=0.22, linewidth=1)
            found = [_of(rows[arm].accuracy, name) for arm in order]
            _with_errors(
                axes, [0.04 * number - 0.02, 1 + 0.04 * number - 0.02], found, colour, marker, f"{line_factor} {level}"
            )
        axes.set_xticks([0, 1], [f"{axis_factor}\n{side}" for side in reversed(columns)])
        axes.set_xlim(-0.3, 1.3)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    figure.supylabel("right answers, %", fontsize=11)
    _legend(figure, panels, columns=2)
    return figure


def _draw_curve(results: StudyResults, analysis: Analysis) -> Figure | None:
    """Accuracy over the updates."""
    decoding = next(iter(results.decoding))
    curves = {arm: points for arm, points in analysis.curves[decoding].items() if len(points) > 1}
    if not curves:
        return None
    figure, panels = _panels(results, height=3.5, share=False)
    for axes, name in panels.items():
        for arm, points in curves.items():
            colour, marker = _look(results, arm)
            steps, found = list(points), [_of(point, name) for point in points.values()]
            by_seed = [_seeds_at(results, arm, decoding, name, step) for step in steps]
            for seed in by_seed[-1]:
                known = [(step, values[seed]) for step, values in zip(steps, by_seed, strict=True) if seed in values]
                axes.plot([s for s, _ in known], [100 * v for _, v in known], color=colour, alpha=0.22, linewidth=1)
            axes.fill_between(
                steps,
                [100 * e.low for e in found],
                [100 * e.high for e in found],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
            axes.plot(
                steps,
                [100 * e.value for e in found],
                marker=marker,
                color=colour,
                markersize=6,
                markeredgecolor="white",
                linewidth=2,
                label=arm,
            )
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    figure.supylabel("right answers, %", fontsize=11)
    figure.supxlabel("update", fontsize=11)
    if len(curves) > 1:
        _legend(figure, panels, columns=min(5, len(curves)))
    return figure


def _draw_strength(results: StudyResults, analysis: Analysis) -> Figure | None:
    """The gain of each arm over the accuracy of its teacher."""
    decoding, names = next(iter(results.decoding)), teachers(results)
    strength = {row.name: row.accuracy.mean for row in analysis.rows[decoding] if row.kind == "teacher"}
    gains = {arm: gain for arm, gain in analysis.gains[decoding].items() if names[arm] in strength}
    if len({names[arm] for arm in gains}) < 2:
        return None
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=_AXIS, linewidth=1.2)
    for arm, gain in gains.items():
        colour, marker = _look(results, arm)
        teacher = strength[names[arm]]
        places = [100 * teacher.value + 0.25 * shift for shift in _shifts(gain.seeds)]
        _seed_dots(axes, places, [100 * value for value in gain.by_seed], colour)
        axes.plot(
            [100 * teacher.low, 100 * teacher.high], [100 * gain.mean.value] * 2, color=colour, linewidth=1.2, alpha=0.6
        )
        _with_errors(axes, [100 * teacher.value], [gain.mean], colour, marker, f"{arm} ({results.arms[arm].teacher})")
    axes.set_xlabel("right answers of the teacher, %, mean of the benchmarks")
    axes.set_ylabel("gain over base, percentage points")
    axes.grid(color=_GRID, linewidth=0.8)
    axes.margins(x=0.12)
    _legend(figure, [axes], columns=2)
    return figure


def _draw_decoding(results: StudyResults, analysis: Analysis) -> Figure | None:
    """Accuracy under each way to decode, from few tokens a forward to many."""
    rates = {setting: rate for setting in results.decoding if (rate := tokens_a_forward(results, setting))}
    settings = sorted(rates, key=rates.__getitem__)
    if len(settings) < 2:
        return None
    figure, panels = _panels(results, height=3.8, share=False)
    names = list(dict.fromkeys(row.name for d in settings for row in analysis.rows[d] if row.kind != "teacher"))
    for axes, benchmark in panels.items():
        for number, name in enumerate(names):
            rows = [next((row for row in analysis.rows[d] if row.name == name), None) for d in settings]
            known = [(k, row) for k, row in enumerate(rows) if row is not None]
            base = name not in results.arms
            colour, marker = (_BASE, "o") if base else _look(results, name)
            shift = 0.12 * (number - (len(names) - 1) / 2)
            places = [k + shift for k, _ in known]
            if not base:
                for place, (k, _) in zip(places, known, strict=True):
                    seeds = [100 * value for value in _seed_values(results, name, settings[k], benchmark)]
                    _seed_dots(axes, [place + 0.03 * shift for shift in _shifts(len(seeds))], seeds, colour)
            found = [_of(row.accuracy, benchmark) for _, row in known]
            _with_errors(axes, places, found, colour, marker, name, style="none")
        labels = [f"{setting} ({rates[setting]:.1f})" for setting in settings]
        axes.set_xticks(range(len(settings)), labels, rotation=30, ha="right", rotation_mode="anchor")
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
    figure.supylabel("right answers, %", fontsize=11)
    figure.supxlabel("way to decode (tokens a forward)", fontsize=11)
    _legend(figure, panels, columns=min(5, len(names)))
    return figure


def _draw_routes(results: StudyResults, analysis: Analysis) -> Figure | None:
    """The share of the questions on each route, over a training."""
    if not analysis.routes:
        return None
    columns = min(4, len(analysis.routes))
    lines = -(-len(analysis.routes) // columns)
    figure = Figure(figsize=(2.5 * columns + 0.6, 2.5 * lines + 0.6), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    middle = [(k + 0.5) * 100 / PARTS for k in range(PARTS)]
    for axes, route_shares in zip(grid.flat, analysis.routes, strict=False):
        shares = 100 * np.array(route_shares.parts).T
        labels, colours = zip(*_ROUTES, strict=True)
        axes.stackplot(middle, shares, labels=labels, colors=colours, edgecolor="white", linewidth=0.8)
        axes.set_title(route_shares.arm)
        axes.set(xlim=(middle[0], middle[-1]), ylim=(0, 100))
    for axes in list(grid.flat)[len(analysis.routes) :]:
        axes.set_visible(False)
    figure.supxlabel("share of the updates, %", fontsize=11)
    figure.supylabel("questions, %", fontsize=11)
    _legend(figure, grid.flat, columns=4)
    return figure


# What figures have in common.


def _panels(results: StudyResults, *, height: float, share: bool = False) -> tuple[Figure, dict[Axes, str]]:
    """A panel for each benchmark and one for their mean, four or five in a row; height: of a row. share: the y axis."""
    names = [*results.benchmarks, _MEAN]
    columns = len(names) if len(names) <= 5 else 4
    lines = -(-len(names) // columns)
    figure = Figure(figsize=(1.2 + 2.3 * columns, 0.4 + height * lines), layout="constrained")
    grid = list(figure.subplots(lines, columns, sharey=share, squeeze=False).flat)
    for axes, name in zip(grid, names, strict=False):
        axes.set_title(name, fontweight="bold" if name == _MEAN else None)
    for axes in grid[len(names) :]:
        axes.set_visible(False)
    return figure, dict(zip(grid, names, strict=False))


def _legend(figure: Figure, panels: Iterable[Axes], *, columns: int) -> None:
    """One legend for all panels, above them, because the name of an axis may be below."""
    handles, labels = next(iter(panels)).get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def _look(results: StudyResults, arm: str) -> tuple[str, str]:
    number = list(results.arms).index(arm)
    return _COLOURS[number % len(_COLOURS)], _MARKERS[number % len(_MARKERS)]


def _of(found: Effect, name: str) -> Estimate:
    return found.mean if name == _MEAN else found.benchmarks[name]


def _seeds_at(results: StudyResults, arm: str, decoding: str, name: str, step: int | None) -> dict[int, float]:
    """The accuracy of each seed of an arm."""
    return {
        seed: float(np.mean([right.mean() for right in verdicts.values()]) if name == _MEAN else verdicts[name].mean())
        for seed, verdicts in results.of_arm(arm, decoding, step).items()
    }


def _seed_values(results: StudyResults, arm: str, decoding: str, name: str) -> list[float]:
    return list(_seeds_at(results, arm, decoding, name, None).values())


def _seed_dots(axes: Axes, x: Sequence[float], y: Sequence[float], colour: str) -> None:
    axes.plot(x, y, "o", color=colour, alpha=0.3, markersize=4.5, markeredgewidth=0, zorder=3)


def _shifts(count: int) -> list[float]:
    """Small steps to both sides of a line, so that it does not hide the dots, and dots do not hide each other."""
    return [(-1.5, 0.5, -0.5, 1.5)[k % 4] for k in range(count)]


def _with_errors(
    axes: Axes, x: Sequence[float], found: Sequence[Estimate], colour: str, marker: str, label: str, style: str = "-"
) -> None:
    values = [100 * estimate.value for estimate in found]
    below = [100 * (estimate.value - estimate.low) for estimate in found]
    above = [100 * (estimate.high - estimate.value) for estimate in found]
    axes.errorbar(
        x,
        values,
        yerr=[below, above],
        color=colour,
        marker=marker,
        markersize=8,
        markeredgecolor="white",
        linewidth=2,
        linestyle=style,
        capsize=0,
        elinewidth=2,
        label=label,
        zorder=5,
    )


def _p(value: float | None) -> str:
    return "–" if value is None else "< 0.001" if value < 1e-3 else f"= {value:.3f}"
