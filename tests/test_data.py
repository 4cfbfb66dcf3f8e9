import pytest

from forkleft.data import fill, read_examples
from forkleft.errors import ForkLeftError


def read(rows, **changes):
    settings = {"prompt_template": "{question}\nGo.", "reference_template": "{solution} #{answer}", "verifier": "lab"}
    return read_examples(rows, **settings | changes)


def test_a_question_becomes_a_user_turn():
    (example,) = read([{"id": 7, "question": "1+1?", "answer": 2}])
    assert example.id == "7"
    assert example.messages == ({"role": "user", "content": "1+1?\nGo."},)
    assert example.answer == "2"
    assert example.reference is None


def test_messages_are_taken_as_they_are():
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "{question}"}]
    (example,) = read([{"messages": messages, "question": None, "answer": "2"}])
    assert list(example.messages) == messages


def test_rows_without_an_id_are_named_by_what_they_ask():
    one, two, three = read([{"question": q, "answer": "2"} for q in ("a", "b", "a")])
    assert one.id == three.id != two.id


def test_a_solution_gets_the_form_that_the_verifier_needs():
    marked, bare = read(
        [{"question": "a", "answer": "2", "solution": "so #2"}, {"question": "b", "answer": "2", "solution": "so 2"}]
    )
    assert marked.reference == "so #2"
    assert bare.reference == "so 2 #2"


def test_gaps_in_a_data_set_cost_only_what_they_must(caplog):
    rows = [{"id": k, "question": "q", "answer": a, "solution": s} for k, (a, s) in enumerate([
        ("2", ""), ("", "so #2"), ("2", " \n"), (None, None), ("2", "so #2"),
    ])]  # fmt: skip
    with caplog.at_level("WARNING"):
        found = read(rows)
    assert [(one.id, one.reference) for one in found] == [("0", None), ("2", None), ("4", "so #2")]
    assert [record.getMessage() for record in caplog.records] == [
        "left out 2 of 5 rows: their answer is blank; the first: row 1"
    ]


def test_a_choice_is_among_the_letters_offered():
    rows = [{"question": "a", "answer": "F", "solution": "answer: F"}]
    assert read(rows, verifier="choice", letters="ABCDEFGHIJ")[0].reference == "answer: F"
    with pytest.raises(ForkLeftError, match=r"expected one of the letters ABCD as the right choice, found 'F'"):
        read(rows, verifier="choice")


def test_templates_are_full_of_braces():
    assert fill(r"\boxed{} {question} \boxed{{answer}}", {"question": "{answer}", "answer": r"\frac{1}{2}"}) == (
        r"\boxed{} {answer} \boxed{\frac{1}{2}}"
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the data set is empty"),
        ([{"question": "a"}], r"needs the columns answer and question \(or messages\), found question"),
        ([{"q": "a", "answer": "1"}], "found answer, q"),
        (
            [{"question": "a", "answer": blank} for blank in (None, "", " ")],
            r"expected answers, found none in 3 row\(s\)",
        ),
        (
            [{"question": "a", "answer": "1"}, {"question": "a", "answer": [2]}],
            r"row 1: expected text in answer, found \[2",
        ),
        ([{"question": "a", "answer": "1", "solution": ["s"]}], r"row 0: expected text in solution, found \['s'\]"),
        ([{"question": "a", "answer": True}], "row 0: expected text in answer, found True"),
        ([{"question": "", "answer": "1"}], "row 0: expected text in question, found ''"),
        ([{"messages": [{"role": "user"}], "answer": "1"}], "row 0: expected messages with role and content"),
        ([{"messages": [], "answer": "1"}], "row 0: expected messages"),
        (
            [{"messages": [{"role": "user", "text": "a"}], "answer": "1"}],
            "row 0: expected messages with role and content",
        ),
        ([{"id": "x", "question": q, "answer": "1"} for q in "ab"], "id 'x' has two questions"),
        ([{"id": "x", "question": "a", "answer": a} for a in "12"], "id 'x' has two answers, '1' and '2' to be"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ForkLeftError, match=message):
        read(rows)


def test_an_unknown_verifier():
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'maths'"):
        read([{"question": "a", "answer": "1", "solution": "s"}], verifier="maths")
