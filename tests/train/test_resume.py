"""What a run is, as a checkpoint keeps it, and what a differing one is told."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_runs import ROWS, make_trainer

from forkleft import manifests
from forkleft.digests import file_digest
from forkleft.errors import ForkLeftError
from forkleft.rollout import generate
from forkleft.train import checkpoints
from forkleft.train.checkpoints import MANIFEST
from forkleft.train.resume import check_resumable, divided_anew, find_checkpoint, step_of
from forkleft.train.run_files import RUN_FILE

PRINT_DECISIVE = """
import json, sys
from trainer_runs import make_trainer
print(json.dumps(make_trainer(sys.argv[1], lora=True)._decisive))
"""


# Each process notes which files of checkpoints it digests, and whether the later checkpoint is there once the first
# process has come to where it waits for all others.
RESUME_IN_BOTH = """
import json, os, sys, time
from pathlib import Path
from forkleft import manifests
from forkleft.train import checkpoints
from trainer_runs import make_trainer

output, settings, rank = Path(sys.argv[1]), json.loads(sys.argv[2]), os.environ["RANK"]
trainer = make_trainer(output, **settings)
digest, wait = manifests.file_digest, trainer.accelerator.wait_for_everyone
digested, seen, waiting = [], [], output.parent / "waiting"


def noted(path):
    if checkpoints.STAGING not in path.parts:
        digested.append(str(path.relative_to(output)))
    return digest(path)


def observed():
    if rank == "0":
        waiting.touch()
    while not waiting.exists():
        time.sleep(0.01)
    seen.append((output / "checkpoint-4").exists())
    wait()


manifests.file_digest, trainer.accelerator.wait_for_everyone = noted, observed
trainer.train(resume_from_checkpoint=True)
found = {"digested": digested, "seen": seen[0], "step": trainer.state.global_step}
(output.parent / f"found-{rank}.json").write_text(json.dumps(found))
"""


def checkpoint(folder, values):
    folder.mkdir()
    (folder / RUN_FILE).write_text(json.dumps(values))
    (folder / "optimizer.pt").touch()
    return folder


@pytest.mark.slow
def test_the_modules_of_an_adapter_are_the_same_in_every_process(tmp_path):
    def decisive(hash_seed):
        folders = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
        environment = os.environ | {"PYTHONPATH": folders, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", PRINT_DECISIVE, str(tmp_path / "run")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    # With these two seeds the two names stand in different orders in a set.
    first, second = decisive("0"), decisive("3")
    assert first["adapters"]["default"]["target_modules"] == ["q_proj", "v_proj"]
    assert first == second


def test_a_differing_entry_is_told_alone(tmp_path):
    ours = make_trainer(tmp_path / "run", lora=True)._decisive
    theirs = json.loads(json.dumps(ours))
    theirs["adapters"]["default"]["r"] = 64
    folder = checkpoint(tmp_path / "checkpoint-2", theirs)
    with pytest.raises(ForkLeftError, match=r"another configuration: adapters\.default\.r was 64, is 2; restore these"):
        check_resumable(folder, ours)
    theirs = {name: value for name, value in ours.items() if name != "rho"} | {"adapters": {}}
    folder = checkpoint(tmp_path / "checkpoint-4", theirs)
    with pytest.raises(ForkLeftError, match=r"adapters\.default was None, is \{.*; rho was None, is 0\.5;"):
        check_resumable(folder, ours)


def test_the_same_run_with_an_optimiser_state_may_go_on(tmp_path):
    ours = make_trainer(tmp_path / "run")._decisive
    folder = checkpoint(tmp_path / "checkpoint-2", ours)
    check_resumable(folder, ours)
    (folder / "optimizer.pt").unlink()
    with pytest.raises(ForkLeftError, match="holds no optimiser state"):
        check_resumable(folder, ours)


def test_a_run_of_before_goes_on_with_the_verifier_that_it_began_with(tmp_path):
    ours = make_trainer(tmp_path / "run")._decisive | {"verifier": "opdlm"}
    # Before there were two, math was the name of what is opdlm now.
    theirs = {name: value for name, value in ours.items() if name != "format"} | {"verifier": "math"}
    check_resumable(checkpoint(tmp_path / "checkpoint-2", theirs), ours)
    with pytest.raises(ForkLeftError, match="another configuration: verifier was 'opdlm', is 'math'; restore these"):
        check_resumable(tmp_path / "checkpoint-2", ours | {"verifier": "math"})
    # Letters are read by other rules now, so that there is nothing to go on with.
    folder = checkpoint(tmp_path / "checkpoint-4", theirs | {"verifier": "choice"})
    with pytest.raises(ForkLeftError, match=r"verifier was 'choice \(by other rules\)', is 'choice'"):
        check_resumable(folder, ours | {"verifier": "choice"})


def test_a_run_of_before_that_does_not_name_its_verifier_is_another_one(tmp_path):
    ours = make_trainer(tmp_path / "run")._decisive
    theirs = {name: value for name, value in ours.items() if name not in ("format", "verifier")}
    with pytest.raises(ForkLeftError, match="another configuration: verifier was None, is 'lab'"):
        check_resumable(checkpoint(tmp_path / "checkpoint-2", theirs), ours)


@pytest.mark.parametrize("state", ["{}", "[]", '{"global_step": "4"}', '{"global_step": -1}', "{", "[" * 100_000])
def test_a_state_that_does_not_say_its_update_is_told(tmp_path, state):
    (tmp_path / "trainer_state.json").write_text(state)
    with pytest.raises(ForkLeftError, match=r"trainer_state.json cannot be read \(.*; resume from another checkpoint"):
        step_of(tmp_path)


def test_a_run_does_not_go_on_with_another_chat_template(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    folder = checkpoint(tmp_path / "checkpoint-2", trainer._decisive)
    del trainer._decisive
    trainer.student.tokenizer.chat_template = "#{{ messages[0].content }}"
    with pytest.raises(ForkLeftError, match="another configuration: chat_template was '"):
        check_resumable(folder, trainer._decisive)


@pytest.mark.parametrize(("processes", "batch", "accumulated"), [(1, 4, 2), (1, 8, 1), (4, 1, 2), (8, 1, 1)])
def test_a_run_may_go_on_with_other_processes_if_its_updates_stay(tmp_path, processes, batch, accumulated):
    ours = make_trainer(tmp_path / "run")._decisive
    names = ("processes", "per_device_train_batch_size", "gradient_accumulation_steps")
    folder = checkpoint(tmp_path / "checkpoint-2", ours | dict(zip(names, (2, 2, 2), strict=True)))
    now = ours | dict(zip(names, (processes, batch, accumulated), strict=True))
    assert check_resumable(folder, now) is None
    assert divided_anew(json.loads((folder / RUN_FILE).read_text()), now)
    with pytest.raises(ForkLeftError, match="per_device_train_batch_size was 2, is 16"):
        check_resumable(folder, now | {"per_device_train_batch_size": 16})
    with pytest.raises(ForkLeftError, match=r"another configuration: seed was 42, is 7; restore these"):
        check_resumable(folder, now | {"seed": 7})


FILLED = {"tokens_per_batch": 64, "processes": 1, "per_device_train_batch_size": 32, "gradient_accumulation_steps": 2}


def test_filled_batches_are_divided_by_processes_and_accumulation_alone(tmp_path):
    ours = make_trainer(tmp_path / "run")._decisive | FILLED
    folder = checkpoint(tmp_path / "checkpoint-2", ours)
    # So many rows at a time, which filled batches do not have, are no part of the division.
    other = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4}
    with pytest.raises(ForkLeftError, match="gradient_accumulation_steps was 2, is 4"):
        check_resumable(folder, ours | other)
    assert not divided_anew(ours, ours | other)
    assert check_resumable(folder, ours | {"per_device_train_batch_size": 16}) is None
    now = ours | {"processes": 2, "gradient_accumulation_steps": 1}
    assert check_resumable(folder, now) is None and divided_anew(ours, now)


@pytest.mark.parametrize("name", ["long_rows", "bad_rows"])
def test_a_run_that_a_row_has_ended_may_go_on_without_it(tmp_path, name):
    """Up to that row nothing was left out, so that nothing is learned in another way."""
    ours = make_trainer(tmp_path / "run")._decisive | {name: "refuse"}
    folder = checkpoint(tmp_path / "checkpoint-2", ours)
    assert check_resumable(folder, ours | {name: "skip"}) is None
    folder = checkpoint(tmp_path / "checkpoint-4", ours | {name: "skip"})
    with pytest.raises(ForkLeftError, match=f"{name} was 'skip', is 'refuse'"):
        check_resumable(folder, ours)


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"max_steps": 4}, {"max_steps": 6}, None),
        ({"max_steps": -1, "num_train_epochs": 1.0}, {"max_steps": -1, "num_train_epochs": 2.0}, None),
        ({"max_steps": 4, "lr_scheduler_type": "cosine"}, {"max_steps": 6}, "max_steps was 4 before"),
        ({"max_steps": 4, "warmup_steps": 0.1}, {"max_steps": 6}, "max_steps was 4 before"),
        ({"max_steps": 4}, {"max_steps": 4}, None),
    ],
)
def test_a_run_may_grow(tmp_path, before, now, expected):
    ours = make_trainer(tmp_path / "run")._decisive | before
    assert check_resumable(checkpoint(tmp_path / "checkpoint-2", ours), ours | now) == expected


@pytest.mark.parametrize(
    ("before", "now"),
    [({"max_steps": 4}, {"max_steps": -1}), ({"max_steps": -1}, {"max_steps": 9}), ({}, {"num_train_epochs": 9.0})],
)
def test_what_is_no_growth_is_refused(tmp_path, before, now):
    ours = make_trainer(tmp_path / "run")._decisive | before
    with pytest.raises(ForkLeftError, match="belongs to another configuration"):
        check_resumable(checkpoint(tmp_path / "checkpoint-2", ours), ours | now)


def files_of(folder):
    names = [path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file()]
    return sorted(str(name) for name in names if name.name != MANIFEST)


@pytest.mark.slow
def test_the_first_process_decides_and_nothing_goes_that_another_may_read(tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 2}
    (tmp_path / "program.py").write_text(RESUME_IN_BOTH)
    folders = os.pathsep.join(map(str, Path(__file__).parents[1:3]))
    environment = os.environ | {"PYTHONPATH": folders, "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    first = [str(Path(__file__).parents[1] / "trainer_runs.py"), str(tmp_path / "run"), json.dumps(settings)]
    again = [str(tmp_path / "program.py"), str(tmp_path / "run"), json.dumps(settings)]
    for words in (first, again):
        # One that is not whole, and is removed.
        (tmp_path / "run" / "checkpoint-4" / MANIFEST).unlink(missing_ok=True)
        done = subprocess.run([*launch, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    main, other = (json.loads((tmp_path / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert main["step"] == other["step"] == 4
    assert main["seen"] and other["seen"]
    assert sorted(main["digested"]) == files_of(tmp_path / "run" / "checkpoint-2")
    assert other["digested"] == []


@pytest.mark.slow
def test_a_checkpoint_is_digested_once(tmp_path, monkeypatch):
    """Also where the best model is loaded in the end: what the run has written or read itself is known to be whole."""
    settings = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    settings |= {"load_best_model_at_end": True, "trainer": {"eval_dataset": ROWS[:2]}}
    digested = []

    def noted(path):
        digested.append(path)
        return file_digest(path)

    monkeypatch.setattr(manifests, "file_digest", noted)
    first = make_trainer(tmp_path, **settings)
    first.train()
    # Of equally good ones the first is the best.
    assert first.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    assert all(checkpoints.STAGING in path.parts for path in digested)
    assert len(digested) == len(set(digested))
    digested.clear()
    shutil.rmtree(tmp_path / "checkpoint-4")
    make_trainer(tmp_path, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    read = sorted(str(path.relative_to(tmp_path)) for path in digested if checkpoints.STAGING not in path.parts)
    assert read == files_of(tmp_path / "checkpoint-2")
    # The best is another than the one that is gone on from.
    digested.clear()
    make_trainer(tmp_path, **settings).train(resume_from_checkpoint=True)
    read = sorted(str(path.relative_to(tmp_path)) for path in digested if checkpoints.STAGING not in path.parts)
    assert read == sorted(files_of(tmp_path / "checkpoint-2") + files_of(tmp_path / "checkpoint-4"))


def test_later_checkpoints_are_not_removed_without_a_word(tmp_path):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}
    make_trainer(tmp_path, **settings).train()
    there = sorted(tmp_path.rglob("*"))
    expected = "holds checkpoint-4, checkpoint-6 behind checkpoint-2, which a run that goes on from there would remove"
    with pytest.raises(ForkLeftError, match=expected):
        make_trainer(tmp_path, **settings).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert sorted(tmp_path.rglob("*")) == there
    # What is not whole is no loss.
    for step in (4, 6):
        (tmp_path / f"checkpoint-{step}" / MANIFEST).unlink()
    assert find_checkpoint(tmp_path, str(tmp_path / "checkpoint-2")) == tmp_path / "checkpoint-2"


def test_a_run_does_not_resume_with_another_writer(tmp_path):
    def other(*given, **settings):
        return generate(*given, **settings)

    saving = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, **saving, trainer={"writer": other}).train()
    with pytest.raises(ForkLeftError, match=r"writer was '.*other', is None"):
        make_trainer(tmp_path, **saving | {"max_steps": 3}).train(resume_from_checkpoint=True)
    make_trainer(tmp_path, **saving | {"max_steps": 3}, trainer={"writer": other}).train(resume_from_checkpoint=True)
