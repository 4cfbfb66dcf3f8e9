"""`forkleft compare`: two models on the same items, paired.

    compare("results/base", "results/distilled")

Accuracies with intervals, the gain of the second over the first on the items that both answered, the exact McNemar test
with Holm's correction over the benchmarks, and the equal-weight mean. Everything is computed from the records. Where
items come in clusters (the 55 translations of a question of MT-AIME2024), or have several samples, intervals are
clustered bootstraps, and there is no McNemar test, which needs independent verdicts.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forkleft.digests import differences
from forkleft.errors import ForkLeftError
from forkleft.evaluate.results import (
    Record,
    Results,
    Score,
    accuracy_of,
    clustered,
    item_scores,
    read_results,
    unfinished,
)
from forkleft.evaluate.statistics import Estimate, clustered_gain, equal_weight_mean, holm, mcnemar, paired_gain

# What two models are expected to differ in, and what the table shows elsewhere.
_NO_SETTINGS = ("model.fingerprint", "sampler.seed", "sampler.samples")
# What means the same for a teacher and a student.
_FOR_ALL_KINDS = ("sampler.max_new_tokens", "model.dtype", "model.device")
_MOST_DIGITS = 4
_CAPTION = "%, 95% interval, right/asked; gain is B minus A on the same items"
_MARK = "†"
_HEADINGS = ("benchmark", "items", "A", "B", "gain", "only A/B", "p", "Holm p")


@dataclass(frozen=True)
class BenchmarkGain:
    """Two models on the items of a benchmark that both answered.

    right_a, right_b: how many of the responses (tries_a, tries_b) are right; an item has one response, or one for each
    sample. only_a, only_b: items that only this model got right. p: exact McNemar test. These three are None where
    items have several samples, and p also where items come in clusters. holm: p corrected for the number of benchmarks
    tested.
    """

    benchmark: str
    items: int
    a: Estimate
    b: Estimate
    gain: Estimate
    right_a: int
    right_b: int
    tries_a: int
    tries_b: int
    interval: str
    only_a: int | None
    only_b: int | None
    p: float | None
    holm: float | None


@dataclass(frozen=True)
class Comparison:
    """Two models on the benchmarks that both were measured on; b minus a. `notes`: what a reader must know."""

    a: str
    b: str
    rows: tuple[BenchmarkGain, ...]
    mean_a: Estimate
    mean_b: Estimate
    mean_gain: Estimate
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RouteCounts:
    """On how many items of a benchmark teacher and student are right (the paper's diagnostic)."""

    benchmark: str
    items: int
    both: int
    teacher_only: int
    student_only: int
    neither: int


def compare(
    a: str | Path,
    b: str | Path,
    *,
    routes: bool = False,
    digits: int = 1,
    as_json: bool = False,
    as_markdown: bool = False,
    console: Console | None = None,
) -> None:
    """Print the comparison of two folders of results: a table for a person, JSON or Markdown.

    routes: print instead how often teacher (a) and student (b) are right, together and alone. digits: decimals of a
    percentage; JSON has all. Raises ForkLeftError if there are no results, or they have no items in common.
    """
    if not 0 <= digits <= _MOST_DIGITS:
        raise ForkLeftError(f"digits must be from 0 to {_MOST_DIGITS}, found {digits}")
    found: Any
    notes: Sequence[str]
    if routes:
        counts, notes = compare_routes(a, b)
        found = {
            "teacher": str(a),
            "student": str(b),
            "rows": [asdict(count) for count in counts],
            "notes": list(notes),
        }
        title, heading, table = f"teacher {a}, student {b}", *_route_cells(counts, digits)
        caption = ""
    else:
        comparison = compare_results(a, b)
        found, notes = asdict(comparison), comparison.notes
        title, heading, table = f"A {a}, B {b}", _HEADINGS, _cells(comparison, digits)
        marked = any(_mark(row) for row in comparison.rows)
        caption = _CAPTION + (f"; {_MARK} clustered bootstrap" if marked else "")
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif as_markdown:
        print(_markdown(title, heading, table, caption, notes))
    else:
        _print(console or Console(), title, heading, table, caption, notes)


def compare_results(a: str | Path, b: str | Path) -> Comparison:
    """The comparison of two folders of results. ForkLeftError if they have no benchmark, or no items, in common."""
    pairs, notes = _pairs(a, b)
    found = []
    for name, results_a, results_b in pairs:
        scores_a, scores_b, said = _paired_scores(name, results_a, results_b)
        notes += said
        samples = _samples(results_a), _samples(results_b)
        found.append((name, samples, scores_a, scores_b))
        if samples[0] != samples[1]:
            notes.append(f"{name}: {samples[0]} samples an item in A, {samples[1]} in B")
    notes += _differing_settings(pairs)
    rows = [_gain_on(*benchmark) for benchmark in found]
    tested = {row.benchmark: row.p for row in rows if row.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return Comparison(
        str(a),
        str(b),
        tuple(replace(row, holm=corrected.get(row.benchmark)) for row in rows),
        equal_weight_mean([row.a for row in rows]),
        equal_weight_mean([row.b for row in rows]),
        equal_weight_mean([row.gain for row in rows]),
        tuple(notes),
    )


def compare_routes(teacher: str | Path, student: str | Path) -> tuple[list[RouteCounts], list[str]]:
    """The counts of both / teacher only / student only / neither for each benchmark, and notes.

    Raises ForkLeftError as `compare_results` does, and also if teacher and student are swapped, or if an item has
    several samples: a route needs one verdict.
    """
    pairs, notes = _pairs(teacher, student)
    counts = []
    for name, results_t, results_s in pairs:
        kinds = [results.summary["configuration"]["model"]["kind"] for results in (results_t, results_s)]
        if kinds == ["diffusion", "autoregressive"]:
            raise ForkLeftError(
                f"{name}: expected the teacher first, found a diffusion model in {teacher} and an autoregressive one "
                f"in {student}; swap the two: --routes {student} {teacher}"
            )
        if max(_samples(results_t), _samples(results_s)) > 1:
            raise ForkLeftError(f"{name}: routes need one response an item, found several samples; evaluate with one")
        scores_t, scores_s, said = _paired_scores(name, results_t, results_s)
        notes += said
        table = paired_gain(_verdicts(scores_t), _verdicts(scores_s))
        counts.append(RouteCounts(name, len(scores_t), table.both, table.only_a, table.only_b, table.neither))
    return counts, notes + _differing_settings(pairs)


def _pairs(a: str | Path, b: str | Path) -> tuple[list[tuple[str, Results, Results]], list[str]]:
    """The benchmarks that both folders have results of, and notes about the others."""
    results_a, results_b = read_results(a), read_results(b)
    names = [name for name in results_a if name in results_b]
    if not names:
        raise ForkLeftError(
            f"no benchmark in common: {a} has {', '.join(results_a)}, {b} has {', '.join(results_b)}; evaluate both on "
            "the same"
        )
    notes = [
        f"{name}: only in {where}, left out"
        for where, here, there in ((a, results_a, results_b), (b, results_b, results_a))
        for name in here
        if name not in there
    ]
    notes += [f"{name}: UNFINISHED in {where}, left out" for where in (a, b) for name in unfinished(where)]
    return [(name, results_a[name], results_b[name]) for name in names], notes


def _paired_scores(
    name: str, results_a: Results, results_b: Results
) -> tuple[dict[str, Score], dict[str, Score], list[str]]:
    """The scores of the items that both answered, by their ids in A, and notes if those are not all items."""
    protocols = [results.summary["configuration"]["protocol"] for results in (results_a, results_b)]
    if protocols[0] != protocols[1]:
        raise ForkLeftError(
            f"{name}: the protocol is {protocols[0]} in {results_a.folder} and {protocols[1]} in {results_b.folder}, "
            "which are not the same task; evaluate both by one"
        )
    scores_a, scores_b = (item_scores(results.records) for results in (results_a, results_b))
    common = _same_items(results_a.records, results_b.records)
    if not common:
        raise ForkLeftError(
            f"{name}: {results_a.folder} and {results_b.folder} have no item in common; compare the same data"
        )
    notes = []
    if len(common) < max(len(scores_a), len(scores_b)):
        notes.append(
            f"{name}: DIFFERENT ITEM SETS, {len(scores_a)} in A and {len(scores_b)} in B; compared on the "
            f"{len(common)} in common"
        )
    expected = results_a.summary["results"]["expected_items"]
    if len(common) != expected:
        notes.append(f"{name}: {len(common)} items, the benchmark has {expected}")
    # Copies of the data may have other ids, and only one of them may say which items are translations.
    by_b = clustered(scores_b) and not clustered(scores_a)
    clusters = {id_: scores_b[other].cluster if by_b else scores_a[id_].cluster for id_, other in common.items()}
    return (
        {id_: Score(scores_a[id_].value, clusters[id_]) for id_ in common},
        {id_: Score(scores_b[other].value, clusters[id_]) for id_, other in common.items()},
        notes,
    )


def _same_items(records_a: Sequence[Record], records_b: Sequence[Record]) -> dict[str, str]:
    """The id in B of each item of A that is in B too, in A's order.

    Items are matched by what was asked, not by id: copies of a benchmark name items differently, and another wording
    under the same id is another item. If a question occurs more than once, items with the same id are matched first,
    and the others in their order.
    """
    asked_a, asked_b = ({record.id: record.item for record in records} for records in (records_a, records_b))
    found = {id_: id_ for id_, asked in asked_a.items() if asked_b.get(id_) == asked}
    left: dict[str, list[str]] = {}
    for id_, asked in asked_b.items():
        if id_ not in found:
            left.setdefault(asked, []).append(id_)
    for id_, asked in asked_a.items():
        if id_ not in found and left.get(asked):
            found[id_] = left[asked].pop(0)
    return {id_: found[id_] for id_ in asked_a if id_ in found}


def _gain_on(
    name: str, samples: tuple[int, int], scores_a: dict[str, Score], scores_b: dict[str, Score]
) -> BenchmarkGain:
    a, interval = accuracy_of(scores_a, max(samples))
    b, _ = accuracy_of(scores_b, max(samples))
    # A score is the share of an item's samples that are right.
    right_a, right_b = (
        round(count * sum(score.value for score in scores.values()))
        for count, scores in zip(samples, (scores_a, scores_b), strict=True)
    )
    tries_a, tries_b = (count * len(scores_a) for count in samples)
    counts = (right_a, right_b, tries_a, tries_b)
    if max(samples) > 1:
        gain = _clustered_gain(scores_a, scores_b)
        return BenchmarkGain(
            name, len(scores_a), a, b, gain, *counts, interval, only_a=None, only_b=None, p=None, holm=None
        )
    table = paired_gain(_verdicts(scores_a), _verdicts(scores_b))
    if clustered(scores_a):
        gain, p = _clustered_gain(scores_a, scores_b), None
    else:
        gain, p = Estimate(table.value, table.low, table.high), mcnemar(table.only_a, table.only_b)
    return BenchmarkGain(name, len(scores_a), a, b, gain, *counts, interval, table.only_a, table.only_b, p, holm=None)


def _clustered_gain(scores_a: dict[str, Score], scores_b: dict[str, Score]) -> Estimate:
    clusters = [score.cluster for score in scores_a.values()]
    values_a, values_b = ([score.value for score in scores.values()] for scores in (scores_a, scores_b))
    if len(set(clusters)) < 2:
        # As for accuracies: one cluster says nothing about others.
        return Estimate((sum(values_b) - sum(values_a)) / len(values_a), -1.0, 1.0)
    return clustered_gain(values_a, values_b, clusters)


def _verdicts(scores: dict[str, Score]) -> list[float]:
    return [score.value for score in scores.values()]


def _samples(results: Results) -> int:
    return results.summary["results"]["samples"]


def _differing_settings(pairs: Sequence[tuple[str, Results, Results]]) -> list[str]:
    """Differences other than the weights that may explain a gain, each with the benchmarks it applies to."""
    found: dict[str, list[str]] = {}
    for name, *both in pairs:
        a, b = (results.summary["configuration"] for results in both)
        # A teacher and a student always differ in model and sampler.
        differ_by_nature = ("model.", "sampler.") if a["model"]["kind"] != b["model"]["kind"] else ()
        for key, of_a, of_b in differences(a, b):
            if key in _NO_SETTINGS or key.startswith("items."):
                continue
            if key.startswith(differ_by_nature) and (key not in _FOR_ALL_KINDS or None in (of_a, of_b)):
                continue
            label = key.removeprefix("sampler.")
            found.setdefault(f"{label} is {of_a} in A and {of_b} in B", []).append(name)
    return [f"{', '.join(names)}: {difference}" for difference, names in found.items()]


def _accuracy(estimate: Estimate, digits: int, count: str = "") -> str:
    value, low, high = (f"{100 * x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}–{high}{count and f'; {count}'})"


def _gain(estimate: Estimate, digits: int) -> str:
    value, low, high = (f"{100 * x:+.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}, {high})"


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.001" if value < 1e-3 else f"{value:.3f}"


def _mark(row: BenchmarkGain) -> str:
    """The sign that marks a bootstrapped interval."""
    return "" if row.interval == "wilson" else f" {_MARK}"


def _cells(comparison: Comparison, digits: int) -> list[tuple[str, ...]]:
    rows = []
    for row in comparison.rows:
        alone = "–" if row.only_a is None else f"{row.only_a}/{row.only_b}"
        a = _accuracy(row.a, digits, f"{row.right_a}/{row.tries_a}")
        b = _accuracy(row.b, digits, f"{row.right_b}/{row.tries_b}")
        gain = _gain(row.gain, digits)
        rows.append((f"{row.benchmark}{_mark(row)}", str(row.items), a, b, gain, alone, _p(row.p), _p(row.holm)))
    mean = (
        _accuracy(comparison.mean_a, digits),
        _accuracy(comparison.mean_b, digits),
        _gain(comparison.mean_gain, digits),
    )
    return [*rows, ("mean", "", *mean, "", "", "")]


def _route_cells(counts: Sequence[RouteCounts], digits: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    heading = ("benchmark", "items", "both", "teacher only", "student only", "neither")
    rows = []
    for count in counts:
        four = (count.both, count.teacher_only, count.student_only, count.neither)
        rows.append((count.benchmark, str(count.items), *(f"{n} ({100 * n / count.items:.{digits}f}%)" for n in four)))
    return heading, rows


def _markdown(
    title: str, heading: Sequence[str], rows: Sequence[Sequence[str]], caption: str, notes: Sequence[str]
) -> str:
    lines = [f"{title}\n", f"| {' | '.join(heading)} |", f"| --- |{' ---: |' * (len(heading) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"\n{caption}"] if caption else []
    return "\n".join(lines + [f"\n**Note.** {note}" for note in notes])


def _print(
    console: Console,
    title: str,
    heading: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str,
    notes: Sequence[str],
) -> None:
    # Text, as a path may hold what Rich takes for markup.
    table = Table(title=Text(title), caption=caption or None, box=box.SIMPLE_HEAD, padding=0)
    for number, column in enumerate(_stacked(heading)):
        table.add_column(Text(column), justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        if row[0] == "mean":
            table.add_section()
        table.add_row(*map(Text, _stacked(row)))
    console.print(table)
    for note in notes:
        console.print(f"! {note}", style="bold yellow", markup=False, highlight=False)


def _stacked(row: Sequence[str]) -> list[str]:
    """A row with some figures below others, because all of them in one line are wider than 80 columns."""
    name, items, *cells = (cell.replace(" (", "\n").replace("; ", "\n").removesuffix(")") for cell in row)
    if len(row) == len(_HEADINGS):
        a, b, gain, alone, *p = cells
        cells = [a, b, f"{gain}\n{alone}".rstrip("\n"), *p]
    return [f"{name}\n{items}".rstrip("\n"), *cells]
