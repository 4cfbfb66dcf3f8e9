import math

import pytest
from reports import made_up_trace

from forkleft.report.viewer import LONGEST, compact, good_example, right_in_use, spread


def test_a_row_keeps_what_the_viewer_shows():
    row = made_up_trace(tokens=8, entropy=[0.123456] * 8)
    shown = compact(row)
    assert shown["tokens"] == row["tokens"] and shown["commit_pass"] == row["commit_pass"]
    assert shown["entropy"] == [0.123] * 8
    assert shown["positions"] == [2, 5] and shown["kl"] == [0.27, 0.3]
    # Tokens and probabilities in turns; what is next to impossible is left out.
    assert shown["student_alternatives"] == [["w2", 0.6, "x", 0.3], ["w5", 0.6, "x", 0.3]]
    assert not shown["cut"]


def test_rows_of_earlier_versions_lack_figures_and_are_shown():
    row = made_up_trace(tokens=8)
    for name in ("block_starts", "kl", "contrast", "mask_entropy", "left_entropy", "left_confidence"):
        del row[name]
    shown = compact(row)
    assert shown["block_starts"] is None and shown["kl"] is None and shown["contrast"] is None
    assert shown["teacher_alternatives"] == [["t", 0.7, "w2", 0.2], ["t", 0.7, "w5", 0.2]]


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": None},
        {"entropy": [0.1]},
        {"commit_pass": ["x"] * 8},
        {"entropy": [math.nan] * 8},
        {"positions": [2, 5, 7]},
        {"positions": [2, 99]},
        {"block_starts": [0, "x"]},
        {"block_starts": [4]},
        {"block_starts": [0, 6, 4]},
        {"block_starts": [-1, 0]},
    ],
)
def test_rows_that_cannot_be_shown_are_none(changes):
    assert compact(made_up_trace(tokens=8) | changes) is None


def test_a_very_long_response_is_cut():
    shown = compact(made_up_trace(tokens=LONGEST + 100))
    assert shown["cut"] and shown["length"] == LONGEST + 100
    assert len(shown["tokens"]) == len(shown["entropy"]) == LONGEST
    assert max(shown["positions"]) < LONGEST and len(shown["kl"]) == len(shown["positions"])
    assert max(shown["block_starts"]) < LONGEST


def test_rows_are_taken_evenly():
    assert spread(range(10), 20) == list(range(10))
    assert spread(range(10), 3) == [0, 3, 6]
    assert spread(range(10), 0) == []


def test_right_in_use_is_before_and_after_with_the_most_confident_first():
    rows = [
        {"order": order, "step": step, "student_right": right}
        for order, step, right in (("high_entropy", 0, True), ("confidence", 9, True), ("confidence", 0, False))
    ]
    assert right_in_use(rows) == [False, True]
    assert right_in_use(rows[:2]) == []


def test_the_example_is_a_fork_that_the_teacher_would_take_otherwise():
    plain = compact(made_up_trace(0, tokens=8, route="CE"))
    agreed = compact(made_up_trace(1, tokens=8, teacher_alternatives=[[("w2", 1.0)], [("w5", 1.0)]]))
    certain = compact(made_up_trace(2, tokens=8))
    torn = compact(made_up_trace(3, tokens=8, entropy=[0.1, 0.1, 2.0, 0.1, 0.1, 0.1, 0.1, 0.1]))
    assert good_example(enumerate([plain, agreed, certain, torn])) == {"trace": 3, "fork": 2, "position": 2}
    assert good_example(enumerate([plain, agreed, certain]))["trace"] == 2
    assert good_example([(5, plain), (8, certain)])["trace"] == 8
    # Where the student left the way that the teacher takes.
    parted = compact(made_up_trace(4, tokens=8, teacher_answer="w0w1t"))
    assert good_example(enumerate([certain, parted])) == {"trace": 1, "fork": 7, "position": 2}
    assert good_example(enumerate([plain, agreed])) is None
