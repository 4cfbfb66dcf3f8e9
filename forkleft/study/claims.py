"""Claims, each with the one number of a study that judges it.

A claim says which figure of a study should be above zero: the gain of an arm over the untrained student, a difference
between arms or an effect of a factor, or the gain between two checkpoints. Which figure that is belongs to the claim,
and is written down before the runs. The judgement is a rule, so that nobody judges by taste:

- supported: the figure is above zero, with p ≤ 0.05 by sign flips over seeds, corrected (Holm) for all claims that the
  same study judges;
- not supported: it is below zero with p ≤ 0.05, or its 95% interval ends below one percentage point;
- undecided: everything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from forkleft.errors import ForkLeftError, did_you_mean
from forkleft.evaluate.statistics import holm
from forkleft.files import read_yaml
from forkleft.study.analysis import Analysis
from forkleft.study.effects import Effect, effect
from forkleft.study.results import StudyResults, tables

Verdict = Literal["supported", "not supported", "undecided"]
Figure = Literal["gain", "difference", "curve"]
# A study in memory: what was measured and what it shows.
Shown = tuple[StudyResults, Analysis]
_SIGNIFICANT = 0.05
# The smallest gain, as a share of right answers, that would be worth having.
_SMALLEST = 0.01
_FIGURES: tuple[Figure, ...] = get_args(Figure)
_KEYS = ("claim", "source", "printed", "study", "decoding", *_FIGURES)


@dataclass(frozen=True)
class Claim:
    """A sentence that a study judges.

    source: who makes it (`paper` or `ours`). printed: the paper's own figure, in words. figure, of: which number of the
    study: `gain` of an arm, `difference` by its name, `curve` as (arm, update, later update). decoding: None for the
    first.
    """

    claim: str
    source: str
    printed: str
    study: str
    figure: Figure
    of: str | tuple[str, int, int]
    decoding: str | None = None


@dataclass(frozen=True)
class Judgement:
    """A claim, its figure, p corrected for the claims of the same study, and the verdict. No figure: not measured."""

    claim: Claim
    figure: Effect | None
    holm: float | None
    verdict: Verdict


def read_claims(path: Path) -> list[Claim]:
    """The claims of a YAML file, a list under `claims`. Raises ForkLeftError that names the claim and what is wrong."""
    said = read_yaml(path, "file of claims")
    rows = said.get("claims")
    if not isinstance(rows, list) or set(said) != {"claims"}:
        raise ForkLeftError(f"{path}: expected one list under `claims`, found {', '.join(said) or 'nothing'}")
    return [_claim(path, number, row) for number, row in enumerate(rows, 1)]


def _claim(path: Path, number: int, row: Any) -> Claim:
    where = f"{path}, claim {number}"
    if not isinstance(row, Mapping):
        raise ForkLeftError(f"{where}: expected names with values, found {row!r:.60}")
    if unknown := [str(key) for key in row if key not in _KEYS]:
        raise ForkLeftError(f"{where}: unknown key {unknown[0]!r}{did_you_mean(unknown[0], _KEYS)}")
    figures = [name for name in _FIGURES if name in row]
    if len(figures) != 1 or any(key not in row for key in ("claim", "source", "study")):
        raise ForkLeftError(f"{where}: expected claim, source, study and one of {', '.join(_FIGURES)}")
    figure, of = figures[0], row[figures[0]]
    if figure == "curve":
        if not isinstance(of, list) or [type(part) for part in of] != [str, int, int]:
            raise ForkLeftError(f"{where}: expected `curve: [ARM, UPDATE, LATER UPDATE]`, found {of!r}")
        of = tuple(of)
    said = (str(row["claim"]), str(row["source"]), str(row.get("printed", "")), str(row["study"]))
    return Claim(*said, figure, of if figure == "curve" else str(of), row.get("decoding"))


def judge(claims: Sequence[Claim], studies: Mapping[str, Shown]) -> list[Judgement]:
    """Judge claims by the studies that there are; a claim whose study or figure is missing is undecided.

    Raises ForkLeftError for an arm, a difference or a way to decode that its study does not have.
    """
    found = [_figure(claim, studies[claim.study]) if claim.study in studies else None for claim in claims]
    corrected: dict[int, float] = {}
    for study in dict.fromkeys(claim.study for claim in claims):
        tests = [k for k, claim in enumerate(claims) if claim.study == study and found[k] is not None]
        corrected |= dict(zip(tests, holm([_p(found[k]) for k in tests]), strict=True))
    return [
        Judgement(claim, figure, corrected.get(k), _verdict(figure, corrected.get(k)))
        for k, (claim, figure) in enumerate(zip(claims, found, strict=True))
    ]


def _figure(claim: Claim, shown: Shown) -> Effect | None:
    results, analysis = shown
    decoding = claim.decoding or next(iter(results.decoding))
    _check(claim, decoding, results.decoding)
    if isinstance(claim.of, tuple):
        _check(claim, claim.of[0], results.arms)
        return _between(results, decoding, *claim.of)
    if claim.figure == "gain":
        _check(claim, claim.of, results.arms)
        return analysis.gains.get(decoding, {}).get(claim.of)
    differences = {c.name: c.difference for c in analysis.comparisons if c.decoding == decoding}
    if not differences:
        return None
    _check(claim, claim.of, differences)
    return differences[claim.of]


def _between(results: StudyResults, decoding: str, arm: str, earlier: int, later: int) -> Effect | None:
    """The gain between two checkpoints of an arm; None if they were not measured."""
    seeds, verdicts = tables([results.of_arm(arm, decoding, step) for step in (earlier, later)])
    return effect([(1, verdicts[1]), (-1, verdicts[0])], results.clusters) if seeds else None


def _check(claim: Claim, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise ForkLeftError(
            f"the claim {claim.claim!r} asks {claim.study} for {name!r}, which it does not have"
            f"{did_you_mean(name, known) or '; it has ' + ', '.join(known)}"
        )


def _p(figure: Effect | None) -> float:
    assert figure is not None and figure.p is not None
    return figure.p


def _verdict(figure: Effect | None, corrected: float | None) -> Verdict:
    if figure is None or corrected is None:
        return "undecided"
    clear = corrected <= _SIGNIFICANT
    if clear and figure.mean.value > 0:
        return "supported"
    if (clear and figure.mean.value < 0) or figure.mean.high < _SMALLEST:
        return "not supported"
    return "undecided"
