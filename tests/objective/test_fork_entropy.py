import math

import pytest

from forkleft.objective.fork_entropy import FORK_ENTROPY


@pytest.mark.parametrize(
    ("odds", "fork"), [((0.5, 0.5), True), ((0.4, 0.3, 0.3), True), ((0.6, 0.4), False), ((0.8, 0.2), False)]
)
def test_a_fork_is_as_open_as_two_equal_words(odds, fork):
    assert (-sum(p * math.log(p) for p in odds) >= FORK_ENTROPY) == fork
