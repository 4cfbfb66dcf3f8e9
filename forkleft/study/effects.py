"""The differences between arms, when both seeds and items are samples.

Every run of an arm (a seed) answers the same items, so verdicts form a table, seeds by items, and both vary: other
seeds would give other models, other items other verdicts. Intervals come from a bootstrap that draws seeds and items,
each with replacement and independently ("crossed", the pigeonhole bootstrap of A. B. Owen, Annals of Applied Statistics
1 (2007) 386–411, who shows that its intervals are rather too wide). The same seeds are drawn for all benchmarks and
arms, because the same run is measured on them. With few seeds S the interval is a little narrow, by about √((S-1)/S);
with one seed it says nothing about other seeds.

Tests are exact. Over seeds: the signs of the differences, paired by seed, are flipped in all 2^S ways. Within a seed:
McNemar's, over items.

All figures are fractions. Legend: S seeds, N items, C clusters of items, R resamples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import Estimate, clustered_gain, clustered_mean, equal_weight_mean, mcnemar

# From benchmark names to verdicts, seeds by items; and to the cluster of each item, None if each item is its own.
Verdicts = Mapping[str, np.ndarray]
Clusters = Mapping[str, Sequence[int] | None]

RESAMPLES = 10_000
# Numbers drawn at once: bounds the memory (tens of MB) where there are thousands of items.
_DRAWS = 1_000_000


@dataclass(frozen=True)
class Effect:
    """A weighted sum of arms: an accuracy, a gain, an effect of a factor.

    benchmarks: on each of them; mean: over them with equal weight. by_seed: the mean of each seed. p: of the hypothesis
    that it is zero, by sign flips over seeds; None for an accuracy.
    """

    benchmarks: dict[str, Estimate]
    mean: Estimate
    by_seed: tuple[float, ...]
    p: float | None

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.by_seed)


@dataclass(frozen=True)
class Discordance:
    """The items of all benchmarks that only one of two arms got right, in one seed, and McNemar's p."""

    only_first: int
    only_second: int
    p: float


def effect(
    terms: Sequence[tuple[float, Verdicts]],
    clusters: Clusters,
    *,
    level: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Effect:
    """A weighted sum of arms, e.g. [(1, a)] for an accuracy or [(1, a), (-1, b)] for the gain of a over b.

    Weights add up to 1 (a mean of accuracies) or to 0 (a difference). ForkLeftError for other weights, or tables of
    different shapes.
    """
    total = math.fsum(weight for weight, _ in terms)
    if not (math.isclose(total, 1) or math.isclose(total, 0, abs_tol=1e-12)):
        raise ForkLeftError(f"expected weights that add up to 0 or 1, found {[weight for weight, _ in terms]}")
    names = list(terms[0][1])
    expected = {name: terms[0][1][name].shape for name in names}
    for _, verdicts in terms:
        shapes = {name: table.shape for name, table in verdicts.items()}
        if shapes != expected or len({shape[0] for shape in shapes.values()}) != 1:
            raise ForkLeftError(f"expected the same seeds and items in all arms, found {shapes} beside {expected}")
    values = {
        name: sum((weight * verdicts[name].astype(float) for weight, verdicts in terms), np.zeros(expected[name]))
        for name in names
    }
    means_RK = _bootstrap([values[name] for name in names], [clusters[name] for name in names], resamples, seed)
    tail = (1 - level) / 2
    ends = np.quantile(np.column_stack([means_RK, means_RK.mean(axis=1)]), [tail, 1 - tail], axis=0)
    found = {}
    for column, name in enumerate(names):
        if np.ptp(values[name]) < 1e-9:
            # All items are alike in all seeds: the interval of the bootstrap would have no width.
            found[name] = _without_spread(terms, name, clusters[name], level, resamples)
        else:
            found[name] = _around(float(values[name].mean()), *ends[:, column])
    if all(np.ptp(values[name]) < 1e-9 for name in names):
        mean = equal_weight_mean(list(found.values()))
    else:
        mean = _around(math.fsum(estimate.value for estimate in found.values()) / len(found), *ends[:, -1])
    by_seed = np.mean([values[name].mean(axis=1) for name in names], axis=0)
    return Effect(found, mean, tuple(float(x) for x in by_seed), sign_flips(by_seed.tolist()) if total < 0.5 else None)


def _bootstrap(
    tables: Sequence[np.ndarray], clusters: Sequence[Sequence[int] | None], resamples: int, seed: int
) -> np.ndarray:
    """Means of resampled tables, a column for each. All tables share the drawn seeds; items are drawn for each."""
    count = tables[0].shape[0]
    seeds_RS = _drawn(count, resamples, (seed,)) / count
    columns = []
    for number, (table_SN, groups) in enumerate(zip(tables, clusters, strict=True)):
        groups_N = np.arange(table_SN.shape[1]) if groups is None else np.unique(groups, return_inverse=True)[1]
        sizes_C = np.bincount(groups_N)
        sums_SC = np.stack([np.bincount(groups_N, weights=row) for row in table_SN])
        rows = max(1, _DRAWS // len(sizes_C))
        means = []
        for start in range(0, resamples, rows):
            part_RS = seeds_RS[start : start + rows]
            items_RC = _drawn(len(sizes_C), len(part_RS), (seed, number, start))
            means.append(((part_RS @ sums_SC) * items_RC).sum(axis=1) / (items_RC @ sizes_C))
        columns.append(np.concatenate(means))
    return np.column_stack(columns)


@lru_cache(maxsize=64)
def _drawn(count: int, resamples: int, key: tuple[int, ...]) -> np.ndarray:
    """How often each of `count` things is drawn in `count` draws with replacement; a row for each resample.

    Cached, because all effects of a study use the same draws.
    """
    generator = np.random.default_rng(key)
    picks = generator.integers(count, size=(resamples, count)) + count * np.arange(resamples)[:, None]
    return np.bincount(picks.ravel(), minlength=resamples * count).reshape(resamples, count).astype(np.uint16)


def _without_spread(
    terms: Sequence[tuple[float, Verdicts]], name: str, groups: Sequence[int] | None, level: float, resamples: int
) -> Estimate:
    """The interval for a table in which every item has the same value in every seed: as many items as one seed has.

    An effect is a gain between two mixtures of arms, times the sum of the positive weights. Arms are paired in each
    seed, and the seeds of an item are one cluster: two arms that agree on every item have a narrow interval, however
    much their seeds differ.
    """
    seeds, count = terms[0][1][name].shape
    named = [str(group) for group in (range(count) if groups is None else groups)] * seeds
    parts = {sign: [(abs(w), v[name].ravel()) for w, v in terms if w * sign > 0] for sign in (1, -1)}
    scale = math.fsum(weight for weight, _ in parts[1])
    shares = {sign: sum((w * v for w, v in part), np.zeros(1)) / scale for sign, part in parts.items() if part}
    if len(set(named)) < 2:
        # One cluster says nothing about others.
        value = float(shares[1].mean() - (shares[-1].mean() if -1 in shares else 0)) * scale
        return Estimate(value, -scale if -1 in shares else 0.0, scale)
    clipped = {sign: np.clip(share, 0, 1).tolist() for sign, share in shares.items()}
    if -1 not in clipped:
        return clustered_mean(clipped[1], named, level, resamples)
    gain = clustered_gain(clipped[-1], clipped[1], named, level, resamples)
    return Estimate(scale * gain.value, scale * gain.low, scale * gain.high)


def _around(value: float, low: float, high: float) -> Estimate:
    """An interval that contains its value: rounding may have moved an end past it."""
    return Estimate(value, min(float(low), value), max(float(high), value))


def sign_flips(differences: Sequence[float]) -> float:
    """Exact test of the hypothesis that differences, paired by seed, are as likely up as down: the two-sided p-value.

    It is the share of the 2^S ways to choose their signs in which the sum is at least as far from 0 as the real sum. It
    is never below 2 / 2^S: 5 seeds cannot give less than 0.0625, 8 seeds not less than 0.0078.
    """
    if not len(differences):
        raise ForkLeftError("expected the difference of at least one seed, found none")
    values = [abs(value) for value in differences]
    # Equal sums may differ by rounding.
    bound = abs(math.fsum(differences)) - 1e-9 * max(1.0, max(values))
    # All sums of the first half of the seeds and of the second: 2^(S/2) each instead of 2^S.
    half = len(values) // 2
    first, second = _signed_sums(values[:half]), np.sort(_signed_sums(values[half:]))
    inside = np.searchsorted(second, bound - first, side="left") - np.searchsorted(second, -bound - first, side="right")
    return 1.0 - float(np.maximum(inside, 0).sum()) / 2.0 ** len(values)


def _signed_sums(values: Sequence[float]) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def discordances(first: Verdicts, second: Verdicts, clusters: Clusters) -> list[Discordance]:
    """For each seed the items that only one arm got right, over the benchmarks whose items are independent.

    A benchmark in clusters (translations of one question) is left out, because McNemar's test needs independent items.
    The list is empty if no benchmark is left.
    """
    names = [name for name in first if clusters[name] is None]
    if not names:
        return []
    found = []
    for seed in range(first[names[0]].shape[0]):
        pairs = [(first[name][seed].astype(bool), second[name][seed].astype(bool)) for name in names]
        only_first = sum(int((a & ~b).sum()) for a, b in pairs)
        only_second = sum(int((b & ~a).sum()) for a, b in pairs)
        found.append(Discordance(only_first, only_second, mcnemar(only_first, only_second)))
    return found
