"""Claims, and what the results of a study say about them.

A claim is that the mean of some arms is above the mean of others, in the accuracy averaged over benchmarks. Its figure
is that difference with its 95% interval (bootstrap over seeds and items) and its p (sign flips over seeds), corrected
by Holm's method for all claims about the same study. The rule was written before the runs:

- *supported*: the difference is positive and its corrected p is at most 0.05;
- *not supported*: the same with a negative difference, or the interval ends below the smallest difference that would
  matter (1 point);
- *undecided at this scale*: anything else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import holm
from forkleft.study.effects import RESAMPLES, Effect, effect
from forkleft.study.results import StudyResults, tables

Verdict = Literal["supported", "not supported", "undecided at this scale"]
SIGNIFICANT = 0.05
# Differences below this, as a fraction, are of no matter to a user.
SMALLEST = 0.01
_KEYS = ("says", "source", "study", "above", "below", "decoding")


@dataclass(frozen=True)
class Claim:
    """says: in words; source: whose claim. above, below: arms of the study, `ARM@STEP` after so many updates (0: base).

    decoding: one of the study's ways to decode; None for its first.
    """

    says: str
    source: str
    study: str
    above: tuple[str, ...]
    below: tuple[str, ...]
    decoding: str | None = None


@dataclass(frozen=True)
class Judged:
    """A claim with its figure. p is corrected for all claims about the same study."""

    claim: Claim
    difference: Effect
    p: float
    verdict: Verdict


def read_claims(path: Path) -> list[Claim]:
    """The claims in a file. Raises ForkLeftError for one that lacks a key or has an unknown one."""
    claims = []
    for said in yaml.safe_load(path.read_text(encoding="utf-8")):
        if unknown := set(said) - set(_KEYS):
            raise ForkLeftError(f"{path}: a claim has {', '.join(_KEYS)}, found {', '.join(sorted(unknown))}")
        if missing := [key for key in _KEYS[:-1] if key not in said]:
            raise ForkLeftError(f"{path}: the claim {said.get('says', said)!r} lacks {', '.join(missing)}")
        arms = {key: tuple(said[key]) for key in ("above", "below")}
        claims.append(Claim(**said | arms))
    return claims


def judge(claims: Sequence[Claim], studies: Mapping[str, StudyResults], resamples: int = RESAMPLES) -> list[Judged]:
    """Judge claims, those about one study together. Claims about studies that are not there are left out."""
    judged = []
    for name, group in groupby(claims, key=lambda claim: claim.study):
        family = list(group)
        if name not in studies:
            continue
        effects = [difference(claim, studies[name], resamples) for claim in family]
        corrected = holm([found.p or 0.0 for found in effects])
        judged += [
            Judged(claim, found, p, verdict(found, p))
            for claim, found, p in zip(family, effects, corrected, strict=True)
        ]
    return judged


def difference(claim: Claim, results: StudyResults, resamples: int = RESAMPLES) -> Effect:
    """The mean of the arms above minus the mean of those below, over the seeds that all of them have."""
    decoding = claim.decoding or next(iter(results.decoding))
    named = [*claim.above, *claim.below]
    weights = [1 / len(claim.above)] * len(claim.above) + [-1 / len(claim.below)] * len(claim.below)
    seeds, verdicts = tables([_verdicts(results, name, decoding) for name in named])
    if not seeds:
        raise ForkLeftError(f"{results.name}: no seed was measured for all of {', '.join(named)}; run the study")
    return effect(list(zip(weights, verdicts, strict=True)), results.clusters, resamples=resamples)


def _verdicts(results: StudyResults, name: str, decoding: str) -> dict[int, dict[str, np.ndarray]]:
    arm, _, step = name.partition("@")
    if arm not in results.arms:
        raise ForkLeftError(f"{results.name} has no arm {arm!r}; its arms are {', '.join(results.arms)}")
    return results.of_arm(arm, decoding, int(step) if step else None)


def verdict(found: Effect, p: float) -> Verdict:
    """What a difference and its corrected p say of the claim that it is positive."""
    if p <= SIGNIFICANT:
        return "supported" if found.mean.value > 0 else "not supported"
    return "not supported" if found.mean.high < SMALLEST else "undecided at this scale"


def claims_table(judged: Sequence[Judged]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [
        "| claim | whose | study | seeds | difference, points | p | |",
        "| --- | --- | --- | ---: | ---: | ---: | --- |",
    ]
    for row in judged:
        mean = row.difference.mean
        figures = f"{100 * mean.value:+.1f} ({100 * mean.low:+.1f}, {100 * mean.high:+.1f})"
        cells: list[Any] = [row.claim.says, row.claim.source, f"`{row.claim.study}`", row.difference.seeds, figures]
        lines.append(f"| {' | '.join(map(str, [*cells, f'{row.p:.3f}', f'**{row.verdict}**']))} |")
    return lines
