import math
from collections import Counter
from fractions import Fraction

import pytest
from scipy.stats import chisquare

from forkleft.errors import ForkLeftError
from forkleft.objective.positions import select_positions, selection_size


def select(length, *, ends_with_eos=False, rho=0.25, seed=0, update=0, question="q", stream="response"):
    return select_positions(
        length, ends_with_eos=ends_with_eos, rho=rho, seed=seed, update=update, question=question, stream=stream
    )


def test_counts():
    """n = min(⌈ρL⌉, L−1), with ρ as it was written: ⌈0.1 · 30⌉ is 3, though 0.1 * 30 > 3 in floating point."""
    for rho in (0.0, 0.1, 0.25, 0.3, 0.5, 0.7, 1.0, 1e-5):
        for length in range(70):
            expected = min(math.ceil(Fraction(str(rho)) * length), max(0, length - 1))
            assert selection_size(length, rho) == expected
            chosen = select(length, rho=rho)
            assert len(chosen) == expected
            assert chosen == sorted(set(chosen))
            assert all(0 <= i < length - 1 for i in chosen)
    assert selection_size(30, 0.1) == 3


def test_eos_is_counted_once_and_only_a_real_one():
    for length in range(1, 40):
        for rho in (0.0, 0.4, 1.0):
            cut, ended = select(length, rho=rho), select(length, rho=rho, ends_with_eos=True)
            assert length - 1 not in cut
            assert ended == [*cut, length - 1]


def test_uniform_over_candidates_and_subsets():
    draws = [select(7, rho=0.25, update=update) for update in range(6000)]
    each = Counter(i for drawn in draws for i in drawn)
    assert set(each) == set(range(6))
    assert chisquare(list(each.values())).pvalue > 1e-3
    subsets = Counter(map(tuple, draws))
    assert len(subsets) == math.comb(6, 2)
    assert chisquare(list(subsets.values())).pvalue > 1e-3


def test_keyed_by_seed_update_question_and_stream():
    """The same key draws the same, another key another set; the streams are independent."""
    one = select(200)
    assert one == select(200)
    for change in ({"seed": 1}, {"update": 1}, {"question": "r"}, {"stream": "reference"}):
        assert select(200, **change) != one
    table = Counter(
        (select(3, rho=0.1, update=k)[0], select(3, rho=0.1, update=k, stream="reference")[0]) for k in range(2000)
    )
    assert chisquare([table[c, g] for c in (0, 1) for g in (0, 1)]).pvalue > 1e-3


@pytest.mark.parametrize("rho", [-0.1, 1.01, math.nan])
def test_rho_must_be_a_share(rho):
    with pytest.raises(ForkLeftError, match="expected 0 to 1"):
        select(5, rho=rho)
