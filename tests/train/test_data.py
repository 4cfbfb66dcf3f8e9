import json

import pytest

from forkleft.errors import ForkLeftError
from forkleft.train.data import fill, read_examples, read_ids, read_routes, rows_named
from forkleft.train.metrics import StepFile
from forkleft.train.run_files import write_run
from forkleft.verify import Verifier


def read(rows, *verifier, **changes):
    settings = {"prompt_template": "{question}\nGo.", "reference_template": "{solution} #{answer}"}
    return read_examples(rows, verifier=Verifier(*verifier or ("lab",)), **settings | changes)


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
    # Lists of ids on disk name them so.
    (example,) = read([{"messages": [{"role": "user", "content": "1+1?"}], "answer": "2"}])
    assert example.id == "721350edfc80e11f"


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
    assert [(example.id, example.reference) for example in found] == [("0", None), ("2", None), ("4", "so #2")]
    assert [record.getMessage() for record in caplog.records] == [
        "left out 2 of 5 rows: their answer is blank; the first: row 1"
    ]


def test_a_choice_is_among_the_letters_offered():
    rows = [{"question": "a", "answer": "F", "solution": "answer: F"}]
    assert read(rows, "choice", "ABCDEFGHIJ")[0].reference == "answer: F"
    with pytest.raises(ForkLeftError, match=r"expected one of the letters ABCD as the right choice, found 'F'"):
        read(rows, "choice")


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
        *(
            ([{"messages": said, "answer": "1"}], "row 0: expected messages with role and content, ")
            for said in ([], 5, ["abc"], [1], {}, "ab", {"role": "user", "content": "a"}, [{"role": 1, "content": "a"}])
        ),
        (
            [{"messages": [{"role": "user", "content": " "}], "answer": "1"}],
            "row 0: the last message is empty; expected a question",
        ),
        (
            [{"messages": [{"role": "user", "text": "a"}], "answer": "1"}],
            "row 0: expected messages with role and content",
        ),
        (
            [{"messages": "abc", "answer": "1"}],
            "row 0: expected messages with role and content, in a list, found 'abc'",
        ),
        ([{"messages": ["a", "b"], "answer": "1"}], "row 0: expected messages .*, both text, found 'a'"),
        ([{"messages": {"role": "user", "content": "a"}, "answer": "1"}], "row 0: expected messages .*, in a list"),
        ([{"messages": [{"role": "user", "content": None}], "answer": "1"}], "both text, found .*'content': None"),
        ([{"messages": [{"role": "user", "content": ["a"]}], "answer": "1"}], "both text, found .*'content': .'a'"),
        ([{"messages": [{"role": 1, "content": "a"}], "answer": "1"}], "both text, found .*'role': 1"),
        ([{"id": "x", "question": q, "answer": "1"} for q in "ab"], "id 'x' has two questions"),
        ([{"id": "x", "question": "a", "answer": a} for a in "12"], "id 'x' has two answers, '1' and '2' to be"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ForkLeftError, match=message):
        read(rows)


def test_ids_from_a_list_from_lines_and_from_the_routes_of_a_run(tmp_path):
    listed, lines, routes = (tmp_path / name for name in ("ids.json", "ids.txt", "routes.jsonl"))
    listed.write_text('["q2", 7]')
    lines.write_text("q2\n\nq0\n")
    rows = [{"step": 1, "ids": ["q0", "q1"], "routes": ["LEFTOPD", "CE"]}]
    # What a later visit finds does not count.
    rows.append({"step": 2, "ids": ["q1", "q2"], "routes": ["LEFTOPD", "LEFTOPD"]})
    routes.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_ids(listed) == ["q2", "7"]
    assert read_ids(lines) == ["q2", "q0"]
    assert read_ids(routes, "LEFTOPD") == ["q0", "q2"]


@pytest.mark.parametrize(
    ("name", "text", "route", "message"),
    [
        ("ids.json", "[1, ", None, "cannot read it"),
        ("ids.json", "[]", None, "expected ids of questions, found none"),
        ("ids.txt", "q1", "CE", "a train_route has no meaning"),
        ("routes.jsonl", "{}", None, "expected train_route, one of CE, LEFTOPD, GOLD, EXCLUDE"),
        ("routes.jsonl", "{}", "ALL", "train_route must be one of CE, LEFTOPD, GOLD, EXCLUDE, found 'ALL'"),
        ("routes.jsonl", '{"step": 1}', "CE", "line 1: expected ids and routes, equally many"),
        ("routes.jsonl", '{"ids": ["q"], "routes": ["CE"]}', "GOLD", "found none on route GOLD"),
    ],
)
def test_files_without_ids(tmp_path, name, text, route, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ForkLeftError, match=message):
        read_ids(tmp_path / name, route)


def test_rows_with_given_ids():
    rows = [{"id": f"q{k}", "question": str(k), "answer": "1"} for k in range(9)]
    unnamed = {"question": "x", "answer": "2"}
    (example,) = read([unnamed])
    blank = {"id": "q9", "question": "y", "answer": " "}
    asked = ["q4", example.id, "q1"]
    assert rows_named([*rows, unnamed, blank], asked, "{question}\nGo.", source="f") == [rows[1], rows[4], unnamed]
    with pytest.raises(ForkLeftError, match="f: 2 of 3 ids are not in the data: q77, q9; take the data"):
        rows_named([*rows, blank], ["q77", "q0", "q9"], "{question}", source="f")
    with pytest.raises(ForkLeftError, match="f: 8 of 8 ids are not in the data: x0, x1, x2, x3, x4 and 3 more"):
        rows_named(rows, [f"x{k}" for k in range(8)], "{question}", source="f")


def test_routes_that_were_cut_at_the_end_of_a_line_are_damaged(tmp_path):
    # A run that a callback has ended before its 9 updates.
    write_run(tmp_path, {"max_steps": 9})
    (tmp_path / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n{"warning": "w", "step": 3}\n{"st')
    file = StepFile(tmp_path / "routes.jsonl", sealed=True)
    for step in (1, 2):
        file.write({"step": step, "ids": [f"q{step}"], "routes": ["CE"]})
    # The run goes on.
    assert len(read_routes(file.path)) == 2
    (tmp_path / "README.md").touch()
    with pytest.raises(ForkLeftError, match="expected the routes of 3 updates, found those of 2; take the file of"):
        read_routes(file.path)
    file.write({"step": 3, "ids": ["q3"], "routes": ["CE"]})
    assert len(read_routes(file.path)) == 3
