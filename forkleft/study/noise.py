"""What can be said about two models if only their right answers were counted, given the noise of the items.

It is not known which items both got right, so every statement has two readings. The truth is between them as long as
the models tend to be right on the same items:
- *bold*: nothing was lost, every item that was right before is right after; each translation of a question is an item;
- *cautious*: the two are right independently of each other; the translations of a question are one item.

A change is `clear` if it is told from noise even in the cautious reading, `noise` if not even in the bold one, else
`open`: it depends on items that the counts do not name. `statistics.smallest_gain` says what "told from noise" means.
The noise of training is not in here: two runs that differ only in the seed differ as well. Nor is there a correction
for looking at ten benchmarks.
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
class CountComparison:
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
        """The number of benchmarks with that verdict."""
        return sum(change.verdict == verdict for change in self.changes)


def compare_counts(paper: Paper, after: str, before: str) -> CountComparison:
    """Compare two columns of the paper's counts."""
    benchmarks = [benchmark for benchmark in paper.counts[after] if benchmark in paper.counts[before]]
    changes = tuple(_change(paper, after, before, benchmark) for benchmark in benchmarks)
    bold = equal_weight_mean([_nothing_lost(paper, after, before, benchmark) for benchmark in benchmarks])
    cautious = equal_weight_mean(
        [
            contrast([(1, paper.accuracy(after, benchmark)), (-1, paper.accuracy(before, benchmark))])
            for benchmark in benchmarks
        ]
    )
    up, down = (sum(sign * change.gain > 0 for change in changes) for sign in (1, -1))
    return CountComparison(
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


def compare_section(paper: Paper, section: str) -> list[CountComparison]:
    """The comparisons that belong to a section."""
    pairs: Sequence[Sequence[str]] = paper.sections[section].get("compare", [])
    return [compare_counts(paper, after, before) for after, before in pairs]


def _change(paper: Paper, after: str, before: str, benchmark: str) -> Change:
    items = paper.items[benchmark]
    counts = [paper.counts[column][benchmark] for column in (after, before)]
    # A loss is a gain of the other model.
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
    first, second = (_percent(paper.accuracy(column, benchmark)) for column in (before, after))
    return Change(benchmark, items, first, second, gain, bold, cautious, verdict)


def _nothing_lost(paper: Paper, after: str, before: str, benchmark: str) -> Estimate:
    """The gain if the items that the worse model got right are among those of the better one."""
    right_before, right_after = paper.counts[before][benchmark], paper.counts[after][benchmark]
    both, either = min(right_before, right_after), max(right_before, right_after)
    return gain_of_table(both, right_before - both, right_after - both, paper.items[benchmark] - either)


def _share(gain: int | None, total: int) -> float | None:
    return None if gain is None else 100 * gain / total


def _percent(share: Estimate) -> Estimate:
    return Estimate(100 * share.value, 100 * share.low, 100 * share.high)
