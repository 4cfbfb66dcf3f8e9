import json
import subprocess
import sys

from commands import run


def test_lab_sample_is_repeatable(capsys):
    arguments = ("lab", "sample", "--steps", "4", "--count", "3", "--seed", "1")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.count("question") == out.count("solution") == out.count("answer") == 3
    assert run(capsys, *arguments)[1] == out
    assert run(capsys, *arguments[:-1], "2")[1] != out


def test_lab_sample_json(capsys):
    code, out, _ = run(capsys, "lab", "sample", "--form", "choice", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {"id", "question", "solution", "answer", "steps", "choices"} == set(rows[0])


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m forkleft lab sample --count 3000 | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def test_lab_routes_json(capsys):
    code, out, err = run(capsys, "lab", "routes", "--student", "student-block", "--set", "chain-9", "--json")
    assert (code, out) == (2, "")
    assert "no held-out set 'chain-9'" in err


def test_lab_accuracy_json(capsys):
    code, out, _ = run(capsys, "lab", "accuracy", "--model", "teacher-weak", "--set", "chain-2", "--json")
    row = json.loads(out)
    assert code == 0
    assert row["model"] == "teacher-weak"
    assert row["accuracy"] == row["correct"] / row["total"]
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]
