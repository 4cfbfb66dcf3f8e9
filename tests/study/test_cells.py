import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from studies import study_file

from forkleft.errors import ForkLeftError
from forkleft.study.cells import CellFolder, Failure, Task
from forkleft.study.grid import make_grid
from forkleft.study.spec import read_study
from forkleft.train import checkpoints


def folders(root, tmp_path, **changes):
    grid = make_grid(read_study(study_file(tmp_path, seeds=[1], **changes)))
    return {cell.label: CellFolder(root, cell) for cell in grid.cells.values()}


def finish(folder, evaluation, benchmark):
    path = folder.evaluation(evaluation) / benchmark
    path.mkdir(parents=True)
    (path / "summary.json").write_text("{}")


def test_a_cell_says_what_is_left_to_do(tmp_path):
    folder = folders(tmp_path / "root", tmp_path, decoding={"static": {}, "fast": {"passes": 4}})["L-low, seed 1"]
    folder.prepare()
    recipe = yaml.safe_load((folder.path / "recipe.yaml").read_text())
    assert recipe["output_dir"] == str(folder.train) and recipe["rollout_order"] == "low_entropy"
    assert recipe["answer_cache"] == str(tmp_path / "root" / "teacher_answers.jsonl")
    assert json.loads((folder.path / "cell.json").read_text())["label"] == "L-low, seed 1"
    train, static, fast = folder.tasks()
    assert train.words == ("train", "--config", str(folder.path / "recipe.yaml"))
    # 10 updates of 48 questions, 2 benchmarks of 40 items.
    assert (train.units, static.units) == (480, 80)
    assert static.words[:3] == ("eval", "--model", str(folder.train))
    assert fast.words[-4:] == ("--passes", "4", "--limit", "40")
    folder.train.mkdir()
    (folder.train / "README.md").touch()
    assert [task.name for task in folder.tasks()] == ["eval/limit-40", "eval/limit-40_passes-4"]
    finish(folder, folder.cell.evaluations[0], "lab-chain-3")
    # What is measured is not asked for again, even if the program has changed since.
    assert folder.tasks()[0].words[3:5] == ("--benchmark", "lab-chain-4") and folder.tasks()[0].units == 40
    for evaluation, names in zip(
        folder.cell.evaluations, (["lab-chain-4"], ["lab-chain-3", "lab-chain-4"]), strict=True
    ):
        for name in names:
            finish(folder, evaluation, name)
    assert folder.is_finished() and folder.tasks() == []


def test_a_training_resumes_from_a_whole_checkpoint_or_begins_anew(tmp_path):
    folder = folders(tmp_path, tmp_path)["L-high, seed 1"]
    half = folder.train / "checkpoint-5"
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"half")
    task = folder.tasks()[0]
    assert not task.resumed
    folder.begin(task)
    assert not folder.train.exists()
    staged = folder.path / "staged"
    staged.mkdir()
    (staged / "model.safetensors").write_bytes(b"whole")
    folder.train.mkdir()
    checkpoints.publish(staged, folder.train / "checkpoint-5")
    task = folder.tasks()[0]
    assert task.resumed and task.words[-2:] == ("--resume_from_checkpoint", "true")
    folder.begin(task)
    assert (folder.train / "checkpoint-5").exists()


def test_models_that_are_measured_only(tmp_path):
    said = {"student": "owner/s", "family": "sdar", "mask_token": 5, "chat_template": "{{ x }}", "max_steps": 3}
    made = folders(tmp_path, tmp_path, set=said)
    base, teacher = made["base owner/s"], made["teacher lab:teacher-strong"]
    (task,) = base.tasks()
    assert task.words[2] == "owner/s" and " ".join(task.words).count("--family sdar --mask-token 5") == 1
    base.prepare()
    template = Path(task.words[task.words.index("--chat-template") + 1])
    assert template.read_text() == "{{ x }}"
    (task,) = teacher.tasks()
    assert task.words[2] == "lab:teacher-strong" and "--ar" in task.words and "--passes" not in task.words
    assert "--device-map" not in task.words
    spread = folders(tmp_path, tmp_path, set=said | {"teacher_device_map": "auto"})["teacher lab:teacher-strong"]
    assert "--ar --device-map auto" in spread.tasks()[0].command and spread.path == teacher.path
    assert task.command.startswith("forkleft eval --model lab:teacher-strong --benchmark lab-chain-3 lab-chain-4")


def test_a_benchmark_of_the_user_is_named_by_its_file(tmp_path):
    mine = tmp_path / "mine.yaml"
    page = "name: {}\nitems: {}\nprotocol: generated\ntemplate: plain\n"
    mine.write_text(f"{page.format('mine', 7)}---\n{page.format('second', 9)}")
    folder = folders(tmp_path, tmp_path, benchmarks=["lab-chain-3", "mine.yaml"], limit=None)["base lab:student-block"]
    (task,) = folder.tasks()
    assert f"--benchmark lab-chain-3 {mine} --output" in task.command
    assert task.units == 500 + 7 + 9
    # Named or not, a benchmark is no part of what the cell is.
    assert folder.path == folders(tmp_path, tmp_path)["base lab:student-block"].path


def test_the_permission_to_run_code_is_passed_on(tmp_path, monkeypatch):
    (tmp_path / "judges_of_cells.py").write_text("def mine(responses, answers): return [True] * len(answers)\n")
    monkeypatch.syspath_prepend(tmp_path)
    page = "name: mine\nitems: 7\nprotocol: generated\ntemplate: plain\nverifier: judges_of_cells:mine\n"
    (tmp_path / "mine.yaml").write_text(page)

    def flags(**changes):
        """Of the commands of the cells, in order."""
        made = folders(tmp_path / "root", tmp_path, arms={"a": {}}, compare=None, **changes)
        tasks = {label: folder.tasks() for label, folder in made.items()}
        named = {"--trust-verifier": "V", "--trust-remote-code": "R"}
        return {
            f"{label}: {task.words[0]}": "".join(named[word] for word in task.words if word in named)
            for label, left in tasks.items()
            for task in left
        }

    steps = ["answers of lab:teacher-strong, seed 1: answer", "base lab:student-block: eval"]
    steps += ["teacher lab:teacher-strong: eval", "a, seed 1: train", "a, seed 1: eval"]
    assert flags() == dict.fromkeys(steps, "")
    # Who trains needs the recipe's verifier, who evaluates the benchmark's.
    assert list(flags(set={"verifier": "judges_of_cells:mine"}).values()) == ["V", "", "", "V", ""]
    assert list(flags(benchmarks=["lab-chain-3", "mine.yaml"]).values()) == ["", "V", "V", "", "V"]
    assert list(flags(set={"trust_remote_code": True}).values()) == ["R"] * 5
    folder = folders(tmp_path / "root", tmp_path, set={"verifier": "judges_of_cells:mine"})["L-high, seed 1"]
    assert folder.tasks()[0].command == f"forkleft train --config {folder.path}/recipe.yaml --trust-verifier"


def test_checkpoints_of_a_curve_are_measured(tmp_path):
    folder = folders(tmp_path, tmp_path, curve=["20%"])["L-high, seed 1"]
    _, _, at_step = folder.tasks()
    assert at_step.words[2] == str(folder.train / "checkpoint-2")


def test_the_questions_of_a_subset_come_from_the_routes_of_another_run(tmp_path):
    arms = {"main": {}, "opd": {"questions_from": {"arm": "main", "route": "LEFTOPD"}}}
    made = folders(tmp_path, tmp_path, arms=arms, compare=None)
    recipe = made["opd, seed 1"].recipe()
    assert recipe["train_ids"] == str(made["main, seed 1"].train / "routes.jsonl")
    assert recipe["train_route"] == "LEFTOPD"


def test_answers_are_asked_with_the_recipe_of_the_questions(tmp_path):
    folder = folders(tmp_path, tmp_path)["answers of lab:teacher-strong, seed 1"]
    folder.prepare()
    recipe = yaml.safe_load((folder.path / "recipe.yaml").read_text())
    assert recipe["seed"] == 1 and "rollout_order" not in recipe
    (task,) = folder.tasks()
    assert (task.words[0], task.units) == ("answer", 960)
    folder.succeed(task, 12.0)
    assert folder.is_finished()


def test_how_it_went_is_kept(tmp_path):
    folder = folders(tmp_path, tmp_path)["L-high, seed 1"]
    assert folder.failure() is None
    folder.fail(Failure("too bad", "forkleft train"))
    assert folder.failure() == Failure("too bad", "forkleft train")
    folder.succeed(Task("train", (), 480), 31.04)
    # What was only resumed says nothing of how long it takes.
    folder.succeed(Task("eval/static", (), 80, resumed=True), 2.0)
    assert json.loads((folder.path / "times.json").read_text()) == {"train": [31.0, 480]}
    assert folder.failure() is None


def test_a_cell_is_worked_on_by_one_and_a_dead_process_leaves_no_lock(tmp_path):
    folder = folders(tmp_path, tmp_path)["L-high, seed 1"]
    assert not folder.is_running() and not folder.path.exists()
    held = folder.lock()
    assert folder.lock() is None and folder.is_running()
    # A command that was started holds the cell on if the runner dies.
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(held.fileno(),)) as child:
        held.close()
        assert folder.lock() is None and folder.is_running()
        child.kill()
    assert not folder.is_running()
    again = folder.lock()
    assert again is not None
    fcntl.flock(again, fcntl.LOCK_UN)
    again.close()


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch):
    folder = folders(tmp_path, tmp_path / "root")["L-high, seed 1"]
    folder.fail(Failure("old", "forkleft train"))

    def full(*arguments, **settings):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(ForkLeftError, match=r"cannot write to .*: No space left on device; make room .* what is fin"):
        folder.fail(Failure("new", "forkleft train"))
    assert folder.failure() == Failure("old", "forkleft train")
    assert [one.name for one in folder.path.iterdir()] == ["failed.json"]
