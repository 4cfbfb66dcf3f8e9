import json
from collections import Counter

import pytest
from documents import ROOT
from scipy.stats import binomtest

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import load_benchmark
from forkleft.lab.benchmarks import LAB_BENCHMARKS, lab_items, lab_set
from forkleft.lab.questions import HELD_OUT_SETS, held_out

LAB = str(ROOT / "recipes" / "lab.yaml")


def test_every_held_out_set_is_a_benchmark():
    assert list(LAB_BENCHMARKS) == [f"lab-{name}" for name in HELD_OUT_SETS]
    loaded = lab_items(LAB_BENCHMARKS["lab-choice-2"])
    assert loaded.complete
    question = held_out("choice-2")[0]
    assert (loaded.items[0].id, loaded.items[0].answer) == (question.id, question.answer)
    assert loaded.benchmark.messages(loaded.items[0])[0]["content"] == question.prompt


def test_items_that_are_made_cannot_be_read():
    made = load_benchmark(LAB_BENCHMARKS["lab-chain-4"])
    assert made == lab_items(LAB_BENCHMARKS["lab-chain-4"])
    assert made.source == "lab:chain-4"
    with pytest.raises(ForkLeftError, match=r"^lab-chain-4: its items are made, not read; leave out chains.jsonl$"):
        load_benchmark(LAB_BENCHMARKS["lab-chain-4"], "chains.jsonl")


def test_a_set_by_its_name_in_the_lab_is_its_benchmark():
    for name in HELD_OUT_SETS:
        assert lab_set(name, 2) == lab_items(LAB_BENCHMARKS[f"lab-{name}"], 2)
    with pytest.raises(ForkLeftError, match=r"no held-out set 'chain-9'; there are chain-2"):
        lab_set("chain-9")


@pytest.mark.slow
def test_base_and_distilled_student_are_compared_under_both_protocols(tmp_path, capsys):
    """A short distillation; what is compared is recomputed from the raw records."""
    short = ["--max_steps", "3", "--questions_per_update", "16", "--train_questions", "48", "--eval_strategy", "no"]
    short += ["--use_cpu", "--save_strategy", "no"]
    assert main(["train", "--config", LAB, *short, "--output_dir", str(tmp_path / "distilled")]) == 0
    sets = {"base": "lab:student-block", "distilled": str(tmp_path / "distilled")}
    for name, model in sets.items():
        words = ["eval", "--model", model, "--benchmark", "lab-chain-4", "lab-choice-2", "--limit", "60"]
        assert main([*words, "--device", "cpu", "--output", str(tmp_path / "results" / name)]) == 0
    capsys.readouterr()
    folders = [tmp_path / "results" / name for name in sets]
    assert main(["compare", *map(str, folders), "--json"]) == 0
    rows = {row["benchmark"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    for benchmark in ("lab-chain-4", "lab-choice-2"):
        right = []
        for folder in folders:
            lines = (folder / benchmark / "records.jsonl").read_text().splitlines()
            right.append({line["id"]: line["correct"] for line in map(json.loads, lines)})
        a, b = right
        row = rows[benchmark]
        assert row["items"] == len(a) == len(b) == 60
        for told, verdicts in ((row["a"], a), (row["b"], b)):
            wilson = binomtest(sum(verdicts.values()), 60).proportion_ci(method="wilson")
            assert told["value"] == pytest.approx(sum(verdicts.values()) / 60)
            assert (told["low"], told["high"]) == pytest.approx((wilson.low, wilson.high))
        pairs = Counter((a[name], b[name]) for name in a)
        only_a, only_b = pairs[True, False], pairs[False, True]
        assert (row["only_a"], row["only_b"]) == (only_a, only_b)
        assert row["gain"]["value"] == pytest.approx((only_b - only_a) / 60)
        expected = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
        assert row["p"] == pytest.approx(expected)
