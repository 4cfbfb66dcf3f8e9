import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from studies import study_file

from forkleft.errors import ForkLeftError
from forkleft.study.plan import commands_of, plan_study, print_plan


def test_a_plan_says_what_is_there_and_how_long_the_rest_takes(tmp_path):
    plan = plan_study(study_file(tmp_path), tmp_path / "root")
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_plan(plan, 2, console)
    text = out.getvalue()
    assert "small: 8 cells in" in text and "0 of them finished" in text
    assert "to do     L-high, seed 1: train, eval/limit-40" in text
    assert "with 2 at a time (a guess: nothing was measured here yet)" in text
    # Nothing is written.
    assert not (tmp_path / "root").exists()
    answers = next(folder for folder in plan.folders() if folder.cell.kind == "answers")
    answers.succeed(answers.tasks()[0], 30.0)
    print_plan(plan, 2, console)
    text = out.getvalue()
    assert "finished  answers of lab:teacher-strong, seed 1" in text and "(from 1 measured tasks)" in text


def test_a_study_s_folder_is_its_own(tmp_path):
    root = tmp_path / "root"
    plan_study(study_file(tmp_path), root).begin()
    # The same again, with more arms, seeds and benchmarks, other pairs, or in other words.
    arms = {"L-high": {"view": "prefix"}, "L-low": {"rollout_order": "low_entropy"}, "more": {"rho": 0.9}}
    wider = study_file(tmp_path, arms=arms, seeds=[1, 2, 3], benchmarks=["lab-chain-3"], compare=[["more", "L-low"]])
    assert len(plan_study(wider, root).grid.places) == 9
    for changes, message in (
        ({"set": {"max_steps": 11, "eval_strategy": "no"}}, "L-high, seed 1: max_steps was 10, is 11"),
        ({"arms": {"L-low": {"rollout_order": "random"}}, "compare": None}, "rollout_order was 'low_entropy', is 'ran"),
        ({"limit": 7}, "limit was 40, is 7"),
        ({"decoding": {"static": {"passes": 4}}}, "decoding static: passes was None, is 4"),
    ):
        with pytest.raises(
            ForkLeftError, match=rf"holds another study of this name: .*{message}.*; name another --out"
        ):
            plan_study(study_file(tmp_path, **changes), root)
    (root / "small" / "study.json").write_text("{")
    with pytest.raises(ForkLeftError, match=r"study.json is damaged"):
        plan_study(study_file(tmp_path), root)


def test_seeds_that_were_run_before_stay_in_the_tables(tmp_path):
    path, root = study_file(tmp_path, seeds=[1, 2, 3]), tmp_path / "root"
    first = plan_study(path, root, seeds=[3])
    assert {cell.options["seed"] for cell in first.cells.values() if cell.kind == "train"} == {3}
    first.begin()
    second = plan_study(path, root, seeds=[1])
    assert {cell.options["seed"] for cell in second.cells.values() if cell.kind == "train"} == {1}
    second.begin()
    noted = json.loads((root / "small" / "study.json").read_text())
    assert noted["seeds"] == [1, 3]


def test_the_commands_of_a_study_at_another_scale(tmp_path):
    plan = plan_study(
        study_file(tmp_path, seeds=[1], limit=None),
        tmp_path / "root",
        overrides=["student=nvidia/Efficient-DLM-4B", "teacher=Qwen/Qwen3-4B", "family=efficient-dlm"],
        benchmarks=["gsm8k", "mmlu"],
    )
    lines = list(commands_of(plan, "torchrun --nproc-per-node 4"))
    assert lines[0] == "# answers of Qwen/Qwen3-4B, seed 1"
    trains = [line for line in lines if " train " in line]
    assert len(trains) == 2 and all(
        line.startswith("torchrun --nproc-per-node 4 -m forkleft train ") for line in trains
    )
    recipe = trains[0].split("--config ")[1]
    assert "student: nvidia/Efficient-DLM-4B" in Path(recipe).read_text()
    base = next(line for line in lines if "eval --model nvidia/Efficient-DLM-4B" in line)
    assert "--benchmark gsm8k mmlu" in base and "--family efficient-dlm" in base
    assert any("eval --model Qwen/Qwen3-4B" in line and "--ar" in line for line in lines)


def test_an_arm_may_have_a_launcher_of_its_own(tmp_path):
    arms = {"small": {}, "large": {"launcher": "torchrun --nnodes 2", "rho": 0.1}}
    plan = plan_study(study_file(tmp_path, arms=arms, compare=None, seeds=[1]), tmp_path / "root")
    lines = [line for line in commands_of(plan) if " train " in line]
    assert [line.partition(" -m ")[0] for line in lines] == ["torchrun --nproc-per-node 8", "torchrun --nnodes 2"]
    assert all(line.startswith("mpirun -m ") for line in commands_of(plan, "mpirun") if " train " in line)


def test_a_teacher_with_a_device_map_answers_and_is_evaluated_in_one_process(tmp_path):
    overrides = ["teacher=Qwen/Qwen3-30B-A3B", "teacher_device_map=auto"]
    plan = plan_study(study_file(tmp_path, seeds=[1]), tmp_path / "root", overrides=overrides)
    lines = [line for line in commands_of(plan, "torchrun --nproc-per-node 4") if not line.startswith("#")]
    alone = [line for line in lines if not line.startswith("torchrun --nproc-per-node 4 -m forkleft ")]
    assert len(alone) == 2 and len(lines) > 4
    answer, evaluation = alone
    assert answer.startswith("forkleft answer --config ")
    assert "teacher_device_map: auto" in Path(answer.split("--config ")[1]).read_text()
    assert evaluation.startswith("forkleft eval --model Qwen/Qwen3-30B-A3B ") and "--device-map auto" in evaluation


def test_a_place_that_cannot_be_written_to_is_told_before_anything_is_there(tmp_path):
    (tmp_path / "file").write_text("")
    plan = plan_study(study_file(tmp_path), tmp_path / "file" / "root")
    with pytest.raises(ForkLeftError, match=r"cannot write to \S+/file/root: .*; name another \(--output\)$"):
        plan.begin()
