import itertools
import math
import random
import statistics

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import (
    Estimate,
    PairedGain,
    accuracy,
    clustered_gain,
    clustered_mean,
    clustered_number,
    contrast,
    equal_weight_mean,
    gain_of_table,
    holm,
    mcnemar,
    paired_gain,
    smallest_gain,
    wilson_interval,
)


def verdicts(both, only_a, only_b, neither):
    """Two models' verdicts with the given counts."""
    a = [1] * both + [1] * only_a + [0] * only_b + [0] * neither
    b = [1] * both + [0] * only_a + [1] * only_b + [0] * neither
    return a, b


# Wilson's interval


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(
    ("correct", "total"), [(0, 1), (1, 1), (0, 30), (3, 30), (30, 30), (986, 1319), (10041, 14042)]
)
def test_wilson_interval_equals_scipy(correct, total, level):
    expected = binomtest(correct, total).proportion_ci(confidence_level=level, method="wilson")
    assert wilson_interval(correct, total, level) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_interval_by_hand():
    # p = 1/2, n = 100, z = 1.96: centre 1/2, half width z * sqrt(1/400 + z²/40000) / (1 + z²/100).
    assert wilson_interval(50, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)


@pytest.mark.parametrize(("correct", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts(correct, total):
    with pytest.raises(ForkLeftError, match="expected 0 <= correct <= total"):
        wilson_interval(correct, total)


@pytest.mark.parametrize("level", [-0.5, 0, 1, 95, math.nan])
def test_impossible_level(level):
    with pytest.raises(ForkLeftError, match="expected a confidence level between 0 and 1"):
        wilson_interval(1, 2, level)
    with pytest.raises(ForkLeftError, match="expected a confidence level between 0 and 1"):
        clustered_mean([0, 1], ["p", "q"], level)


def test_accuracy_is_the_share_with_wilsons_interval():
    estimate = accuracy([True, False, True, True], level=0.9)
    assert estimate.value == 0.75
    assert (estimate.low, estimate.high) == wilson_interval(3, 4, 0.9)


def test_accuracy_lies_in_its_interval_at_the_edges():
    # At 0 and at 1 Wilson's end equals the share but for rounding, which `equal_weight_mean` would refuse.
    for total in range(1, 300):
        for verdict in (0, 1):
            estimate = accuracy([verdict] * total)
            assert estimate.low <= estimate.value <= estimate.high


# Paired gain


# Method 10 in Newcombe (1998), table III, in his order: both, only the first, only the second, neither; the difference
# is first minus second, so his first is our b. Last, Bentur's 21 children in Fagerland, Lydersen & Laake (2014).
@pytest.mark.parametrize(
    ("counts", "low", "high"),
    [
        ((36, 12, 2, 0), 0.0569, 0.3404),  # φ < 0: not corrected
        ((20, 12, 2, 16), 0.0562, 0.3292),
        ((18, 12, 2, 18), 0.0562, 0.3290),
        ((36, 14, 0, 0), 0.1528, 0.4167),  # a margin of 0: φ = 0
        ((35, 14, 0, 1), 0.1461, 0.4175),
        ((18, 14, 0, 18), 0.1441, 0.3963),
        ((2, 97, 1, 0), 0.8721, 0.9854),
        ((0, 29, 1, 0), 0.6666, 0.9882),
        ((0, 30, 0, 0), 0.8395, 1.0),
        ((54, 0, 0, 0), -0.0664, 0.0664),
        ((53, 0, 0, 1), -0.0729, 0.0729),
        ((30, 0, 0, 24), -0.0358, 0.0358),
        ((1, 1, 7, 12), -0.507, -0.0256),  # 0 < φ's numerator 5 < n/2: φ = 0
    ],
)
def test_paired_gain_equals_published_intervals(counts, low, high):
    both, first, second, neither = counts
    gain = paired_gain(*verdicts(both, second, first, neither))
    assert (gain.low, gain.high) == pytest.approx((low, high), abs=1e-4)
    assert gain.value == pytest.approx((first - second) / sum(counts), abs=1e-15)
    assert (gain.both, gain.only_b, gain.only_a, gain.neither) == counts


def test_paired_gain_without_discordant_items_by_hand():
    # All 54 right twice: Wilson's interval is [54 / (54 + z²), 1] = [0.93359, 1], φ = 0, so each side is 1 - 0.93359.
    gain = paired_gain(*verdicts(54, 0, 0, 0))
    assert (gain.value, gain.low, gain.high) == pytest.approx((0, -0.06641, 0.06641), abs=1e-5)
    # 27 right twice, 27 wrong twice: Wilson's half width at 27 of 54 is
    # w = 1.96 * sqrt(0.25/54 + 3.8415/(4 * 54²)) / (1 + 3.8415/54) = 1.96 * 0.070420 / 1.071139 = 0.12886;
    # φ = (27 * 27 - 54/2) / sqrt(27⁴) = 702/729, so each side is w * sqrt(2 - 2φ) = 0.12886 * 0.27217 = 0.03507.
    gain = paired_gain(*verdicts(27, 0, 0, 27))
    assert (gain.value, gain.low, gain.high) == pytest.approx((0, -0.03507, 0.03507), abs=1e-5)


def test_paired_gain_of_every_small_table():
    for counts in itertools.product(range(5), repeat=4):
        total = sum(counts)
        if total == 0:
            continue
        a, b = verdicts(*counts)
        gain, loss = paired_gain(a, b), paired_gain(b, a)
        assert -1 <= gain.low <= gain.value <= gain.high <= 1
        assert gain.high - gain.low > 0.1  # at most 16 items never pin a gain down
        assert (loss.value, loss.low, loss.high) == pytest.approx((-gain.value, -gain.high, -gain.low), abs=1e-12)
        assert paired_gain(a, b, 0.8).high <= gain.high and paired_gain(a, b, 0.8).low >= gain.low


def test_paired_gain_stays_in_range_at_the_edges():
    # All items only b's, or only a's: the exact end is 1 or -1, from which rounding alone could stray.
    for total in range(1, 300):
        assert paired_gain(*verdicts(0, 0, total, 0)).high == 1
        assert paired_gain(*verdicts(0, total, 0, 0)).low == -1


def test_paired_gain_pairs_by_position_and_takes_arrays():
    a, b = [1, 0, 1, 0, 1], [1, 1, 0, 0, 1]
    gain = paired_gain(a, b)
    assert isinstance(gain, PairedGain)
    assert (gain.value, gain.both, gain.only_a, gain.only_b, gain.neither) == (0, 2, 1, 1, 1)
    assert paired_gain(np.array(a), np.array(b, dtype=bool)) == gain
    # The same accuracies, otherwise paired: 3 both, 2 neither.
    assert paired_gain(a, a).high < gain.high


def test_paired_interval_covers():
    # 40 items, a 55% and b 62%, correlated; the interval must contain the true 7% in about 95% of 2000 benchmarks.
    probabilities = [0.45, 0.10, 0.17, 0.28]
    tables = np.random.default_rng(0).multinomial(40, probabilities, size=2000)
    gains = [paired_gain(*verdicts(*table)) for table in tables]
    covered = statistics.fmean(gain.low <= 0.07 <= gain.high for gain in gains)
    assert 0.93 <= covered <= 0.98


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1, 0], [1], "found 2 in a, 1 in b"),
        ([], [], "expected at least one item"),
        ([1, 2], [1, 0], "expected verdicts of 0 or 1, found 2"),
        ([1, 1], [1, 0.5], "expected verdicts of 0 or 1, found 0.5"),
        ([1, 1], [1, None], "expected verdicts of 0 or 1, found None"),
        ([1, 1], ["1", 1], "expected verdicts of 0 or 1, found '1'"),
    ],
)
def test_bad_verdicts(a, b, message):
    with pytest.raises(ForkLeftError, match=message):
        paired_gain(a, b)


@pytest.mark.parametrize(("given", "message"), [([], "at least one item"), ([1, 3], "0 or 1, found 3")])
def test_bad_verdicts_of_one_model(given, message):
    with pytest.raises(ForkLeftError, match=message):
        accuracy(given)


# McNemar


def test_mcnemar_equals_scipy():
    counts = [*itertools.product(range(13), repeat=2), (130, 171), (500, 500), (3000, 3200), (1, 900), (7000, 6900)]
    for only_a, only_b in counts:
        if only_a + only_b == 0:
            continue
        expected = binomtest(only_b, only_a + only_b, 0.5).pvalue
        assert mcnemar(only_a, only_b) == pytest.approx(expected, rel=1e-8), (only_a, only_b)


def test_mcnemar_by_hand():
    # 8 discordant items, 1 of them a's: 2 * (C(8,0) + C(8,1)) / 2⁸ = 18/256.
    assert mcnemar(1, 7) == 18 / 256
    # 2 and 12: 2 * (1 + 14 + 91) / 2¹⁴.
    assert mcnemar(12, 2) == 212 / 16384
    # 3 and 3: twice the tail is more than 1.
    assert mcnemar(3, 3) == 1
    assert mcnemar(0, 0) == 1


def test_mcnemar_is_exact_far_beyond_floats():
    # 2 / 2¹⁰⁰⁰, and a p-value whose 2**total no float holds; numpy's integers must not overflow.
    assert mcnemar(0, 1000) == 2.0**-999
    expected = 2 * sum(math.comb(3000, k) for k in range(1401)) / 2**3000
    assert mcnemar(np.int64(1400), np.int64(1600)) == expected
    assert mcnemar(0, 5000) == 0


def test_mcnemar_refuses_negative_counts():
    with pytest.raises(ForkLeftError, match="found -1 and 2"):
        mcnemar(-1, 2)


# Bootstrap by cluster


def clustered_items(seed=0, questions=30):
    """Questions of 1 to 12 translations; the more translations, the likelier right, and one question's agree."""
    generator = np.random.default_rng(seed)
    values, clusters = [], []
    for question in range(questions):
        size = int(generator.integers(1, 13))
        chance = generator.beta(0.2 + size / 12, 0.7)
        values += (generator.random(size) < chance).astype(int).tolist()
        clusters += [f"question {question}"] * size
    return values, clusters


def flat(groups):
    return list(itertools.chain.from_iterable(groups))


def exact_bootstrap(groups, shares):
    """Quantiles of the mean over all equally likely resamples of a few clusters, written out item by item."""
    means = [statistics.fmean(flat(picked)) for picked in itertools.product(groups, repeat=len(groups))]
    return np.quantile(means, shares, method="inverted_cdf")


def test_clustered_mean_equals_all_resamples_written_out():
    # 4⁴ = 256 equally likely resamples; their means take few values, so that enough draws give the very same ends.
    groups = [[1, 1, 0], [0], [1, 0, 1, 1, 1], [0.5, 0.25]]
    values = flat(groups)
    clusters = [name for name, group in zip("pqrs", groups, strict=True) for _ in group]
    estimate = clustered_mean(values, clusters, level=0.8, resamples=200_000)
    assert (estimate.low, estimate.high) == pytest.approx(exact_bootstrap(groups, [0.1, 0.9]), abs=1e-12)
    assert estimate.value == pytest.approx(6.75 / 11, abs=1e-15)


def test_two_clusters_by_hand():
    # Right on all 3 of p, wrong on the 1 of q. Resamples: pp (mean 1), pq and qp (3/4), qq (0), a quarter each; so at
    # the level 0.4 the ends are the 30% and 70% points, both 3/4, and at 0.6 the 20% and 80% points, 0 and 1.
    items = [1, 1, 1, 0], ["p", "p", "p", "q"]
    assert clustered_mean(*items, level=0.4) == Estimate(0.75, 0.75, 0.75)
    assert clustered_mean(*items, level=0.6) == Estimate(0.75, 0.0, 1.0)


def test_clustered_numbers_of_any_size():
    """A line through the shares: mean and ends go along."""
    values, clusters = clustered_items()
    shares = clustered_mean(values, clusters)
    numbers = clustered_number([3 - 7 * value for value in values], clusters)
    expected = (3 - 7 * shares.value, 3 - 7 * shares.high, 3 - 7 * shares.low)
    assert (numbers.value, numbers.low, numbers.high) == pytest.approx(expected, abs=1e-9)
    assert clustered_number([2.5, 2.5], ["p", "q"]) == Estimate(2.5, 2.5, 2.5)
    with pytest.raises(ForkLeftError, match="at least 2 clusters"):
        clustered_number([1.0, 2.0], ["p", "p"])


def test_clustered_mean_equals_a_naive_loop():
    values, clusters = clustered_items()
    groups = {}
    for value, cluster in zip(values, clusters, strict=True):
        groups.setdefault(cluster, []).append(value)
    draw = random.Random(1)
    means = sorted(statistics.fmean(flat(draw.choices(list(groups.values()), k=len(groups)))) for _ in range(4000))
    spread = statistics.stdev(means)
    estimate = clustered_mean(values, clusters)
    # Each end of 4000 draws is uncertain by about 0.04 of the spread; 10000 draws add less.
    assert estimate.low == pytest.approx(means[100], abs=0.2 * spread)
    assert estimate.high == pytest.approx(means[3900], abs=0.2 * spread)
    assert estimate.value == statistics.fmean(values)
    # Neither the mean of the questions' means nor independent items would pass.
    assert abs(statistics.fmean(map(statistics.fmean, groups.values())) - estimate.value) > 0.5 * spread
    assert wilson_interval(sum(values), len(values))[0] - estimate.low > 0.3 * spread


def test_clustered_gain_equals_the_mean_of_differences_written_out():
    a = [[0, 1, 0], [1], [1, 0], [0, 0]]
    b = [[1, 1, 1], [0], [1, 1], [1, 0]]
    clusters = [name for name, group in zip("pqrs", a, strict=True) for _ in group]
    differences = [[y - x for x, y in zip(*pair, strict=True)] for pair in zip(a, b, strict=True)]
    estimate = clustered_gain(flat(a), flat(b), clusters, level=0.8, resamples=200_000)
    # 2 - 1 + 1 + 1 = 3 more right of 8.
    assert estimate.value == 3 / 8
    assert (estimate.low, estimate.high) == pytest.approx(exact_bootstrap(differences, [0.1, 0.9]), abs=1e-12)


@pytest.mark.parametrize("right", [0, 12])
def test_clusters_that_are_all_alike_count_as_one_verdict_each(right):
    clusters = [str(k % 12) for k in range(36)]
    constant = [right / 12] * 36
    estimate = clustered_mean(constant, clusters)
    assert (estimate.low, estimate.high) == pytest.approx(wilson_interval(right, 12), abs=1e-15)
    gain, expected = clustered_gain(constant, constant, clusters), paired_gain([right / 12] * 12, [right / 12] * 12)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0, expected.low, expected.high), abs=1e-15)
    assert gain.low < 0 < gain.high


def test_a_gain_that_is_the_same_in_all_clusters_keeps_a_width():
    # Both models right on the same half of the questions, with three translations each.
    a, clusters = [k % 2 for k in range(20)] * 3, [str(k) for k in range(20)] * 3
    gain, expected = clustered_gain(a, a, clusters), paired_gain(a[:20], a[:20])
    assert (gain.low, gain.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    # Always right against right on one of two translations of each: 10 of 20 clusters' worth are b's alone.
    half = [0] * 20 + [1] * 20
    gain, expected = clustered_gain(half, [1] * 40, clusters[:40]), paired_gain([0, 1] * 10, [1] * 20)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.5, expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("share", [1 / 3, 2 / 3, 1 / 5, 3 / 5, 0.7])
@pytest.mark.parametrize("sizes", [(1,) * 7, (1, 2, 3, 4, 5), (49, 3, 7)])
def test_constant_shares_lie_in_their_interval(share, sizes):
    clusters = [str(name) for name, size in enumerate(sizes) for _ in range(size)]
    constant = clustered_mean([share] * len(clusters), clusters)
    # Wilson's with a cluster for a verdict, whatever the clusters' sizes: written out for z = 1.959964.
    n, z = len(sizes), 1.959963984540054
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert constant.high == pytest.approx((share + z * z / (2 * n) + spread) / (1 + z * z / n), abs=1e-12)
    gain = clustered_gain([share] * len(clusters), [1.0] * len(clusters), clusters)
    assert equal_weight_mean([constant, gain]).value == pytest.approx(0.5)
    assert constant.low < share < constant.high
    assert gain.low < 1 - share < gain.high


def test_copies_of_an_item_add_no_certainty():
    values, clusters = clustered_items()
    once = clustered_mean(values, clusters)
    often = clustered_mean(values * 55, clusters * 55)
    assert (often.value, often.low, often.high) == pytest.approx((once.value, once.low, once.high), abs=1e-12)


def test_clustered_bootstrap_depends_on_items_and_seed_only(monkeypatch):
    generator = np.random.default_rng(3)
    _, clusters = clustered_items()
    a, b = generator.random((2, len(clusters)))
    expected = clustered_gain(a, b, clusters)
    for _ in range(5):
        order = generator.permutation(len(clusters))
        assert clustered_gain(a[order], b[order], [clusters[index] for index in order]) == expected
    assert clustered_gain(a, b, clusters, seed=1) != expected
    # Nor on how many numbers are drawn at once.
    monkeypatch.setattr("forkleft.evaluate.statistics._DRAWS", 1000)
    assert clustered_gain(a, b, clusters) == expected


@pytest.mark.parametrize(
    ("values", "clusters", "message"),
    [
        ([1, 0, 1], ["p", "q"], "found 3 in values, 2 in clusters"),
        ([], [], "expected at least one item"),
        ([1, 0], ["p", "p"], "expected at least 2 clusters, found only 'p'"),
        ([1, math.nan], ["p", "q"], "expected verdicts or shares from 0 to 1, found nan in cluster 'q'"),
        ([1.5, 1], ["p", "q"], "expected verdicts or shares from 0 to 1, found 1.5 in cluster 'p'"),
    ],
)
def test_bad_clusters(values, clusters, message):
    with pytest.raises(ForkLeftError, match=message):
        clustered_mean(values, clusters)


def test_bad_clustered_gain():
    with pytest.raises(ForkLeftError, match="found 2 in a, 3 in b, 2 in clusters"):
        clustered_gain([1, 0], [1, 0, 1], ["p", "q"])
    with pytest.raises(ForkLeftError, match="expected at least 1 resample, found 0"):
        clustered_gain([1, 0], [1, 1], ["p", "q"], resamples=0)


# Equal-weight mean over benchmarks


def test_equal_weight_mean_by_hand():
    # Below: sqrt(0.1² + 0.4²) / 2 = sqrt(0.17) / 2 = 0.206155; above: sqrt(0.2² + 0.1²) / 2 = 0.111803.
    mean = equal_weight_mean([Estimate(0.5, 0.4, 0.7), Estimate(0.7, 0.3, 0.8)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.6, 0.393845, 0.711803), abs=1e-6)


def test_equal_weight_mean_of_one_and_of_many_alike():
    one = paired_gain(*verdicts(10, 3, 9, 8))
    mean = equal_weight_mean([one])
    assert (mean.value, mean.low, mean.high) == pytest.approx((one.value, one.low, one.high), abs=1e-15)
    # Nine alike: a third of the distances.
    mean = equal_weight_mean([one] * 9)
    assert mean.value - mean.low == pytest.approx((one.value - one.low) / 3, abs=1e-15)
    assert mean.high - mean.value == pytest.approx((one.high - one.value) / 3, abs=1e-15)


def test_equal_weight_mean_ignores_sizes_and_stays_in_range():
    mean = equal_weight_mean([accuracy([1] * 1319), accuracy([0] * 30), accuracy([1] * 3)])
    assert mean.value == pytest.approx(2 / 3, abs=1e-15)
    none_right = equal_weight_mean([accuracy([0] * 30), accuracy([0] * 45)])
    assert none_right.value == none_right.low == 0 < none_right.high


def test_equal_weight_interval_covers():
    # Three benchmarks of AIME's, GPQA's and a small size with true accuracies 10%, 45%, 90%: mean 48.33%.
    generator = np.random.default_rng(0)
    shape = [(30, 0.10), (198, 0.45), (60, 0.90)]
    draws = [
        equal_weight_mean([accuracy((generator.random(total) < chance).tolist()) for total, chance in shape])
        for _ in range(2000)
    ]
    covered = statistics.fmean(mean.low <= 1.45 / 3 <= mean.high for mean in draws)
    assert 0.93 <= covered <= 0.98


@pytest.mark.parametrize(
    ("benchmarks", "message"),
    [
        ([], "expected at least one benchmark"),
        ([Estimate(0.5, 0.4, 0.6), Estimate(0.5, 0.6, 0.7)], "expected low <= value <= high, found Estimate"),
        ([Estimate(math.nan, 0.4, 0.6)], "expected low <= value <= high"),
    ],
)
def test_bad_benchmarks(benchmarks, message):
    with pytest.raises(ForkLeftError, match=message):
        equal_weight_mean(benchmarks)


# Holm


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04, times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04, and the last not below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], abs=1e-15)
    assert holm([0.6, 0.4, 0.9]) == [1, 1, 1]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


def test_holm_is_the_closed_test_of_bonferroni():
    # The definition by the closure principle: a hypothesis is rejected if Bonferroni rejects every set that holds it.
    generator = np.random.default_rng(0)
    for trial in range(60):
        size = 1 + trial % 6
        p_values = generator.random(size) ** 3
        if trial % 2:
            p_values = p_values.round(1)  # ties, and zeros
        sets = [chosen for k in range(1, size + 1) for chosen in itertools.combinations(range(size), k)]
        expected = [
            max(min(1, len(chosen) * min(p_values[i] for i in chosen)) for chosen in sets if index in chosen)
            for index in range(size)
        ]
        adjusted = holm(p_values)
        assert adjusted == pytest.approx(expected, abs=1e-15)
        assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))


@pytest.mark.parametrize("p_value", [-0.1, 1.5, math.nan])
def test_holm_refuses_what_is_no_probability(p_value):
    with pytest.raises(ForkLeftError, match="expected p-values between 0 and 1"):
        holm([0.5, p_value])


# Totals alone


def test_the_gain_of_a_table_is_that_of_its_verdicts():
    for counts in ((986, 206, 105, 22), (0, 0, 3, 0), (5, 1, 0, 2)):
        assert gain_of_table(*counts, level=0.9) == paired_gain(*verdicts(*counts), level=0.9)
    for counts in ((1, -1, 1, 1), (0, 0, 0, 0)):
        with pytest.raises(ForkLeftError, match="expected four counts of at least 0"):
            gain_of_table(*counts)


def test_wilson_interval_of_part_of_an_item():
    assert wilson_interval(2.5, 30)[0] == pytest.approx(
        (wilson_interval(2, 30)[0] + wilson_interval(3, 30)[0]) / 2, 0.1
    )


@pytest.mark.parametrize(("level", "items"), [(0.9, 5), (0.95, 6), (0.99, 8)])
def test_if_nothing_was_lost_the_smallest_gain_depends_on_the_level_alone(level, items):
    # p is twice (1/2)^items.
    assert 2 * 0.5**items <= 1 - level < 2 * 0.5 ** (items - 1)
    for correct, total in ((0, 30), (3, 30), (22, 30), (9976, 14042)):
        assert smallest_gain(correct, total, nothing_lost=True, level=level) == items
    assert smallest_gain(total - items, total, nothing_lost=True, level=level) == items
    assert smallest_gain(total - items + 1, total, nothing_lost=True, level=level) is None


def naive_smallest_gain(correct, total):
    """Try them all, with the binomial test of scipy."""
    for gain in range(1, total - correct + 1):
        lost = math.ceil(correct * (total - correct - gain) / total)
        if binomtest(lost, 2 * lost + gain).pvalue <= 0.05:
            return gain
    return None


@pytest.mark.parametrize("total", [1, 12, 30, 45, 198])
def test_the_smallest_gain_of_independent_models(total):
    for correct in range(0, total + 1, 1 + total // 40):
        assert smallest_gain(correct, total, nothing_lost=False) == naive_smallest_gain(correct, total)


@pytest.mark.parametrize(("correct", "total"), [(61, 198), (363, 500), (365, 800), (1091, 1319), (9976, 14042)])
def test_equal_models_seldom_differ_by_the_smallest_gain(correct, total):
    """The exact chance that one of two independent models of the same accuracy, halfway, is ahead by so many items."""
    gain = smallest_gain(correct, total, nothing_lost=False)
    share = (correct + gain / 2) / total
    counts = np.arange(total + 1)
    chances = binom.pmf(counts, total, share)

    def chance_of(least):
        return float((chances * binom.sf(counts + least - 1, total, share)).sum())

    assert chance_of(gain) <= 0.025
    # Not much smaller than it must be: the test is exact, and rounds to its safe side.
    assert chance_of(0.9 * gain - 1) > 0.025
    # The test of two proportions that are not paired.
    assert gain / total == pytest.approx(1.96 * math.sqrt(2 * share * (1 - share) / total), rel=0.1)


@pytest.mark.parametrize(("correct", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_smallest_gain_of_impossible_counts(correct, total):
    with pytest.raises(ForkLeftError, match="expected 0 <= correct <= total"):
        smallest_gain(correct, total, nothing_lost=True)


# Contrasts


def test_a_contrast_of_one_kind_is_the_equal_weight_mean():
    estimates = [Estimate(0.5, 0.4, 0.7), Estimate(0.1, 0.0, 0.2), Estimate(0.9, 0.85, 0.91)]
    found, expected = contrast([(1 / 3, one) for one in estimates]), equal_weight_mean(estimates)
    assert (found.value, found.low, found.high) == pytest.approx((expected.value, expected.low, expected.high))


def test_a_difference_is_newcombes():
    # Method 10 in Newcombe, "Interval estimation for the difference between independent proportions", Statistics in
    # Medicine 17 (1998) 873-890, table II: 56/70 - 48/80.
    terms = [(1, Estimate(56 / 70, *wilson_interval(56, 70))), (-1, Estimate(48 / 80, *wilson_interval(48, 80)))]
    found = contrast(terms)
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_a_contrast_turns_with_its_weights():
    one, two = Estimate(0.5, 0.4, 0.7), Estimate(0.1, 0.0, 0.15)
    there, back = contrast([(2, one), (-1, two)]), contrast([(-2, one), (1, two)])
    assert (back.value, back.low, back.high) == pytest.approx((-there.value, -there.high, -there.low))
    # By hand: 0.9; down 2 * 0.1 and 0.05, up 2 * 0.2 and 0.1.
    assert (there.value, there.low, there.high) == pytest.approx(
        (0.9, 0.9 - math.hypot(0.2, 0.05), 0.9 + math.hypot(0.4, 0.1))
    )


def test_a_contrast_of_nothing_or_of_no_estimate():
    with pytest.raises(ForkLeftError, match="at least one estimate"):
        contrast([])
    with pytest.raises(ForkLeftError, match="expected low <= value <= high"):
        contrast([(1, Estimate(0.5, 0.6, 0.7))])
