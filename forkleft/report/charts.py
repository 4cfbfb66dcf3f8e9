"""Charts as SVG, for a page of HTML: lines, stacked areas, and values with intervals; and tables.

Colours are classes (`c1` to `c8`) that the page's stylesheet defines for light and dark; lines differ by dashes, too,
and their ends by markers. All texts are escaped. Widths are in units of the drawing, which fills the width it is given.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from forkleft.evaluate.statistics import Estimate

COLOURS = 8
_WIDTH, _HEIGHT = 360, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 30
_SMOOTHED = 9
# Below so many points, a moving mean would hide what is there.
_FEW = 12
# So many columns are set closer, to fit a desktop's page.
_MANY_COLUMNS = 10

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A line. colour: from 1 on. marked: with a marker at each point, and not smoothed.

    behind: the lines of which it is the mean, drawn pale.
    """

    label: str
    points: Sequence[Point]
    colour: int
    marked: bool = False
    behind: Sequence[Sequence[Point]] = ()


def mean_series(label: str, lines: Sequence[Sequence[Point]], colour: int, *, marked: bool = False) -> Series:
    """The mean of lines, at each x over those that have it, with the lines behind it; a single line is itself."""
    if len(lines) == 1:
        return Series(label, lines[0], colour, marked)
    found: dict[float, list[float]] = {}
    for x, y in (point for line in lines for point in line):
        found.setdefault(x, []).append(y)
    means = [(x, sum(ys) / len(ys)) for x, ys in sorted(found.items())]
    return Series(label, means, colour, marked, behind=lines)


def smooth(values: Sequence[float]) -> list[float]:
    """Moving means over a window, which is cut at the ends."""
    half = _SMOOTHED // 2
    windows = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def line_chart(title: str, series: Sequence[Series], *, unit: str = "", zero: bool = True) -> str:
    """Lines over updates, pale, and their moving means; empty if there is nothing to draw.

    zero: the axis begins at 0. unit: of the values, behind the title.
    """
    drawn = [one for one in series if one.points]
    if not drawn:
        return ""
    points = [point for one in drawn for line in (one.points, *one.behind) for point in line]
    frame = _Frame.around([x for x, _ in points], [y for _, y in points], zero=zero)
    parts = [frame.axes()]
    for one in drawn:
        for line in one.behind:
            path = frame.path([x for x, _ in line], [y for _, y in line])
            parts.append(f'<polyline class="line c{_colour(one.colour)} raw" points="{path}"/>')
    for one in drawn:
        xs, ys = [x for x, _ in one.points], [y for _, y in one.points]
        # A single line needs no dashes to be told from others.
        style = f"line c{_colour(one.colour)}" + (f" d{_colour(one.colour)}" if len(drawn) > 1 else "")
        if one.marked:
            parts.append(f'<polyline class="{style}" points="{frame.path(xs, ys)}"/>')
            parts += [_marker(frame.x(x), frame.y(y), one.colour) for x, y in one.points]
        elif len(xs) < _FEW:
            parts.append(f'<polyline class="{style}" points="{frame.path(xs, ys)}"/>')
            parts += [_dot(frame.x(x), frame.y(y), one.colour) for x, y in one.points]
        else:
            if not one.behind:
                parts.append(f'<polyline class="{style} raw" points="{frame.path(xs, ys)}"/>')
            parts.append(f'<polyline class="{style}" points="{frame.path(xs, smooth(ys))}"/>')
    named = [one for one in drawn if one.label]
    said = "; ".join(f"{one.label} from {_short(one.points[0][1])} to {_short(one.points[-1][1])}" for one in named)
    return _figure(title, unit, said, parts, drawn)


def area_chart(
    title: str,
    steps: Sequence[float],
    layers: Mapping[str, Sequence[float]],
    *,
    unit: str = "",
    colours: Sequence[int] = range(1, COLOURS + 1),
) -> str:
    """Layers on top of each other over updates, smoothed; empty if there is nothing to draw. colours: of the layers."""
    shades = {label: colours[number % len(colours)] for number, label in enumerate(layers)}
    kept = {label: smooth(values) if len(steps) >= _FEW else list(values) for label, values in layers.items()}
    kept = {label: values for label, values in kept.items() if any(values)}
    if not steps or not kept:
        return ""
    tops, below = [], [0.0] * len(steps)
    for values in kept.values():
        above = [low + value for low, value in zip(below, values, strict=True)]
        tops.append((below, above))
        below = above
    # One update has no extent: it is drawn as a bar.
    xs = list(steps) if len(steps) > 1 else [steps[0], steps[0] + 1]
    frame = _Frame.around(xs, below, zero=True, tight=max(below) in (1.0, 100.0))
    shapes = []
    for label, (low, high) in zip(kept, tops, strict=True):
        if len(steps) == 1:
            low, high = low * 2, high * 2
        outline = f"{frame.path(xs, high)} {frame.path(xs[::-1], low[::-1])}"
        shapes.append(f'<polygon class="area c{_colour(shades[label])}" points="{outline}"/>')
    said = "; ".join(f"{label} from {_short(values[0])} to {_short(values[-1])}" for label, values in kept.items())
    legend = [Series(label, [(0.0, 0.0)], shades[label]) for label in kept]
    return _figure(title, unit, said, [*shapes, frame.axes()], legend, areas=True)


def interval_chart(title: str, rows: Sequence[tuple[str, Estimate]], *, signed: bool = True) -> str:
    """Values in points of percent with their intervals, one below the other, around a line at 0 if they are signed."""
    if not rows:
        return ""
    row, side = 36, 8
    low = min(0.0, *(100 * estimate.low for _, estimate in rows)) if signed else 0.0
    high = max(0.0, *(100 * estimate.high for _, estimate in rows)) if signed else 100.0
    ticks = _ticks(low, high, 6)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def x(value: float) -> float:
        return side + (_WIDTH - 2 * side) * (value - low) / ((high - low) or 1)

    height = row * len(rows) + 24
    parts = [f'<text class="tick mid" x="{x(t):.1f}" y="{height - 4}">{_short(t, signed)}</text>' for t in ticks]
    for number, (label, estimate) in enumerate(rows):
        # The words are above the line, where no axis runs through them.
        top = 4 + row * number
        y = top + 24
        for tick in ticks:
            style = "axis zero" if tick == 0 and signed else "axis"
            parts.append(f'<line class="{style}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{y - 8}" y2="{y + 8}"/>')
        value, start, end = (100 * part for part in (estimate.value, estimate.low, estimate.high))
        sure = "sure" if signed and (start > 0 or end < 0) else ""
        told = f"{value:+.1f} ({start:+.1f}, {end:+.1f})" if signed else f"{value:.1f} ({start:.1f}–{end:.1f})"
        parts += [
            f'<text class="label" x="0" y="{top + 12}">{escape(_clipped(label, 28))}</text>',
            f'<text class="number" x="{_WIDTH}" y="{top + 12}">{told}</text>',
            f'<line class="whisker {sure}" x1="{x(start):.1f}" x2="{x(end):.1f}" y1="{y}" y2="{y}"/>',
            f'<circle class="value {sure}" cx="{x(value):.1f}" cy="{y}" r="4"/>',
        ]
    said = "; ".join(f"{label} {100 * e.value:+.1f}" for label, e in rows)
    picture = _svg(f"{title}: {said}", parts, _WIDTH, height)
    return f'<figure class="chart wide"><figcaption>{escape(title)}</figcaption>{picture}</figure>'


def table(
    heading: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,), wrapped: Sequence[int] = ()
) -> str:
    """A table of escaped cells. words: the columns that hold words instead of figures; wrapped: those of many words."""

    def cell(tag: str, text: str, k: int) -> str:
        kind = ' class="words wrap"' if k in wrapped else ' class="words"' if k in words else ""
        return f"<{tag}{kind}>{escape(text)}</{tag}>"

    head = "".join(cell("th", text, k) for k, text in enumerate(heading))
    body = "".join("<tr>" + "".join(cell("td", text, k) for k, text in enumerate(row)) + "</tr>" for row in rows)
    dense = ' class="dense"' if len(heading) >= _MANY_COLUMNS else ""
    inner = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table{dense}>{inner}</table></div>'


@dataclass(frozen=True)
class _Frame:
    """From values to places in the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    @classmethod
    def around(cls, xs: Sequence[float], ys: Sequence[float], *, zero: bool, tight: bool = False) -> "_Frame":
        x_low, x_high = min(xs), max(xs)
        y_low, y_high = (min(0.0, *ys) if zero else min(ys)), max(ys)
        if not tight:
            ticks = _ticks(y_low, y_high, 4)
            y_low, y_high = min(y_low, ticks[0]), max(y_high, ticks[-1])
        return cls(x_low, x_high if x_high > x_low else x_low + 1, y_low, y_high if y_high > y_low else y_low + 1)

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - self.y_low) / (self.y_high - self.y_low)

    def path(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def axes(self) -> str:
        parts = []
        for tick in _ticks(self.y_low, self.y_high, 4):
            y = self.y(tick)
            parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4.5:.1f}">{_short(tick)}</text>')
        for tick in _ticks(self.x_low, self.x_high, 5, whole=True):
            parts.append(f'<text class="tick mid" x="{self.x(tick):.1f}" y="{_HEIGHT - 8}">{_short(tick)}</text>')
        return "".join(parts)


def _ticks(low: float, high: float, count: int, *, whole: bool = False) -> list[float]:
    """About `count` round numbers from low to high or a little further; with `whole`, only within, and whole."""
    span = (high - low) or abs(high) or 1.0
    rough = span / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 2.5, 5, 10) if power * unit >= rough * 0.999)
    if whole:
        step = max(1.0, round(step))
        first = math.ceil(low / step)
        return [k * step for k in range(first, math.floor(high / step) + 1)]
    first = math.floor(low / step + 1e-9)
    return [round(k * step, 12) for k in range(first, math.ceil(high / step - 1e-9) + 1)]


def _short(value: float, signed: bool = False) -> str:
    text = f"{value:.3g}" if abs(value) < 1e4 else f"{value / 1e3:.4g}k"
    return f"+{text}" if signed and value > 0 else text.replace("-", "−")


def _clipped(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _colour(number: int) -> int:
    return (number - 1) % COLOURS + 1


def _dot(x: float, y: float, colour: int) -> str:
    return f'<circle class="dot c{_colour(colour)}" cx="{x:.1f}" cy="{y:.1f}" r="2.4"/>'


def _marker(x: float, y: float, colour: int) -> str:
    return f'<path class="dot c{_colour(colour)}" d="M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5z"/>'


def _figure(
    title: str, unit: str, said: str, parts: Sequence[str], legend: Sequence[Series], *, areas: bool = False
) -> str:
    caption = escape(title) + (f' <span class="unit">{escape(unit)}</span>' if unit else "")
    keys = "".join(f"<li>{_key(one, areas)}{escape(one.label)}</li>" for one in legend if one.label)
    keys = keys if len(legend) > 1 else ""
    keys = keys and f'<ul class="legend">{keys}</ul>'
    picture = _svg(f"{title} over updates: {said}", parts, _WIDTH, _HEIGHT)
    return f'<figure class="chart"><figcaption>{caption}</figcaption>{picture}{keys}</figure>'


def _key(one: Series, areas: bool) -> str:
    colour = _colour(one.colour)
    if areas:
        mark = f'<rect class="area c{colour}" x="4" y="1" width="12" height="10" rx="2"/>'
    elif one.marked:
        mark = _marker(10, 6, one.colour)
    else:
        mark = f'<line class="line c{colour} d{colour}" x1="0" x2="20" y1="6" y2="6"/>'
    return f'<svg class="key" viewBox="0 0 20 12" aria-hidden="true">{mark}</svg>'


def _svg(label: str, parts: Sequence[str], width: int, height: int) -> str:
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
