"""What the noise of the items allows to say of two models of whom only right answers are counted.

Which items the two share is not known, so that every statement has two readings, and the truth lies between them as
long as the models tend to be right on the same items:
- *bold*: nothing was lost, every item that was right before is right after; translations of a question are items;
- *cautious*: the two are right independently of each other; the translations of a question are one item.

A change is `clear` if it is told from noise even cautiously, `noise` if not even boldly, else `open`: it hangs on items
that the counts do not name. `statistics.smallest_gain` says what told from noise means. Nothing here knows about the
noise of training: two runs that differ in the seed alone differ as well. Nor is there a correction for looking at ten
benchmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forkleft.evaluate.statistics import (
    Estimate,
    contrast,
    equal_weight_mean,
    gain_of_table,
    mcnemar,
    smallest_gain,
)
from forkleft.study.paper import Paper

Verdict = Literal["clear", "open", "noise"]


@dataclass(frozen=True)
class Change:
    """Two models on one benchmark. Accuracies and gains are in per cent and percentage points.

    bold, cautious: the smallest gain that each reading tells from noise, None if there is no room for one.
    """

    benchmark: str
    items: int
    before: Estimate
    after: Estimate
    gain: float
    bold: float | None
    cautious: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Comparison:
    """Two models on the benchmarks that both have.

    mean, bold, cautious: their equal-weight mean gain in percentage points, with the interval of each reading. up,
    level, down: benchmarks; sign_p: the exact sign test of up against down, the benchmarks taken as independent.
    """

    after: str
    before: str
    changes: tuple[Change, ...]
    mean: float
    bold: tuple[float, float]
    cautious: tuple[float, float]
    up: int
    level: int
    down: int
    sign_p: float

    def count(self, verdict: Verdict) -> int:
        """Benchmarks of that verdict."""
        return sum(change.verdict == verdict for change in self.changes)


def compare_counts(paper: Paper, after: str, before: str) -> Comparison:
    """Compare two columns of the paper's counts."""
    benchmarks = [one for one in paper.counts[after] if one in paper.counts[before]]
    changes = tuple(_change(paper, after, before, one) for one in benchmarks)
    bold = equal_weight_mean([_nothing_lost(paper, after, before, one) for one in benchmarks])
    cautious = equal_weight_mean(
        [contrast([(1, paper.accuracy(after, one)), (-1, paper.accuracy(before, one))]) for one in benchmarks]
    )
    up, down = (sum(sign * change.gain > 0 for change in changes) for sign in (1, -1))
    return Comparison(
        after,
        before,
        changes,
        100 * bold.value,
        (100 * bold.low, 100 * bold.high),
        (100 * cautious.low, 100 * cautious.high),
        up,
        len(changes) - up - down,
        down,
        mcnemar(down, up),
    )


def compare_section(paper: Paper, section: str) -> list[Comparison]:
    """The comparisons that belong to a section."""
    pairs: Sequence[Sequence[str]] = paper.sections[section].get("compare", [])
    return [compare_counts(paper, after, before) for after, before in pairs]


def _change(paper: Paper, after: str, before: str, benchmark: str) -> Change:
    items = paper.items[benchmark]
    counts = [paper.counts[one][benchmark] for one in (after, before)]
    # A loss is a gain read backwards.
    lower = min(counts)
    units = paper.questions.get(benchmark, items)
    bold = _share(smallest_gain(lower, items, nothing_lost=True), items)
    cautious = _share(smallest_gain(round(lower * units / items), units, nothing_lost=False), units)
    gain = 100 * (counts[0] - counts[1]) / items
    if cautious is not None and abs(gain) >= cautious:
        verdict: Verdict = "clear"
    elif bold is None or abs(gain) < bold:
        verdict = "noise"
    else:
        verdict = "open"
    first, second = (_percent(paper.accuracy(one, benchmark)) for one in (before, after))
    return Change(benchmark, items, first, second, gain, bold, cautious, verdict)


def _nothing_lost(paper: Paper, after: str, before: str, benchmark: str) -> Estimate:
    """The gain if the items that the worse model got right are among those of the better one."""
    right_before, right_after = paper.counts[before][benchmark], paper.counts[after][benchmark]
    both, either = min(right_before, right_after), max(right_before, right_after)
    return gain_of_table(both, right_before - both, right_after - both, paper.items[benchmark] - either)


def _share(gain: int | None, total: int) -> float | None:
    return None if gain is None else 100 * gain / total


def _percent(one: Estimate) -> Estimate:
    return Estimate(100 * one.value, 100 * one.low, 100 * one.high)
