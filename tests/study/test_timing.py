import json

import pytest

from forkleft.study.grid import Evaluation
from forkleft.study.timing import Rates, answers, items, read_times, visits


def test_rates_are_medians_of_what_was_measured(tmp_path):
    for name, times in {
        "a": {"train": [110, 100], "eval/static": [20, 10]},
        "b": {"train": [310, 100]},
        "c": {"train": [210, 100], "eval/passes-4": [10, 10]},
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "times.json").write_text(json.dumps(times))
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "times.json").write_text('{"train": [1')
    rates = Rates.of_cells(tmp_path)
    assert rates.count == 5
    # 10 seconds to start, then 1, 2 or 3 a question, and 0 or 1 an item.
    assert rates.seconds("train", 50) == pytest.approx(10 + 50 * 2)
    assert rates.seconds("eval/other", 50) == pytest.approx(10 + 50 * 0.5)
    # Nothing was measured of this: it is a guess.
    assert rates.seconds("answers", 100) > 10


def test_a_root_without_cells_has_nothing_measured(tmp_path):
    assert Rates.of_cells(tmp_path / "cells").count == 0
    assert read_times(tmp_path / "times.json") == {}


def test_how_much_there_is_to_do():
    assert visits({"max_steps": 10, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}) == 80
    assert visits({"max_steps": 10, "questions_per_update": 48, "per_device_train_batch_size": 12}) == 480
    assert answers({"train_questions": 960}) == 960
    assert answers({}) == 1
    assert items(Evaluation("static", {}, ("lab-chain-3", "aime24"))) == 530
    assert items(Evaluation("static", {}, ("lab-chain-3", "aime24"), 100)) == 130
