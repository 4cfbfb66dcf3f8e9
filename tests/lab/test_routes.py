import io
import json

import pytest
from rich.console import Console

from forkleft.errors import ForkLeftError
from forkleft.lab.accuracy import measure
from forkleft.lab.benchmarks import lab_set
from forkleft.lab.models import STUDENTS, load_model
from forkleft.lab.routes import ROUTE_ORDERS, count_routes, print_routes, routes_table


def test_routes_are_the_four_pairs_of_verdicts():
    """In confidence order the student's verdicts are those of its native evaluation."""
    teacher, student = load_model("teacher-weak"), load_model("student-block")
    for loaded in (teacher, student):
        loaded.model.double()  # nothing hangs on how a near tie is rounded
    items = lab_set("chain-3", 24)
    taught = [record.correct for record in measure(teacher, items).records]
    records = measure(student, items).records
    pairs = [(record.correct, right) for record, right in zip(records, taught, strict=True)]
    lucky = [
        record.correct and record.response != item.solution for record, item in zip(records, items.items, strict=True)
    ]
    assert any(lucky)
    assert count_routes(taught, student.student, items, "confidence") == {
        "both": pairs.count((True, True)),
        "teacher only": pairs.count((False, True)),
        "student only": pairs.count((True, False)),
        "neither": pairs.count((False, False)),
        "by luck": sum(lucky),
    }


@pytest.mark.slow
def test_there_is_something_to_teach(capsys):
    """The strong teacher alone is right on at least a quarter of the questions written highest entropy first."""
    print_routes("teacher-strong", ["student-block", "student-shifted"], "chain-4", as_json=True)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 6
    assert all(row["teacher only"] >= 125 for row in rows if row["order"] == "high_entropy")


def test_eighty_columns_hold_every_name():
    rows = [(name, order, *["100.0"] * 5) for name in STUDENTS for order in ROUTE_ORDERS]
    console = Console(file=io.StringIO(), width=80)
    console.print(routes_table("Routes", rows))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert all(list(row) in lines for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("student-block", ["student-block"], "chain-4"), "no lab teacher 'student-block'; there are teacher-strong"),
        (("teacher-weak", ["teacher-weak"], "chain-4"), "no lab student 'teacher-weak'; there are student-block"),
        (("teacher-weak", ["student-block"], "chain-9"), "no held-out set 'chain-9'"),
        (("teacher-weak", ["student-block"], "choice-2"), "choice-2 is read in the answer slot"),
    ],
)
def test_bad_names(arguments, message):
    with pytest.raises(ForkLeftError, match=message):
        print_routes(*arguments)
