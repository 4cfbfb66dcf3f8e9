import pytest

from forkleft.verify.lab import lab_answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("b=7+5=2;c=2-7=5;#5", "5"),
        ("#3 no, #4", "4"),
        ('"answer": "C"', "C"),
        ('#3;"answer": "B"', "B"),
        ("b=7+5=2;", None),
        ("#", None),
        ("", None),
        ('"answer": "E"', None),
    ],
)
def test_the_last_marked_answer(response, answer):
    assert lab_answer(response) == answer
