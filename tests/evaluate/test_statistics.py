import pytest
from scipy.stats import binomtest

from forkleft.evaluate.statistics import wilson_interval


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
    with pytest.raises(ValueError, match="expected 0 <= correct <= total"):
        wilson_interval(correct, total)
