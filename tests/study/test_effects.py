import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import clustered_mean, paired_gain, wilson_interval
from forkleft.study.effects import discordances, effect, sign_flips

NO_CLUSTERS = {"a": None, "b": None}


def verdicts(seed, shape=(4, 30), level=0.6, names=("a", "b")):
    generator = np.random.default_rng(seed)
    chance = np.clip(level + generator.normal(0, 0.05, (shape[0], 1)) + generator.normal(0, 0.3, (1, shape[1])), 0, 1)
    return {name: generator.random(shape) < chance for name in names}


def naive_bootstrap(tables, clusters, resamples, seed):
    """Means over benchmarks of explicitly resampled tables: seeds once for all of them, clusters for each."""
    generator = np.random.default_rng(seed)
    count = len(next(iter(tables.values())))
    means = []
    for _ in range(resamples):
        seeds = [int(generator.integers(count)) for _ in range(count)]
        by_benchmark = []
        for name, table in tables.items():
            groups = {}
            for item, cluster in enumerate(clusters[name] or range(table.shape[1])):
                groups.setdefault(cluster, []).append(item)
            drawn = [list(groups.values())[int(generator.integers(len(groups)))] for _ in groups]
            cells = [table[s][item] for s in seeds for items in drawn for item in items]
            by_benchmark.append(sum(cells) / len(cells))
        means.append(sum(by_benchmark) / len(by_benchmark))
    return np.array(means)


@pytest.mark.parametrize("clusters", [NO_CLUSTERS, {"a": [k // 3 for k in range(30)], "b": None}])
def test_intervals_are_those_of_tables_resampled_by_hand(clusters):
    """Other draws: the ends agree as far as their own chance lets them."""
    first, second = verdicts(1), verdicts(2, level=0.5)
    found = effect([(1, first), (-1, second)], clusters)
    differences = {name: first[name].astype(float) - second[name] for name in first}
    naive = naive_bootstrap(differences, clusters, 1500, seed=9)
    assert found.mean.value == pytest.approx(np.mean([table.mean() for table in differences.values()]))
    for ours, theirs in zip((found.mean.low, found.mean.high), np.quantile(naive, [0.025, 0.975]), strict=True):
        # The error of a quantile of 1500 draws is about 2.1 / √1500 of their deviation.
        assert ours == pytest.approx(theirs, abs=4 * 2.1 / math.sqrt(1500) * naive.std())


def test_the_spread_of_the_bootstrap_is_the_exact_one():
    """Second moments of the draws give the variance of a resampled mean without any draw."""
    table = verdicts(3, (5, 12), names=("a",))["a"].astype(float)

    def moments(count):
        # E[c_i c_j] / n² for the counts c of n draws with replacement from n.
        return (np.full((count, count), count * (count - 1) / count**2) + np.eye(count)) / count**2

    expected = np.einsum("st,nm,sn,tm->", moments(5), moments(12), table, table) - table.mean() ** 2
    from forkleft.study.effects import _bootstrap

    means = _bootstrap([table], [None], 200_000, seed=0)[:, 0]
    assert means.mean() == pytest.approx(table.mean(), abs=4 * means.std() / math.sqrt(200_000))
    assert means.var() == pytest.approx(expected, rel=0.03)


def test_both_seeds_and_items_widen_an_interval():
    """Runs that differ alike on all items are sure of the items and not of the seeds, and the other way round."""
    by_seed = {"a": np.repeat([[1], [0], [1], [1], [0], [1]], 400, axis=1)}
    by_item = {"a": np.repeat([[k % 2 for k in range(400)]], 6, axis=0)}
    assert effect([(1, by_seed)], {"a": None}).mean.high - effect([(1, by_seed)], {"a": None}).mean.low > 0.5
    narrow = effect([(1, by_item)], {"a": None}).mean
    low, high = wilson_interval(200, 400)
    assert (narrow.low, narrow.high) == pytest.approx((low, high), abs=0.01)


def test_one_seed_is_the_bootstrap_over_items():
    table = verdicts(5, (1, 200), names=("a",))
    found = effect([(1, table)], {"a": None})
    theirs = clustered_mean(table["a"][0].tolist(), [str(k) for k in range(200)])
    assert (found.mean.low, found.mean.high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    assert found.p is None and found.seeds == 1


def test_effects_are_weighted_sums_of_arms():
    arms = [verdicts(seed) for seed in range(4)]
    found = effect(list(zip((1, -1, -1, 1), arms, strict=True)), NO_CLUSTERS)
    by_hand = {n: sum(w * arm[n].mean() for w, arm in zip((1, -1, -1, 1), arms, strict=True)) for n in ("a", "b")}
    for name, value in by_hand.items():
        assert found.benchmarks[name].value == pytest.approx(value)
        assert found.benchmarks[name].low < value < found.benchmarks[name].high
    assert found.mean.value == pytest.approx(sum(by_hand.values()) / 2)
    assert np.mean(found.by_seed) == pytest.approx(found.mean.value)
    assert found.p == sign_flips(found.by_seed)


def test_where_all_items_are_alike_the_interval_has_a_width():
    """A bootstrap of equal numbers has none, though 20 items are no proof."""
    right, wrong = ({"a": np.full((3, 20), value)} for value in (True, False))
    known = {"a": None}
    assert effect([(1, right)], known).mean.low == pytest.approx(wilson_interval(20, 20)[0])
    same = effect([(1, right), (-1, right)], known)
    assert same.mean.low < 0 == same.mean.value < same.mean.high and same.p == 1.0
    apart = effect([(0.5, right), (0.5, right), (-0.5, wrong), (-0.5, wrong)], known).mean
    assert apart.value == pytest.approx(1) and 0.5 < apart.low < 1 and apart.high == pytest.approx(1)
    doubled = effect([(1, right), (-1, wrong), (-1, wrong), (1, right)], known).mean
    assert doubled.value == pytest.approx(2) and 1 < doubled.low < 2
    single = {"a": np.full((3, 1), True)}
    assert effect([(1, single)], known).mean.low == 0.0
    assert effect([(1, single), (-1, single)], known).mean.low == -1.0


def test_arms_that_agree_on_every_item_have_the_interval_of_paired_verdicts():
    """Their seeds may differ: arms are paired in each seed, so that an item is never right in one arm alone."""
    first, second = [True] * 12 + [False] * 8, [False] * 8 + [True] * 12
    table = {"a": np.array([first, second])}
    found = effect([(1, table), (-1, table)], {"a": None}).benchmarks["a"]
    paired = paired_gain(first, first)
    assert (found.value, found.low, found.high) == pytest.approx((0, paired.low, paired.high))


def test_weights_and_shapes_that_cannot_be():
    with pytest.raises(ForkLeftError, match=r"weights that add up to 0 or 1, found \[0.5\]"):
        effect([(0.5, verdicts(0))], NO_CLUSTERS)
    with pytest.raises(ForkLeftError, match="expected the same seeds and items in all arms"):
        effect([(1, verdicts(0)), (-1, verdicts(0, (3, 30)))], NO_CLUSTERS)


@pytest.mark.parametrize(
    "differences",
    [
        [0.5],
        [0.1, 0.2, 0.3, 0.4, 0.5],
        [0.1, -0.2, 0.3, -0.4, 0.5, 0.1],
        [0.1, 0.1, -0.1, 0.1, 0.1, 0.1, 0.1],
        [0.0, 0.0, 0.0],
        [0.3, 0.0, -0.3, 0.6],
    ],
)
def test_sign_flips_count_all_ways(differences):
    exact = [Fraction(str(value)) for value in differences]
    sums = [sum(sign * value for sign, value in zip(signs, exact, strict=True)) for signs in _signs(len(exact))]
    assert sign_flips(differences) == sum(abs(total) >= abs(sum(exact)) for total in sums) / len(sums)


def _signs(count):
    return itertools.product((1, -1), repeat=count)


def test_sign_flips_of_random_differences_are_those_of_scipy():
    generator = np.random.default_rng(2)
    for count in (2, 5, 9, 12):
        values = generator.normal(0.3, 1, count)
        theirs = stats.permutation_test(
            (values,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        assert sign_flips(values.tolist()) == pytest.approx(theirs.pvalue)


def test_sign_flips_of_many_seeds_and_of_none():
    assert sign_flips([1.0] * 30) == pytest.approx(2**-29)
    assert sign_flips([0.1] * 8) == pytest.approx(2 / 2**8)
    with pytest.raises(ForkLeftError, match="at least one seed, found none"):
        sign_flips([])


def test_discordant_items_of_each_seed():
    first, second = verdicts(1), verdicts(2, level=0.4)
    found = discordances(first, second, NO_CLUSTERS)
    for seed, one in enumerate(found):
        pairs = [(x, y) for name in first for x, y in zip(first[name][seed], second[name][seed], strict=True)]
        only = [pairs.count((True, False)), pairs.count((False, True))]
        assert [one.only_first, one.only_second] == only
        assert one.p == pytest.approx(stats.binomtest(only[0], sum(only)).pvalue)
    # Translations of one question are no independent items.
    (half,) = discordances({"a": first["a"][:1]}, {"a": second["a"][:1]}, {"a": None})
    (both,) = discordances(
        {n: t[:1] for n, t in first.items()}, {n: t[:1] for n, t in second.items()}, {"a": None, "b": [0] * 30}
    )
    assert half == both
    assert discordances(first, second, {"a": [0] * 30, "b": [1] * 30}) == []
