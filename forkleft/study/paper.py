"""The paper's own numbers: its counts, and every figure of its text recomputed from them.

    from forkleft.study.paper import read_paper, recompute
    figures = recompute(read_paper(), "order-view")

`paper.yaml` holds the counts of the appendix and, for each figure that follows from counts, where the paper prints it,
what it prints, and a formula. A formula is the name of a function below, and its argument: columns of the counts (a
column is a model). It gives one value (`WHOLE`), or one for each benchmark (`EACH`).

Values are exact fractions, in the unit in which the paper prints them: per cent, percentage points, items. The paper
rounds halves up (45.625 is printed 45.63); so do we before comparing. Intervals are those of `statistics`, at 95%.
If items are translations of fewer questions, the questions count as the items: the translations of a question are
taken to be all right or all wrong together, which is the least information that they can give.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from importlib.resources import files
from typing import Any

import yaml

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import Estimate, contrast, equal_weight_mean, wilson_interval

# The keys of a figure beside its formula.
_ABOUT = ("what", "place", "printed", "benchmarks", "note")
# The largest change, in items, that the paper does not count as one.
_SMALL_CHANGE = 2
# Only on benchmarks with more items is it remarkable that two models have the same count.
_LARGE = 100


@dataclass(frozen=True)
class Paper:
    """The counts of the paper.

    counts, published: column → benchmark → right answers, or per cent where others published no counts. questions: of
    benchmarks whose items are translations. sections: name → its `title`, `figures` and `compare`, as in the file.
    """

    items: Mapping[str, int]
    questions: Mapping[str, int]
    counts: Mapping[str, Mapping[str, int]]
    published: Mapping[str, Mapping[str, Fraction]]
    routes: Mapping[str, Mapping[str, int]]
    probe: Mapping[str, int]
    sections: Mapping[str, Mapping[str, Any]]

    def percent(self, column: str, benchmark: str) -> Fraction:
        """The accuracy of a model, exactly."""
        if column in self.published:
            return self.published[column][benchmark]
        return Fraction(100 * self.counts[column][benchmark], self.items[benchmark])

    def accuracy(self, column: str, benchmark: str) -> Estimate:
        """The same as a share, with Wilson's interval."""
        count, items = self.counts[column][benchmark], self.items[benchmark]
        units = self.questions.get(benchmark, items)
        return Estimate(count / items, *wilson_interval(count * units / items, units))


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, and what its counts say.

    benchmark: None for a figure over several. printed: as the paper has it, None if it does not. interval: where there
    is one, in the unit of the value.
    """

    what: str
    place: str | None
    benchmark: str | None
    printed: str | None
    value: Fraction | str
    interval: tuple[float, float] | None
    note: str | None

    @property
    def digits(self) -> int:
        """Decimals that the paper prints, or that fit."""
        if self.printed is not None:
            return len(self.printed.partition(".")[2])
        return 0 if isinstance(self.value, str) or self.value.denominator == 1 else 2

    @property
    def agrees(self) -> bool | None:
        """Whether the printed figure is the value, to the printed digits; None if nothing is printed."""
        if self.printed is None:
            return None
        if isinstance(self.value, str):
            return self.printed == self.value
        return rounded(self.value, self.digits) == Fraction(self.printed)


def read_paper() -> Paper:
    """The numbers of the paper, from the package."""
    data = yaml.safe_load(files("forkleft.study").joinpath("paper.yaml").read_text(encoding="utf-8"))
    counts: dict[str, dict[str, int]] = {}
    for table in data.pop("tables").values():
        counts |= _columns(table)
    # Each table repeats the number of items.
    del counts["items"]
    published = {
        name: {benchmark: Fraction(text) for benchmark, text in column.items()}
        for name, column in _columns(data.pop("published")).items()
    }
    return Paper(**data, counts=counts, published=published)


def _columns(table: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Column → benchmark → entry, without those that are missing."""
    found: dict[str, dict[str, Any]] = {name: {} for name in table["columns"]}
    for benchmark, row in table["rows"].items():
        for name, entry in zip(table["columns"], row, strict=True):
            if entry is not None:
                found[name][benchmark] = entry
    return found


def recompute(paper: Paper, section: str) -> list[Figure]:
    """The figures of a section. ForkLeftError if there is none of that name."""
    if section not in paper.sections:
        raise ForkLeftError(f"there is no table {section!r}; there are {', '.join(paper.sections)}")
    return [figure for entry in paper.sections[section]["figures"] for figure in _figures(paper, entry)]


def _figures(paper: Paper, entry: Mapping[str, Any]) -> list[Figure]:
    ((name, argument),) = ((key, value) for key, value in entry.items() if key not in _ABOUT)
    benchmarks = entry.get("benchmarks", list(paper.items))
    about = partial(Figure, what=entry["what"], place=entry.get("place"))
    printed, note, interval = entry.get("printed"), entry.get("note"), _INTERVALS.get(name)
    if name in WHOLE:
        value = WHOLE[name](paper, argument, benchmarks)
        ends = interval and interval(paper, argument, benchmarks)
        return [about(benchmark=None, printed=printed, value=value, interval=ends, note=note)]
    words = [None] * len(benchmarks) if printed is None else printed.split()
    return [
        about(
            benchmark=benchmark,
            printed=word,
            value=EACH[name](paper, argument, benchmark),
            interval=interval and interval(paper, argument, [benchmark]),
            note=note,
        )
        for benchmark, word in zip(benchmarks, words, strict=True)
    ]


def rounded(value: Fraction, digits: int) -> Fraction:
    """To so many decimals, halves away from zero."""
    scale = 10**digits
    whole = (abs(value) * scale + Fraction(1, 2)) // 1
    return Fraction(whole if value >= 0 else -whole, scale)


# Formulas that give a value for each benchmark.


def _gain(paper: Paper, columns: Sequence[str], benchmark: str) -> Fraction:
    """How far the first is above the second, in percentage points."""
    first, second = columns
    return paper.percent(first, benchmark) - paper.percent(second, benchmark)


def _net(paper: Paper, columns: Sequence[str], benchmark: str) -> Fraction:
    """The same in items."""
    first, second = columns
    return Fraction(paper.counts[first][benchmark] - paper.counts[second][benchmark])


def _margin(paper: Paper, columns: Sequence[str], benchmark: str) -> Fraction:
    """How far the first is above the best of the others, in percentage points."""
    first, *others = (paper.percent(column, benchmark) for column in columns)
    return first - max(others)


def _behind(paper: Paper, columns: Sequence[str], benchmark: str) -> Fraction:
    """How many items the first is below the published percentage of the second."""
    return -_gain(paper, columns, benchmark) * paper.items[benchmark] / 100


def _routes(paper: Paper, weights: Mapping[str, int], benchmark: str) -> Fraction:
    """A sum of the four counts of who is right."""
    return Fraction(sum(weight * paper.routes[benchmark][name] for name, weight in weights.items()))


def _route_share(paper: Paper, names: Sequence[str], benchmark: str) -> Fraction:
    """What per cent of the items the named counts are."""
    return 100 * _routes(paper, dict.fromkeys(names, 1), benchmark) / paper.items[benchmark]


EACH: Mapping[str, Callable[[Paper, Any, str], Fraction]] = {
    "items": lambda paper, _, benchmark: Fraction(paper.items[benchmark]),
    "item": lambda paper, count, benchmark: Fraction(100 * count, paper.items[benchmark]),
    "accuracy": lambda paper, column, benchmark: paper.percent(column, benchmark),
    "gain": _gain,
    "net": _net,
    "margin": _margin,
    "behind": _behind,
    "routes": _routes,
    "route share": _route_share,
}


# Formulas that give one value over several benchmarks.


def _mean(paper: Paper, weights: Mapping[str, float], benchmarks: Sequence[str]) -> Fraction:
    """A weighted sum of the columns' equal-weight means, in per cent: a mean gain, an effect, an interaction."""
    parts = (
        Fraction(weight) * paper.percent(name, benchmark)
        for name, weight in weights.items()
        for benchmark in benchmarks
    )
    return sum(parts, Fraction(0)) / len(benchmarks)


def _scores(paper: Paper, columns: Sequence[str], benchmark: str) -> list[Fraction]:
    """The accuracies of the columns; if published figures are among them, all rounded to their one decimal."""
    scores = [paper.percent(column, benchmark) for column in columns]
    return [rounded(score, 1) for score in scores] if set(columns) & paper.published.keys() else scores


def _count(paper: Paper, columns: Sequence[str], benchmarks: Sequence[str], *, signs: set[int]) -> Fraction:
    """The benchmarks on which the first is above (1), level with (0) or below (-1) the best of the others."""
    found = 0
    for benchmark in benchmarks:
        first, *others = _scores(paper, columns, benchmark)
        found += (first > max(others)) - (first < max(others)) in signs
    return Fraction(found)


def _all_higher(paper: Paper, pairs: Sequence[Sequence[str]], benchmarks: Sequence[str]) -> str:
    """Whether the first of each pair is above the second on each benchmark."""
    return "yes" if all(_count(paper, pair, benchmarks, signs={1}) == len(benchmarks) for pair in pairs) else "no"


def _never_falls(paper: Paper, columns: Sequence[str], benchmarks: Sequence[str]) -> Fraction:
    """The benchmarks on which no column is below the one before it."""
    steps = list(itertools.pairwise(columns))
    return Fraction(sum(all(_net(paper, (b, a), benchmark) >= 0 for a, b in steps) for benchmark in benchmarks))


def _larger_falls(paper: Paper, columns: Sequence[str], benchmarks: Sequence[str]) -> str:
    """The benchmarks on which the first is below the second by more items than the paper counts as no change."""
    return " ".join(benchmark for benchmark in benchmarks if _net(paper, columns, benchmark) < -_SMALL_CHANGE) or "none"


def _repeats(paper: Paper, columns: Sequence[str], benchmarks: Sequence[str]) -> Fraction:
    """The benchmarks of many items on which both have the same count."""
    return _count(paper, columns, [benchmark for benchmark in benchmarks if paper.items[benchmark] > _LARGE], signs={0})


def _least_no_lower(paper: Paper, pairs: Sequence[Sequence[str]], benchmarks: Sequence[str]) -> Fraction:
    """The number of benchmarks on which the first of a pair is no lower than the second: the smallest of all pairs."""
    return min(_count(paper, pair, benchmarks, signs={0, 1}) for pair in pairs)


def _smallest_gains(paper: Paper, argument: Mapping[str, Any], benchmarks: Sequence[str]) -> Fraction:
    """How many of the benchmarks are among those with the `count` smallest gains."""
    order = sorted(paper.items, key=lambda benchmark: _gain(paper, argument["gain"], benchmark))
    return Fraction(len({*order[: argument["count"]]} & {*benchmarks}))


def _rise_together(paper: Paper, argument: Mapping[str, Sequence[str]], benchmarks: Sequence[str]) -> str:
    """Whether teachers in the given order, and the students taught by them, have rising means.

    Teachers are measured by the benchmarks that all of the paper's have, which are those that Q3-4B has.
    """
    strengths = [_mean(paper, {column: 1}, list(paper.counts["Q3-4B"])) for column in argument["teachers"]]
    means = [_mean(paper, {column: 1}, benchmarks) for column in argument["students"]]
    rising = (a < b for values in (strengths, means) for a, b in itertools.pairwise(values))
    return "yes" if all(rising) else "no"


def _extreme_margin(paper: Paper, columns: Sequence[str], benchmarks: Sequence[str], *, of: Any) -> str:
    """The benchmark of the largest or smallest margin."""
    return of(benchmarks, key=lambda benchmark: _margin(paper, columns, benchmark))


WHOLE: Mapping[str, Callable[[Paper, Any, Sequence[str]], Fraction | str]] = {
    "mean": _mean,
    "higher": partial(_count, signs={1}),
    "level": partial(_count, signs={0}),
    "lower": partial(_count, signs={-1}),
    "no lower": partial(_count, signs={0, 1}),
    "all higher": _all_higher,
    "never falls": _never_falls,
    "larger falls": _larger_falls,
    "repeats": _repeats,
    "least no lower": _least_no_lower,
    "smallest gains": _smallest_gains,
    "rise together": _rise_together,
    "largest margin": partial(_extreme_margin, of=max),
    "smallest margin": partial(_extreme_margin, of=min),
    "probe": lambda paper, names, _: Fraction(sum(paper.probe[name] for name in names)),
    "probe share": lambda paper, names, _: Fraction(100 * paper.probe[names[0]], paper.probe[names[1]]),
}


# Intervals. Models are taken as independent, which makes those of differences wide (`statistics.contrast`).


def _mean_interval(paper: Paper, weights: Mapping[str, float], benchmarks: Sequence[str]) -> tuple[float, float]:
    found = equal_weight_mean(
        [
            contrast([(weight, paper.accuracy(name, benchmark)) for name, weight in weights.items()])
            for benchmark in benchmarks
        ]
    )
    return 100 * found.low, 100 * found.high


_INTERVALS: Mapping[str, Callable[[Paper, Any, Sequence[str]], tuple[float, float]]] = {
    "mean": _mean_interval,
    "accuracy": lambda paper, column, benchmarks: _mean_interval(paper, {column: 1}, benchmarks),
    "gain": lambda paper, columns, benchmarks: _mean_interval(paper, {columns[0]: 1, columns[1]: -1}, benchmarks),
}
