"""What a run is, as a checkpoint keeps it, and what a differing one is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_runs import make_trainer

from forkleft.errors import ForkLeftError
from forkleft.train.folders import RUN_FILE
from forkleft.train.resume import check_resumable

PRINT_DECISIVE = """
import json, sys
from trainer_runs import make_trainer
print(json.dumps(make_trainer(sys.argv[1], lora=True)._decisive))
"""


def checkpoint(folder, values):
    folder.mkdir()
    (folder / RUN_FILE).write_text(json.dumps(values))
    (folder / "optimizer.pt").touch()
    return folder


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
    with pytest.raises(ForkLeftError, match=r"rho was None, is 0\.5; adapters\.default was None, is \{"):
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


def test_a_run_does_not_go_on_with_another_chat_template(tmp_path):
    trainer = make_trainer(tmp_path / "run")
    folder = checkpoint(tmp_path / "checkpoint-2", trainer._decisive)
    del trainer._decisive
    trainer.student.tokenizer.chat_template = "#{{ messages[0].content }}"
    with pytest.raises(ForkLeftError, match="another configuration: chat_template was '"):
        check_resumable(folder, trainer._decisive)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"max_steps": 4}, {"max_steps": 6}, None),
        ({"max_steps": -1, "num_train_epochs": 1.0}, {"max_steps": -1, "num_train_epochs": 2.0}, None),
        ({"max_steps": 4, "lr_scheduler_type": "cosine"}, {"max_steps": 6}, "max_steps was 4 before"),
        ({"max_steps": 4, "warmup_steps": 0.1}, {"max_steps": 6}, "max_steps was 4 before"),
        ({"max_steps": 4}, {"max_steps": 4}, None),
    ],
)
def test_a_run_may_grow(tmp_path, before, now, told):
    ours = make_trainer(tmp_path / "run")._decisive | before
    assert check_resumable(checkpoint(tmp_path / "checkpoint-2", ours), ours | now) == told


@pytest.mark.parametrize(
    ("before", "now"),
    [({"max_steps": 4}, {"max_steps": -1}), ({"max_steps": -1}, {"max_steps": 9}), ({}, {"num_train_epochs": 9.0})],
)
def test_what_is_no_growth_is_refused(tmp_path, before, now):
    ours = make_trainer(tmp_path / "run")._decisive | before
    with pytest.raises(ForkLeftError, match="belongs to another configuration"):
        check_resumable(checkpoint(tmp_path / "checkpoint-2", ours), ours | now)
