"""Where a run's files go: checkpoints, the final model, uploads."""

import copy
import json
import logging
import os
import shutil

import pytest
import torch
from checkpoints_on_disk import write_checkpoint
from trainer_runs import ROWS, SETTINGS, make_trainer
from transformers import TrainerCallback

from forkleft import load_student
from forkleft.errors import ForkLeftError
from forkleft.teacher import Teacher
from forkleft.train import checkpoints
from forkleft.train.config import ForkLeftConfig
from forkleft.train.trainer import ForkLeftTrainer

CHECKPOINTED = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}


def logged_steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_goes_on_in_its_own_folder(tmp_path):
    """Elsewhere its rows would be missing, and what another run left there be removed."""
    for name in ("one", "two"):
        make_trainer(tmp_path / name, **CHECKPOINTED | {"max_steps": 4}).train()
    before = sorted((tmp_path / "two").rglob("*"))
    again = make_trainer(tmp_path / "two", **CHECKPOINTED | {"max_steps": 4})
    with pytest.raises(ForkLeftError, match=r"one/checkpoint-2 is not of the run in .*two: .* set output_dir to that"):
        again.train(resume_from_checkpoint=str(tmp_path / "one" / "checkpoint-2"))
    assert sorted((tmp_path / "two").rglob("*")) == before


@pytest.mark.slow
def test_intervals_may_change_when_a_run_is_resumed_and_then_hold(tmp_path, monkeypatch):
    """Transformers would warn of them, and go on with the old ones."""
    messages = []
    log = logging.getLogger("transformers.trainer_utils")
    monkeypatch.setattr(log, "callHandlers", messages.append)
    make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    make_trainer(tmp_path, **CHECKPOINTED | {"save_steps": 1, "max_steps": 4}).train(resume_from_checkpoint=True)
    assert list(checkpoints.steps(tmp_path)) == [2, 3, 4]
    assert [record.getMessage() for record in messages] == []


@pytest.mark.slow
@pytest.mark.parametrize("length", [{"max_steps": 2}, {"max_steps": -1, "num_train_epochs": 1}])
def test_a_run_that_had_ended_says_so_when_it_is_resumed(tmp_path, caplog, length):
    settings = CHECKPOINTED | length
    first = make_trainer(tmp_path, **settings)
    first.train()
    assert "had ended" not in caplog.text
    make_trainer(tmp_path, **settings).train(resume_from_checkpoint=True)
    name = "max_steps" if "num_train_epochs" not in length else "num_train_epochs"
    assert f"the run had ended at update {first.state.global_step}; a larger {name} makes it longer" in caplog.text


def test_a_finished_run_is_not_overwritten(tmp_path):
    """Evaluating before training is no other run."""
    first = make_trainer(tmp_path, max_steps=1, trace_steps=1, trainer={"eval_dataset": ROWS[:2]})
    first.evaluate()
    first.train()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for again in (first, make_trainer(tmp_path, max_steps=1), make_trainer(tmp_path, max_steps=2, rho=0.25)):
        with pytest.raises(ForkLeftError, match=r"files of an earlier run \(README.md, config.json, .*output_dir"):
            again.train()
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("updates", [3, 4], ids=["at the end of an epoch", "within an epoch"])
def test_a_finished_run_that_is_resumed_makes_no_further_update(tmp_path, updates):
    settings = {"max_steps": updates, "save_strategy": "steps", "save_steps": 1}
    make_trainer(tmp_path, **settings).train()
    before = (tmp_path / "model.safetensors").read_bytes()
    again = make_trainer(tmp_path, **settings)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == updates
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert logged_steps(tmp_path) == [*range(1, updates + 1)]
    assert max(checkpoints.steps(tmp_path)) == updates


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **others):
        raise KeyboardInterrupt


def test_a_run_that_was_broken_off_at_once_is_not_overwritten_by_another(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        make_trainer(tmp_path, trainer={"callbacks": [Stop()]}).train()
    with pytest.raises(ForkLeftError, match=r"files of an earlier run \(forkleft.json, metrics.jsonl, routes.jsonl\)"):
        make_trainer(tmp_path, rho=0.25).train()
    make_trainer(tmp_path).train()
    assert logged_steps(tmp_path) == [1, 2, 3, 4]


@pytest.mark.slow
def test_checkpoints_and_evaluations_at_listed_updates(tmp_path):
    """Three updates are an epoch, at whose end nothing is done twice."""
    settings = {"max_steps": 6, "save_at": [1, 3, 4], "eval_at": [3, 5], "save_strategy": "no"}
    make_trainer(tmp_path / "alone", **settings, trainer={"eval_dataset": ROWS[:2]}).train()
    assert sorted(checkpoints.steps(tmp_path / "alone")) == [1, 3, 4]
    rows = [json.loads(line) for line in (tmp_path / "alone" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_count" in row] == [3, 5]
    settings |= {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "eval_at": None}
    make_trainer(tmp_path / "beside", **settings).train()
    assert sorted(checkpoints.steps(tmp_path / "beside")) == [1, 3, 4, 6]


def test_lists_of_updates_that_cannot_be(tmp_path):
    with pytest.raises(ForkLeftError, match="eval_at names updates to evaluate after, and there is no data"):
        make_trainer(tmp_path, eval_at=[1])
    trainer = make_trainer(tmp_path, save_at=[2, 4], max_steps=-1, num_train_epochs=1)
    with pytest.raises(ForkLeftError, match="save_at must hold updates from 1 to 3, the last, found 4"):
        trainer.train()


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, **CHECKPOINTED)
    save = torch.save

    def full(value, path, *arguments, **options):
        if "checkpoint-4" in str(path):
            raise OSError(28, "No space left on device")
        save(value, path, *arguments, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ForkLeftError, match=r"could not save .*No space left.*checkpoint-2 is there"):
        trainer.train()
    assert not (tmp_path / "checkpoint-4").exists()
    assert not (tmp_path / checkpoints.STAGING).exists()
    monkeypatch.setattr(torch, "save", save)
    again = make_trainer(tmp_path, **CHECKPOINTED)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6


def test_another_error_while_saving_is_no_full_disk(tmp_path, monkeypatch):
    def lost(*arguments, **settings):
        raise RuntimeError("[gloo] Connection closed by peer")

    monkeypatch.setattr(torch, "save", lost)
    with pytest.raises(ForkLeftError, match="another process of this run has ended"):
        make_trainer(tmp_path, **CHECKPOINTED).train()


def test_the_final_model_and_its_checkpoints_are_known_to_be_whole(tmp_path):
    make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    for folder in (tmp_path, tmp_path / "checkpoint-2"):
        load_student(folder)
        weights = folder / "model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ForkLeftError, match=r"is not as it was saved: model.safetensors is damaged"):
            load_student(folder)


def test_a_folder_of_the_user_stays(tmp_path):
    (tmp_path / "_staging").mkdir()
    (tmp_path / "_staging" / "notes").touch()
    make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    assert (tmp_path / "_staging" / "notes").exists()


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_evaluated_as_at_its_start(tmp_path):
    settings = CHECKPOINTED | {"max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    make_trainer(tmp_path, **settings, trainer={"eval_dataset": ROWS[:2]}).train()
    whole = logged_steps(tmp_path)
    shutil.rmtree(tmp_path / "checkpoint-4")
    again = make_trainer(tmp_path, **settings, trainer={"eval_dataset": ROWS[:2]})
    again.train(resume_from_checkpoint=True)
    assert logged_steps(tmp_path) == whole
    assert again.args.eval_on_start


@pytest.mark.slow
def test_a_tied_head_is_not_missed_in_a_checkpoint(tmp_path, monkeypatch):
    """It is stored as the embedding. What is missed is still told."""
    from transformers import trainer as transformers_trainer

    write_checkpoint(tmp_path / "sdar", "sdar", tied=True)
    changes = {"max_steps": 2, "max_new_tokens": 8, "save_strategy": "steps", "save_steps": 1}

    def made():
        student = load_student(tmp_path / "sdar")
        teacher = Teacher(copy.deepcopy(student.model), student.tokenizer, stop_ids=student.vocabulary.stop_ids)
        config = ForkLeftConfig(str(tmp_path / "run"), **SETTINGS | changes)
        return ForkLeftTrainer(student, teacher, config, [{"question": "1", "answer": "1"}])

    made().train()
    shutil.rmtree(tmp_path / "run" / "checkpoint-2")
    messages = []
    monkeypatch.setattr(transformers_trainer.logger, "warning", messages.append)
    again = made()
    again.train(resume_from_checkpoint=True)
    assert [message for message in messages if "keys" in message] == []
    student = again.student.model
    assert student.lm_head.weight is student.model.embed_tokens.weight
    found = torch.nn.modules.module._IncompatibleKeys(["lm_head.weight", "model.norm.weight"], ["more"])
    again._issue_warnings_after_load(found)
    assert messages[-2:] == [
        "There were missing keys in the checkpoint model loaded: ['model.norm.weight'].",
        "There were unexpected keys in the checkpoint model loaded: ['more'].",
    ]


@pytest.mark.parametrize("lora", [False, True], ids=["weights", "adapters"])
def test_weights_can_be_read_as_other_files_can(tmp_path, lora):
    before = os.umask(0o027)
    try:
        make_trainer(tmp_path, max_steps=1, save_strategy="steps", save_steps=1, lora=lora).train()
    finally:
        os.umask(before)
    weights = list(tmp_path.rglob("*.safetensors"))
    assert len(weights) == 2
    assert {oct(path.stat().st_mode & 0o777) for path in weights} == {"0o640"}
    assert not list(tmp_path.rglob("*.new"))
