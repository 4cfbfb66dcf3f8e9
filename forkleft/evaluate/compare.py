"""`forkleft compare`: two models on the same items, paired.

    compare("results/base", "results/distilled")

Accuracies with intervals, the gain of the second over the first on the items that both answered, the exact McNemar test
with Holm's correction over the benchmarks, and the equal-weight mean. Everything is computed from the records. Where
items come in clusters (the 55 translations of a question of MT-AIME2024), or have several samples, intervals are
clustered bootstraps, and there is no McNemar test: it takes verdicts for independent.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
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

# What two models are expected to differ in, and what is told elsewhere.
_NO_SETTINGS = ("model.fingerprint", "sampler.seed", "sampler.samples")
# What means the same for a teacher and a student.
_FOR_ALL_KINDS = ("sampler.max_new_tokens", "model.dtype", "model.device")
_MOST_DIGITS = 4
_CAPTION = "%, 95% interval, right/asked; gain is B minus A on the same items"
_MARK = "†"
_HEADINGS = ("benchmark", "items", "A", "B", "gain", "only A/B", "p", "Holm p")


@dataclass(frozen=True)
class Row:
    """Two models on the items of a benchmark that both answered.

    right_a, right_b: right responses, of tries_a and tries_b: one an item, or as many as there are samples.
    only_a, only_b: items that one of them alone got right; with p, None where items have several samples. p: exact
    McNemar, also None where items come in clusters. holm: p corrected for the number of benchmarks tested.
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
    rows: tuple[Row, ...]
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

    routes: print instead how often teacher (a) and student (b) are right, together and alone. digits: behind the point
    of a percentage; JSON has all. Raises ForkLeftError if there are no results, or they have no items in common.
    """
    if not 0 <= digits <= _MOST_DIGITS:
        raise ForkLeftError(f"digits must be from 0 to {_MOST_DIGITS}, found {digits}")
    found: Any
    notes: Sequence[str]
    if routes:
        counts, notes = compare_routes(a, b)
        found = {"teacher": str(a), "student": str(b), "rows": [asdict(one) for one in counts], "notes": list(notes)}
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
    for name, one, two in pairs:
        scores_a, scores_b, said = _paired_scores(name, one, two)
        notes += said
        samples = _samples(one), _samples(two)
        found.append((name, samples, scores_a, scores_b))
        if samples[0] != samples[1]:
            notes.append(f"{name}: {samples[0]} samples an item in A, {samples[1]} in B")
    notes += _differing_settings(pairs)
    rows = [_row(*one) for one in found]
    tested = {row.benchmark: row.p for row in rows if row.p is not None}
    corrected = dict(zip(tested, holm(list(tested.values())), strict=True))
    return Comparison(
        str(a),
        str(b),
        tuple(Row(**{**vars(row), "holm": corrected.get(row.benchmark)}) for row in rows),
        equal_weight_mean([row.a for row in rows]),
        equal_weight_mean([row.b for row in rows]),
        equal_weight_mean([row.gain for row in rows]),
        tuple(notes),
    )


def compare_routes(teacher: str | Path, student: str | Path) -> tuple[list[RouteCounts], list[str]]:
    """The counts of both / teacher only / student only / neither for each benchmark, and notes.

    ForkLeftError as `compare_results`, where the two are named the wrong way round, and where an item has several
    samples: a route needs one verdict.
    """
    pairs, notes = _pairs(teacher, student)
    counts = []
    for name, one, two in pairs:
        kinds = [results.summary["configuration"]["model"]["kind"] for results in (one, two)]
        if kinds == ["diffusion", "autoregressive"]:
            raise ForkLeftError(
                f"{name}: expected the teacher first, found a diffusion model in {teacher} and an autoregressive one "
                f"in {student}; swap the two: --routes {student} {teacher}"
            )
        if max(_samples(one), _samples(two)) > 1:
            raise ForkLeftError(f"{name}: routes need one response an item, found several samples; evaluate with one")
        scores_t, scores_s, said = _paired_scores(name, one, two)
        notes += said
        table = paired_gain(_verdicts(scores_t), _verdicts(scores_s))
        counts.append(RouteCounts(name, len(scores_t), table.both, table.only_a, table.only_b, table.neither))
    return counts, notes + _differing_settings(pairs)


def _pairs(a: str | Path, b: str | Path) -> tuple[list[tuple[str, Results, Results]], list[str]]:
    """The benchmarks that both have results of, and what to say of the others."""
    one, two = read_results(a), read_results(b)
    names = [name for name in one if name in two]
    if not names:
        raise ForkLeftError(
            f"no benchmark in common: {a} has {', '.join(one)}, {b} has {', '.join(two)}; evaluate both on the same"
        )
    notes = [
        f"{name}: only in {where}, left out"
        for where, here, there in ((a, one, two), (b, two, one))
        for name in here
        if name not in there
    ]
    notes += [f"{name}: UNFINISHED in {where}, left out" for where in (a, b) for name in unfinished(where)]
    return [(name, one[name], two[name]) for name in names], notes


def _paired_scores(name: str, one: Results, two: Results) -> tuple[dict[str, Score], dict[str, Score], list[str]]:
    """The scores of the items that both answered, by their ids in A, and what to say if those are not all."""
    protocols = [results.summary["configuration"]["protocol"] for results in (one, two)]
    if protocols[0] != protocols[1]:
        raise ForkLeftError(
            f"{name}: the protocol is {protocols[0]} in {one.folder} and {protocols[1]} in {two.folder}, which are not "
            "the same task; evaluate both by one"
        )
    scores_a, scores_b = (item_scores(results.records) for results in (one, two))
    common = _same_items(one.records, two.records)
    if not common:
        raise ForkLeftError(f"{name}: {one.folder} and {two.folder} have no item in common; compare the same data")
    notes = []
    if len(common) < max(len(scores_a), len(scores_b)):
        notes.append(
            f"{name}: DIFFERENT ITEM SETS, {len(scores_a)} in A and {len(scores_b)} in B; compared on the "
            f"{len(common)} in common"
        )
    expected = one.summary["results"]["expected_items"]
    if len(common) != expected:
        notes.append(f"{name}: {len(common)} items, the benchmark has {expected}")
    # Items have other ids in another copy of the data, and only one copy may tell which are translations.
    by_b = clustered(scores_b) and not clustered(scores_a)
    clusters = {id_: scores_b[other].cluster if by_b else scores_a[id_].cluster for id_, other in common.items()}
    return (
        {id_: Score(scores_a[id_].value, clusters[id_]) for id_ in common},
        {id_: Score(scores_b[other].value, clusters[id_]) for id_, other in common.items()},
        notes,
    )


def _same_items(records_a: Sequence[Record], records_b: Sequence[Record]) -> dict[str, str]:
    """The id in B of each item of A that is in B too, in A's order.

    What was asked makes an item, not its id: copies of a benchmark name items differently, and another wording under
    the same id is another item. Where a question occurs more than once, those of the same id belong together, and the
    others in their order.
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


def _row(name: str, samples: tuple[int, int], scores_a: dict[str, Score], scores_b: dict[str, Score]) -> Row:
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
        return Row(name, len(scores_a), a, b, gain, *counts, interval, only_a=None, only_b=None, p=None, holm=None)
    table = paired_gain(_verdicts(scores_a), _verdicts(scores_b))
    if clustered(scores_a):
        gain, p = _clustered_gain(scores_a, scores_b), None
    else:
        gain, p = Estimate(table.value, table.low, table.high), mcnemar(table.only_a, table.only_b)
    return Row(name, len(scores_a), a, b, gain, *counts, interval, table.only_a, table.only_b, p, holm=None)


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
    """What a gain may come from other than the weights, each with the benchmarks it applies to."""
    found: dict[str, list[str]] = {}
    for name, *both in pairs:
        a, b = (results.summary["configuration"] for results in both)
        # A teacher and a student are other models, asked differently, by nature.
        differ_by_nature = ("model.", "sampler.") if a["model"]["kind"] != b["model"]["kind"] else ()
        for key, of_a, of_b in differences(a, b):
            if key in _NO_SETTINGS or key.startswith("items."):
                continue
            if key.startswith(differ_by_nature) and (key not in _FOR_ALL_KINDS or None in (of_a, of_b)):
                continue
            label = key.removeprefix("sampler.")
            found.setdefault(f"{label} is {of_a} in A and {of_b} in B", []).append(name)
    return [f"{', '.join(names)}: {told}" for told, names in found.items()]


def _accuracy(estimate: Estimate, digits: int, count: str = "") -> str:
    value, low, high = (f"{100 * x:.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}–{high}{count and f'; {count}'})"


def _gain(estimate: Estimate, digits: int) -> str:
    value, low, high = (f"{100 * x:+.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}, {high})"


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.001" if value < 1e-3 else f"{value:.3f}"


def _mark(row: Row) -> str:
    """Of bootstrapped intervals the reader should know."""
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
    for one in counts:
        four = (one.both, one.teacher_only, one.student_only, one.neither)
        rows.append((one.benchmark, str(one.items), *(f"{n} ({100 * n / one.items:.{digits}f}%)" for n in four)))
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
    """A row with some of its figures below others: one line of all of them is wider than 80 columns."""
    name, items, *cells = (cell.replace(" (", "\n").replace("; ", "\n").removesuffix(")") for cell in row)
    if len(row) == len(_HEADINGS):
        a, b, gain, alone, *p = cells
        cells = [a, b, f"{gain}\n{alone}".rstrip("\n"), *p]
    return [f"{name}\n{items}".rstrip("\n"), *cells]
