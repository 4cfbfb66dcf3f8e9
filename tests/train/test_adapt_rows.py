from collections import Counter

import pytest

from forkleft.errors import ForkLeftError
from forkleft.train.adapt_rows import LeftOut, kind_of, kind_of_all

ASKED = [{"role": "user", "content": "a"}]
TALK = [*ASKED, {"role": "assistant", "content": "b"}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"text": "a"}, "text"),
        ({"text": "a", "messages": TALK, "answer": "5"}, "text"),
        ({"text": None, "messages": TALK}, "messages"),
        ({"messages": TALK}, "messages"),
        # A column that is null in every row says nothing.
        ({"messages": TALK, "answer": None}, "messages"),
        ({"messages": TALK, "answer": " "}, "messages"),
        ({"messages": ASKED, "answer": "5"}, "questions"),
        ({"question": "a", "answer": 5}, "questions"),
        ({"question": "a", "answer": None}, "questions"),
        ({"text": None}, "text"),
        ({"messages": None}, "messages"),
    ],
)
def test_the_kind_of_a_row(row, kind):
    assert kind_of(row) == kind


def test_rows_that_are_none():
    for row, message in (({}, "found no columns; rename"), ({"a": 1}, "found a; rename"), ("a", "found 'a'; plain")):
        with pytest.raises(ForkLeftError, match=message):
            kind_of(row)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([{"messages": ASKED, "answer": None}, {"messages": ASKED, "answer": "5"}], "questions"),
        ([{"messages": TALK, "answer": None}] * 2, "messages"),
        ([{"text": None, "messages": None}, {"text": None, "messages": TALK}], "messages"),
        ([{"text": None}] * 2, "text"),
        ([{"words": "a"}, {"text": "a"}], "text"),
        ([{"text": "a"}, {"messages": TALK}], "text"),
    ],
)
def test_the_kind_of_a_data_set_is_that_of_the_first_row_that_tells(rows, kind):
    assert kind_of_all(rows) == kind


def test_data_sets_that_are_none():
    with pytest.raises(ForkLeftError, match="the data set is empty"):
        kind_of_all([])
    with pytest.raises(ForkLeftError, match="found words; rename"):
        kind_of_all([{"words": "a"}, {"other": "b"}])


def test_each_reason_is_told_with_its_own_first_row_and_once(caplog):
    told = Counter()
    left_out = LeftOut(told)
    assert left_out.first == ""
    for number in range(12):
        left_out.add(f"row {number}", "are long" if number % 2 else "are short")
        left_out.tell("many", at_end=False)
    left_out.tell("12 rows")
    left_out.tell("12 rows")
    assert [record.getMessage() for record in caplog.records] == [
        "left out 1 of many, which are short; the first: row 0",
        "left out 1 of many, which are long; the first: row 1",
        "left out 6 of 12 rows, which are short; the first: row 0",
        "left out 6 of 12 rows, which are long; the first: row 1",
    ]
    assert told == {"are short": 6, "are long": 6} and left_out.first == "row 0"
