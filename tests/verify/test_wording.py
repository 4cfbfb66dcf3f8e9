import re

import pytest

from forkleft.verify import wording

PIECES = {name: value for name, value in vars(wording).items() if name.isupper()}


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_means_something(name):
    # An alternative that was left empty would be found everywhere.
    assert re.compile(PIECES[name]).fullmatch("") is None


@pytest.mark.parametrize("name", ["OPTION", "ANSWER", "ANSWER_ELSEWHERE", "CHOOSE", "FILLER", "THEREFORE", "NOT"])
def test_no_piece_takes_a_letter_for_a_word(name):
    assert not any(re.compile(PIECES[name]).fullmatch(letter) for letter in "ABCDEFGHIJ")
