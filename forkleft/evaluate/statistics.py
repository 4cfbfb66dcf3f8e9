"""Honest statistics for accuracies: intervals, paired comparison of two models, and many comparisons at once.

All accuracies, gains and interval ends are fractions (0.5 is 50%). One verdict is one item's right (1) or wrong (0).
Items are taken as independent draws, except in `clustered_mean` and `clustered_gain`: a benchmark that asks one
question many times (MT-AIME2024: 30 questions in 55 languages) belongs there.

Legend: R resamples, C clusters.
"""

import bisect
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from forkleft.errors import ForkLeftError

# Numbers drawn at once by the bootstrap: bounds its memory (tens of MB) when there are thousands of clusters.
_DRAWS = 1_000_000


@dataclass(frozen=True)
class Estimate:
    """A value (an accuracy or a gain, as a fraction) and its two-sided confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedGain(Estimate):
    """Accuracy of b minus accuracy of a on the same items, and how many items each of them got right."""

    both: int
    only_a: int
    only_b: int
    neither: int


def wilson_interval(correct: float, total: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for the proportion `correct / total`: two fractions in [0, 1].

    `correct` need not be whole: 141 right of 55 translations of each of 30 questions are 141 / 55 of 30 verdicts.
    """
    if not 0 <= correct <= total or total < 1:
        raise ForkLeftError(f"expected 0 <= correct <= total and total >= 1, found {correct} of {total}")
    return _wilson(correct / total, total, level)


def _wilson(share: float, total: int, level: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf(_upper(level))
    centre = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    scale = 1 + z * z / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def accuracy(verdicts: Sequence[bool | int], level: float = 0.95) -> Estimate:
    """The share of right verdicts with Wilson's interval. ForkLeftError where there are none, or one is not 0 or 1."""
    _check_verdicts(verdicts)
    correct = sum(map(bool, verdicts))
    share = correct / len(verdicts)
    low, high = wilson_interval(correct, len(verdicts), level)
    return _around(share, low, high)


def paired_gain(a: Sequence[float], b: Sequence[float], level: float = 0.95) -> PairedGain:
    """Accuracy of b minus accuracy of a, both judged on the same items in the same order.

    The interval is method 10 of R. G. Newcombe, "Improved confidence intervals for the difference between binomial
    proportions based on paired data", Statistics in Medicine 17 (1998) 2635–2650: the Wilson intervals of the two
    accuracies, squared and added, with their correlation φ (shrunk by n/2 where positive). It stays inside [-1, 1] and
    keeps a width where the two models agree on every item, which the textbook interval does not.

    ForkLeftError if lengths differ, there are no items, or a verdict is not 0 or 1.
    """
    _check_lengths(a=a, b=b)
    _check_verdicts(a)
    _check_verdicts(b)
    table = Counter(zip(map(bool, a), map(bool, b), strict=True))
    return gain_of_table(table[True, True], table[True, False], table[False, True], table[False, False], level)


def gain_of_table(both: int, only_a: int, only_b: int, neither: int, level: float = 0.95) -> PairedGain:
    """The `paired_gain` of two models of whom only the four counts are known.

    ForkLeftError for a negative count, or if all are 0.
    """
    counts = (both, only_a, only_b, neither)
    total = sum(counts)
    if min(counts) < 0 or not total:
        raise ForkLeftError(f"expected four counts of at least 0, not all of them 0, found {counts}")
    low, high = _newcombe(*counts, total, level)
    return PairedGain((only_b - only_a) / total, low, high, *counts)


def _newcombe(
    both: float, only_a: float, only_b: float, neither: float, total: int, level: float
) -> tuple[float, float]:
    """The interval of `paired_gain` for a table of counts, or of shares of `total`, which need not be whole."""
    right_a, right_b = both + only_a, both + only_b
    low_a, high_a = _wilson(right_a / total, total, level)
    low_b, high_b = _wilson(right_b / total, total, level)
    down_a, up_a = right_a / total - low_a, high_a - right_a / total
    down_b, up_b = right_b / total - low_b, high_b - right_b / total

    agreement = both * neither - only_a * only_b
    if agreement > 0:
        # Without it φ is 1 when no item is discordant, and the interval can collapse to a point.
        agreement = max(agreement - total / 2, 0.0)
    margins = right_a * (total - right_a) * right_b * (total - right_b)
    # A margin of shares that is zero may be off by a rounding error.
    phi = agreement / math.sqrt(margins) if margins > 1e-9 else 0.0

    gain = (only_b - only_a) / total
    below = math.sqrt(down_b**2 - 2 * phi * down_b * up_a + up_a**2)
    above = math.sqrt(up_b**2 - 2 * phi * up_b * down_a + down_a**2)
    # The method never leaves [-1, 1]; rounding may.
    return max(-1.0, gain - below), min(1.0, gain + above)


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact McNemar test that two models are equally good: the two-sided p-value.

    only_a, only_b: the discordant items, those that exactly one of the two models got right (`PairedGain` has them).
    Under the hypothesis each is a fair coin, so p is twice the smaller tail of Binomial(only_a + only_b, 1/2), at most
    1; without discordant items it is 1. All is integers up to one division: right to the last digit at any count.

    ForkLeftError for a negative count.
    """
    # Python integers, not numpy's, which would overflow silently.
    only_a, only_b = operator.index(only_a), operator.index(only_b)
    if min(only_a, only_b) < 0:
        raise ForkLeftError(f"expected two counts of at least 0, found {only_a} and {only_b}")
    total = only_a + only_b
    # C(total, k) from C(total, k - 1): math.comb for each k takes seconds at an MMLU's thousands of discordant items.
    ways = tail = 1
    for k in range(1, min(only_a, only_b) + 1):
        ways = ways * (total - k + 1) // k
        tail += ways
    return min(1.0, 2 * tail / 2**total)


def smallest_gain(correct: int, total: int, *, nothing_lost: bool, level: float = 0.95) -> int | None:
    """The smallest gain over `correct` of `total`, in items, that could be told from noise; None if there is none.

    Totals do not say which items two models both got right, so there is no single answer. A gain is told from noise if
    the exact McNemar test of the two gives at most 1 - level. How many items were lost (right before, wrong after) is
    an assumption:
    - none, if nothing_lost: a smaller gain is noise, whatever the items. At the level 0.95 this is always 6 items;
    - else as many as if the two models were right independently of each other, correct (total - after) / total, rounded
      up: the test of two samples that are not paired. Models that are right on the same items more often than by
      chance, as models are, lose fewer: such a gain is no noise, whatever the items.

    This is about the noise of the items alone: two trainings that differ in nothing but the seed differ as well.
    ForkLeftError for impossible counts.
    """
    if not 0 <= correct <= total or total < 1:
        raise ForkLeftError(f"expected 0 <= correct <= total and total >= 1, found {correct} of {total}")
    noise = 2 * (1 - _upper(level))

    def beats_noise(gain: int) -> bool:
        lost = 0 if nothing_lost else -(-correct * (total - correct - gain) // total)
        return mcnemar(lost, lost + gain) <= noise

    # The larger the gain, the smaller p: with each item more, one of the two counts moves away from the other.
    found = bisect.bisect_left(range(1, total - correct + 1), True, key=beats_noise) + 1
    return found if found <= total - correct else None


def clustered_mean(
    values: Sequence[float], clusters: Sequence[str], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """Mean over items that come in clusters (the translations of one question) with a bootstrap interval.

    Whole clusters are drawn with replacement; each resample's mean is its sum of values over its number of items, so
    that clusters of unequal size keep their weight; the interval is between the percentiles of these means. It depends
    on the items and the seed, not on the items' order. With few clusters it is a little narrow (by about √((C-1)/C)).

    If all clusters have the same mean, for instance because the model is never right, the bootstrap would have no
    width. Then the interval is Wilson's for this mean, with the number of clusters C as the number of items: a cluster
    counts as a single verdict, which is the least that it can be worth.

    values: a verdict for each item, or a share such as avg@k; clusters: the name of each item's cluster.
    ForkLeftError if lengths differ, there are no items, a value is not between 0 and 1, there is one cluster only, or
    `resamples` is below 1.
    """
    _check_shares(clusters, values=values)
    mean, interval = _bootstrap(values, clusters, level, resamples, seed)
    return _around(mean, *(interval or _wilson(mean, len(set(clusters)), level)))


def clustered_number(
    values: Sequence[float], clusters: Sequence[str], level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Estimate:
    """As `clustered_mean`, of any numbers, such as losses or their differences.

    If all clusters have the same mean, the interval has no width: nothing is known about how large numbers can be.
    Raises ForkLeftError if lengths differ, there are no items, or there is one cluster only.
    """
    _check_lengths(values=values, clusters=clusters)
    mean, interval = _bootstrap(values, clusters, level, resamples, seed)
    return _around(mean, *(interval or (mean, mean)))


def clustered_gain(
    a: Sequence[float],
    b: Sequence[float],
    clusters: Sequence[str],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Mean of b minus mean of a on the same clustered items, with the bootstrap of `clustered_mean`.

    If the gain is the same in all clusters, for instance because neither model is ever right, the interval is that of
    `paired_gain`, with the number of clusters C as the number of items. In its table of who is right each item then
    counts C / items, spread over the four cells as if a and b were right independently, each with its share.

    Raises ForkLeftError as `clustered_mean` does.
    """
    _check_shares(clusters, a=a, b=b)
    pairs = [(float(left), float(right)) for left, right in zip(a, b, strict=True)]
    gain, interval = _bootstrap([right - left for left, right in pairs], clusters, level, resamples, seed)
    if interval is not None:
        return _around(gain, *interval)
    count = len(set(clusters))
    cells = (
        [left * right for left, right in pairs],
        [left * (1 - right) for left, right in pairs],
        [(1 - left) * right for left, right in pairs],
        [(1 - left) * (1 - right) for left, right in pairs],
    )
    both, only_a, only_b, neither = (math.fsum(cell) * count / len(pairs) for cell in cells)
    return _around(gain, *_newcombe(both, only_a, only_b, neither, count, level))


def _bootstrap(
    values: Sequence[float], clusters: Sequence[str], level: float, resamples: int, seed: int
) -> tuple[float, tuple[float, float] | None]:
    """The mean of values, and percentiles of the means of resampled clusters; None if all clusters have one mean."""
    upper = _upper(level)
    if resamples < 1:
        raise ForkLeftError(f"expected at least 1 resample, found {resamples}")
    members: dict[str, list[float]] = {}
    for value, cluster in zip(values, clusters, strict=True):
        members.setdefault(cluster, []).append(float(value))
    count = len(members)
    if count < 2:
        raise ForkLeftError(
            f"expected at least 2 clusters, found only {next(iter(members))!r}: one cluster says nothing about how "
            "clusters differ; give each item the name of its question"
        )
    # Sorted names and exactly rounded sums make the result independent of the items' order.
    sums_C = np.array([math.fsum(members[name]) for name in sorted(members)])
    sizes_C = np.array([len(members[name]) for name in sorted(members)])
    mean = math.fsum(sums_C) / len(values)
    # Equal means, of thirds for instance, may differ by rounding.
    if np.ptp(sums_C / sizes_C) < 1e-9:
        return mean, None

    generator = np.random.default_rng(seed)
    rows = max(1, _DRAWS // count)
    means = []
    for done in range(0, resamples, rows):
        picks_RC = generator.integers(count, size=(min(rows, resamples - done), count))
        means.append(sums_C[picks_RC].sum(axis=1) / sizes_C[picks_RC].sum(axis=1))
    low, high = np.quantile(np.concatenate(means), [1 - upper, upper])
    return mean, (float(low), float(high))


def _around(value: float, low: float, high: float) -> Estimate:
    """An interval that contains its value: rounding may move an end that equals the value to its wrong side."""
    return Estimate(value, min(low, value), max(high, value))


def equal_weight_mean(benchmarks: Sequence[Estimate]) -> Estimate:
    """The unweighted mean of benchmarks' accuracies or paired gains, however many items each has.

    The interval squares and adds, on each side separately, the distances from each benchmark's value to that end of
    its own interval (MOVER, the method of variance estimates recovery; Zou & Donner, Statistics in Medicine 27 (2008)
    1693–1702): low = mean - √Σ(valueᵢ - lowᵢ)² / k, high = mean + √Σ(highᵢ - valueᵢ)² / k. So a skewed interval stays
    skewed, and the level is that of the given intervals, which must share it.

    This takes the benchmarks as independent. Two that share questions (AIME24 and MT-AIME2024) are not: the interval of
    a mean over both is too narrow.

    ForkLeftError if there are none, or an interval does not contain its value.
    """
    if not len(benchmarks):
        raise ForkLeftError("expected at least one benchmark, found none")
    for benchmark in benchmarks:
        if not benchmark.low <= benchmark.value <= benchmark.high:
            raise ForkLeftError(f"expected low <= value <= high, found {benchmark}")
    count = len(benchmarks)
    mean = math.fsum(benchmark.value for benchmark in benchmarks) / count
    below = math.hypot(*(benchmark.value - benchmark.low for benchmark in benchmarks)) / count
    above = math.hypot(*(benchmark.high - benchmark.value for benchmark in benchmarks)) / count
    return Estimate(mean, mean - below, mean + above)


def contrast(terms: Sequence[tuple[float, Estimate]]) -> Estimate:
    """A weighted sum of independent estimates: a difference of accuracies, or the interaction of four.

    terms: (weight, estimate). The interval is that of `equal_weight_mean`, of which this is the general form: on each
    side the squares of weight × distance to the end that moves the sum to that side are added. For the weights 1 and -1
    of two accuracies with Wilson intervals it is Newcombe's for two samples that are not paired.

    Models that were measured on the same items are not independent. As long as they tend to be right on the same items,
    the interval of a difference is wider than it need be.

    ForkLeftError if there are no terms, or an interval does not contain its value.
    """
    if not len(terms):
        raise ForkLeftError("expected at least one estimate, found none")
    for _, estimate in terms:
        if not estimate.low <= estimate.value <= estimate.high:
            raise ForkLeftError(f"expected low <= value <= high, found {estimate}")
    value = math.fsum(weight * estimate.value for weight, estimate in terms)
    down = [weight * (estimate.value - (estimate.low if weight > 0 else estimate.high)) for weight, estimate in terms]
    up = [weight * ((estimate.high if weight > 0 else estimate.low) - estimate.value) for weight, estimate in terms]
    return Estimate(value, value - math.hypot(*down), value + math.hypot(*up))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction of the p-values of one family of tests: the adjusted ones, in the given order.

    The r-th smallest of m (r from 1) becomes the largest of (m - s + 1) p₍ₛ₎ over s <= r, at most 1. Rejecting what is
    at most 0.05 afterwards keeps the chance of any false rejection at 5%, whatever the tests' dependence. No tests, no
    p-values. ForkLeftError for a p-value outside [0, 1].
    """
    for p in p_values:
        if not 0 <= p <= 1:
            raise ForkLeftError(f"expected p-values between 0 and 1, found {p}")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, (len(p_values) - rank) * float(p_values[index]))
        adjusted[index] = min(1.0, largest)
    return adjusted


def _upper(level: float) -> float:
    """The share of a distribution below the upper end of a two-sided interval: 0.975 for the level 0.95."""
    if not 0 < level < 1:
        raise ForkLeftError(f"expected a confidence level between 0 and 1, such as 0.95, found {level}")
    return (1 + level) / 2


def _check_lengths(**columns: Sequence) -> None:
    """Raise ForkLeftError unless the columns have the same length, which is not 0."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{length} in {name}" for name, length in lengths.items())
        raise ForkLeftError(f"expected one entry an item and equal lengths, found {found}; pair the items by id first")
    if not all(lengths.values()):
        raise ForkLeftError("expected at least one item, found none")


def _check_shares(clusters: Sequence[str], **columns: Sequence[float]) -> None:
    """Raise ForkLeftError unless there are as many shares as clusters, each from 0 to 1."""
    _check_lengths(**columns, clusters=clusters)
    for column in columns.values():
        for share, cluster in zip(column, clusters, strict=True):
            if not 0 <= share <= 1:
                raise ForkLeftError(f"expected verdicts or shares from 0 to 1, found {share} in cluster {cluster!r}")


def _check_verdicts(verdicts: Sequence[float]) -> None:
    """Raise ForkLeftError unless there are verdicts, each 0 or 1: a share such as avg@k must not be rounded to one."""
    _check_lengths(verdicts=verdicts)
    for verdict in verdicts:
        if verdict not in (0, 1):
            raise ForkLeftError(f"expected verdicts of 0 or 1, found {verdict!r}")
