import json

import pytest

from forkleft.cli.sources import rows_of
from forkleft.errors import ForkLeftError


def test_rows_come_from_files_and_columns_are_renamed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"q{k}", "answer": k}) + "\n" for k in range(3)))
    rows = rows_of(str(path), None, "train", 2, {"question": "problem"}, seed=0)
    assert [(row["question"], row["answer"]) for row in rows] == [("q0", 0), ("q1", 1)]
    with path.open("a") as file:
        file.write(json.dumps({"question": "q3", "answer": 3}) + "\n")
    assert rows_of(str(path), None, "train", None, {"question": "problem"}, seed=0)[3]["question"] is None
    with pytest.raises(
        ForkLeftError, match=r"no column 'text', there are problem, answer; .*eval_columns for eval_data"
    ):
        rows_of(str(path), None, "train", None, {"question": "text"}, seed=0)


def test_rows_of_a_folder_that_datasets_can_read(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "answer": "1"}) + "\n")
    assert rows_of(str(tmp_path), None, "train", None, None, seed=0) == [{"question": "q", "answer": "1"}]
    with pytest.raises(ForkLeftError, match=r"cannot load .* from the hub"):
        rows_of(str(tmp_path), None, "no-such-split", None, None, seed=0)


def test_rows_of_the_lab():
    assert len(rows_of("lab:train", None, "train", 5, None, seed=0)) == 5
    assert len(rows_of("lab:chain-4", None, "test", None, None, seed=0)) == 500
    with pytest.raises(ForkLeftError, match="train_questions how many"):
        rows_of("lab:train", None, "train", None, None, seed=0)
    with pytest.raises(ForkLeftError, match="no data 'chain-9'; there are lab:train"):
        rows_of("lab:chain-9", None, "train", None, None, seed=0)
