"""What the results of a study show: accuracies, gains, comparisons, curves and routes, each with its interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from forkleft.evaluate.statistics import holm
from forkleft.study.effects import RESAMPLES, Discordance, Effect, discordances, effect
from forkleft.study.results import StudyResults, tables

RowKind = Literal["base", "arm", "teacher"]
# The effect of weighted arms, each given as its verdicts by benchmark.
Compute = Callable[[Sequence[tuple[float, Mapping[str, np.ndarray]]]], Effect]


@dataclass(frozen=True)
class AccuracyRow:
    """A model or arm and how often it is right. models: how many students, teachers or seeds it is the mean of."""

    kind: RowKind
    name: str
    models: int
    accuracy: Effect


@dataclass(frozen=True)
class ArmComparison:
    """A difference between arms, which it weighs against each other.

    holm: p corrected for all tests of the study. within: McNemar's test in each seed.
    """

    name: str
    decoding: str
    arms: tuple[str, ...]
    difference: Effect
    seeds: tuple[int, ...]
    holm: float
    within: tuple[Discordance, ...] = ()


@dataclass(frozen=True)
class Verdicts4:
    """On how many items of a benchmark teacher and student are right (the paper's diagnostic), as means over seeds.

    model: the student, and beside which teacher if arms have several.
    """

    model: str
    benchmark: str
    items: int
    both: float
    teacher_only: float
    student_only: float
    neither: float


@dataclass(frozen=True)
class RouteShares:
    """The share of an arm's training questions on each route, in the order of the routes, as means over seeds.

    first: at the first visit of each question. parts: in each tenth of the updates.
    """

    arm: str
    seeds: int
    first: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Analysis:
    """All that tables and figures show. Dictionaries are by decoding and arm, curves also by update."""

    rows: dict[str, list[AccuracyRow]]
    gains: dict[str, dict[str, Effect]]
    comparisons: list[ArmComparison]
    curves: dict[str, dict[str, dict[int, Effect]]]
    routes: list[RouteShares]
    verdicts: list[Verdicts4]


def analyse(results: StudyResults, resamples: int = RESAMPLES) -> Analysis:
    """Analyse the results there are so far. Arms without a seed that was measured on all benchmarks are left out."""

    def compute(terms: Sequence[tuple[float, Mapping[str, np.ndarray]]]) -> Effect:
        return effect(terms, results.clusters, resamples=resamples)

    rows: dict[str, list[AccuracyRow]] = {}
    gains: dict[str, dict[str, Effect]] = {}
    curves: dict[str, dict[str, dict[int, Effect]]] = {}
    compared = []
    for decoding in results.decoding:
        rows[decoding] = _rows(results, decoding, compute)
        gains[decoding], curves[decoding] = {}, {}
        for arm in results.arms:
            seeds, pair = tables([results.of_arm(arm, decoding), results.of_base(arm, decoding)])
            if seeds:
                gains[decoding][arm] = compute([(1, pair[0]), (-1, pair[1])])
            if results.curve:
                curves[decoding][arm] = _curve(results, arm, decoding, compute)
        compared += _comparisons(results, decoding, compute)
    corrected = holm([c.difference.p for c in compared if c.difference.p is not None])
    comparisons = [replace(c, holm=adjusted) for c, adjusted in zip(compared, corrected, strict=True)]
    return Analysis(rows, gains, comparisons, curves, _routes(results), _verdicts(results))


def by_student(
    results: StudyResults, arms: Sequence[str], found: Effect, decoding: str, *, gain: bool = False
) -> dict[str, list[float]]:
    """The values of an effect by seed, sorted by the student that the first of its arms began with.

    arms: those of the effect; gain: it is that of one arm over its base. A study whose seeds take turns with students
    has several. Seeds whose base was not measured yet are left out.
    """
    measured = [results.of_arm(arm, decoding) for arm in arms]
    if gain:
        measured.append(results.of_base(arms[0], decoding))
    places = [place for place in results.places if place.arm == arms[0] and place.base in results.cells]
    begun = {place.seed: results.cells[place.base].label for place in places}
    values: dict[str, list[float]] = {}
    for seed, value in zip(tables(measured)[0], found.by_seed, strict=True):
        if seed in begun:
            values.setdefault(begun[seed].removeprefix("base "), []).append(value)
    return values


def tokens_a_forward(results: StudyResults, decoding: str, arm: str | None = None) -> float | None:
    """How many tokens an arm, or all arms together, wrote in a forward under one way to decode; None: not measured."""
    cells = [results.cells[p.cell] for p in results.places if arm in (None, p.arm) and p.cell in results.cells]
    found = [m for cell in cells for m in cell.measured if (m.decoding, m.step) == (decoding, None)]
    return sum(m.tokens for m in found) / sum(m.forwards for m in found) if found else None


def bases(results: StudyResults) -> dict[str, str]:
    """The base of each arm by name: `base` if all arms begin with the same students, else `base of ARM`."""
    begun = {arm: frozenset(p.base for p in results.places if p.arm == arm) for arm in results.arms}
    return _shared_names("base", begun)


def teachers(results: StudyResults) -> dict[str, str]:
    """The teacher of each arm by name: `teacher` if all arms have the same, else `teacher of ARM`."""
    taught = {arm: frozenset(p.teacher for p in results.places if p.arm == arm) for arm in results.arms}
    return _shared_names("teacher", taught)


def _shared_names(kind: str, models: Mapping[str, frozenset[str]]) -> dict[str, str]:
    """A name for each set of models: that of the first arm with it, or no arm's if all have the same."""
    if len(set(models.values())) == 1:
        return dict.fromkeys(models, kind)
    first: dict[frozenset[str], str] = {}
    for arm, found in models.items():
        first.setdefault(found, f"{kind} of {arm}")
    return {arm: first[found] for arm, found in models.items()}


def _rows(results: StudyResults, decoding: str, compute: Compute) -> list[AccuracyRow]:
    rows = []
    named: tuple[tuple[RowKind, dict[str, str]], ...] = (("base", bases(results)), ("teacher", teachers(results)))
    for kind, names in named:
        for name in dict.fromkeys(names.values()):
            arm = next(arm for arm, its in names.items() if its == name)
            by_seed = results.of_base(arm, decoding) if kind == "base" else results.of_teacher(arm)
            # A model that several seeds have in common is one model.
            models = {getattr(p, kind): by_seed[p.seed] for p in results.places if p.arm == arm and p.seed in by_seed}
            if models:
                count, (verdicts,) = len(models), tables([dict(enumerate(models.values()))])[1]
                rows.append(AccuracyRow(kind, name, count, compute([(1, verdicts)])))
    arms = []
    for arm in results.arms:
        seeds, found = tables([results.of_arm(arm, decoding)])
        if seeds:
            arms.append(AccuracyRow("arm", arm, len(seeds), compute([(1, found[0])])))
    return [*(r for r in rows if r.kind == "base"), *arms, *(r for r in rows if r.kind == "teacher")]


def _curve(results: StudyResults, arm: str, decoding: str, compute: Compute) -> dict[int, Effect]:
    found = {}
    for step in results.steps(arm):
        seeds, verdicts = tables([results.of_arm(arm, decoding, step)])
        if seeds:
            found[step] = compute([(1, verdicts[0])])
    return found


def _comparisons(results: StudyResults, decoding: str, compute: Compute) -> list[ArmComparison]:
    """The comparisons under one way to decode, their p not corrected yet."""
    wanted = [(f"{first} − {second}", {first: 1.0, second: -1.0}) for first, second in results.compare]
    if results.effects:
        wanted += factor_weights(results.effects).items()
    found = []
    for name, weights in wanted:
        seeds, verdicts = tables([results.of_arm(arm, decoding) for arm in weights])
        if not seeds:
            continue
        difference = compute(list(zip(weights.values(), verdicts, strict=True)))
        within = discordances(verdicts[0], verdicts[1], results.clusters) if len(verdicts) == 2 else []
        assert difference.p is not None
        found.append(
            ArmComparison(name, decoding, tuple(weights), difference, tuple(seeds), difference.p, tuple(within))
        )
    return found


def factor_weights(effects: Mapping[str, Mapping[str, tuple[str, ...]]]) -> dict[str, dict[str, float]]:
    """The weights of the arms in the effect of each of two factors and in their interaction.

    A factor's effect is its first level minus its second, averaged over the other factor. The interaction is how much
    larger the second factor's effect is at the first factor's first level than at its second.
    """
    found = {}
    for factor, levels in effects.items():
        (first, plus), (second, minus) = levels.items()
        found[f"{factor}: {first} − {second}"] = dict.fromkeys(plus, 0.5) | dict.fromkeys(minus, -0.5)
    (factor_a, levels_a), (factor_b, levels_b) = effects.items()
    (plus_a, _), (plus_b, _) = levels_a.values(), levels_b.values()
    arms = [arm for named in levels_a.values() for arm in named]
    found[f"{factor_a} × {factor_b}"] = {arm: 1.0 if (arm in plus_a) == (arm in plus_b) else -1.0 for arm in arms}
    return found


def _routes(results: StudyResults) -> list[RouteShares]:
    found = []
    for arm in results.arms:
        cells = [results.cells[p.cell] for p in results.places if p.arm == arm and p.cell in results.cells]
        routes = [cell.routes for cell in cells if cell.routes is not None and any(cell.routes.first)]
        if routes:
            first = np.mean([_shares(counts.first) for counts in routes], axis=0)
            parts = np.mean([[_shares(part) for part in _filled(counts.parts)] for counts in routes], axis=0)
            found.append(RouteShares(arm, len(routes), tuple(first.tolist()), tuple(map(tuple, parts.tolist()))))
    return found


def _filled(parts: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    """The tenths of a run. In a run of fewer than ten updates, a tenth without an update repeats the one before it."""
    found, last = [], next(part for part in parts if sum(part))
    for part in parts:
        last = part if sum(part) else last
        found.append(last)
    return found


def _shares(counts: Sequence[int]) -> list[float]:
    return [count / sum(counts) for count in counts]


def _verdicts(results: StudyResults) -> list[Verdicts4]:
    """The counts of the base and of each arm beside its teacher, under the first of the study's ways to decode."""
    decoding, found = next(iter(results.decoding)), []
    names, taught_by = bases(results), teachers(results)
    begun: dict[str, str] = {}
    for arm in results.arms:
        name = names[arm]
        begun.setdefault(name if taught_by[arm] == "teacher" else f"{name}, {results.arms[arm].teacher}", arm)
    for name, arm in begun.items():
        found += _beside_teacher(results, name, results.of_base(arm, decoding), results.of_teacher(arm))
    for arm in results.arms:
        found += _beside_teacher(results, arm, results.of_arm(arm, decoding), results.of_teacher(arm))
    return found


def _beside_teacher(results: StudyResults, model: str, student: Mapping, teacher: Mapping) -> list[Verdicts4]:
    seeds, verdicts = tables([student, teacher])
    found = []
    for name in results.benchmarks if seeds else ():
        s_SN, t_SN = verdicts[0][name], verdicts[1][name]
        four = [(s_SN & t_SN), (~s_SN & t_SN), (s_SN & ~t_SN), (~s_SN & ~t_SN)]
        counts = [float(right_SN.sum(axis=1).mean()) for right_SN in four]
        found.append(Verdicts4(model, name, s_SN.shape[1], *counts))
    return found
