"""What is uploaded of a run, and when."""

import copy
import json
import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from checkpoints_on_disk import write_checkpoint
from huggingface_hub.utils import filter_repo_objects
from trainer_runs import SETTINGS, make_trainer
from transformers.trainer_utils import HubStrategy

from forkleft import load_student
from forkleft.teacher import Teacher
from forkleft.train import checkpoints
from forkleft.train.config import ForkLeftConfig
from forkleft.train.trainer import ForkLeftTrainer


@pytest.fixture
def hub(monkeypatch):
    """What would be uploaded: the folder, the place and message, and the files with the state they are in."""
    seen = []

    def upload_folder(*, folder_path, ignore_patterns, commit_message, path_in_repo="", **settings):
        names = [str(path.relative_to(folder_path)) for path in Path(folder_path).rglob("*") if path.is_file()]
        names = sorted(filter_repo_objects(names, ignore_patterns=ignore_patterns))
        seen.append((path_in_repo, commit_message, names))
        done = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr("forkleft.train.hub.upload_folder", upload_folder)
    return seen


@pytest.mark.parametrize("strategy", ["every_save", "checkpoint", "end"])
def test_uploads_are_of_the_model_and_not_of_the_data(tmp_path, hub, strategy):
    trainer = make_trainer(
        tmp_path, max_steps=2, save_strategy="steps", save_steps=1, save_total_limit=1, trace_steps=1
    )
    trainer.args.push_to_hub, trainer.args.hub_strategy = True, HubStrategy(strategy)
    # What another process is writing, or could not finish.
    (tmp_path / f".traces.jsonl.{os.getpid()}").write_text("a question")
    trainer.hub_model_id, trainer.push_in_progress = "someone/model", None
    trainer.train()
    *running, (place, message, names) = hub
    assert (place, message) == ("", "Model save")
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json", "metrics.jsonl"} <= set(names)
    assert not {"teacher_answers.jsonl", "traces.jsonl", "routes.jsonl"} & set(names)
    assert not any(name.startswith(".") for name in names)
    assert (tmp_path / "teacher_answers.jsonl").exists() and (tmp_path / "traces.jsonl").exists()
    models = [names for place, _, names in running if place == ""]
    assert len(models) == (0 if strategy == "end" else 2)
    for names in models:
        assert {"config.json", "model.safetensors", "forkleft_student.json"} <= set(names)
        assert not any(name.startswith(("optimizer", "rng_state", "trainer_state")) for name in names)
    states = [names for place, _, names in running if place == "last-checkpoint"]
    assert len(states) == (2 if strategy == "checkpoint" else 0)
    assert all({"optimizer.pt", checkpoints.MANIFEST} <= set(names) for names in states)


def test_an_upload_leaves_the_final_model_in_the_format_it_came_from(tmp_path, hub):
    write_checkpoint(tmp_path / "sdar", "sdar")
    student = load_student(tmp_path / "sdar")
    teacher = Teacher(copy.deepcopy(student.model), student.tokenizer, stop_ids=student.vocabulary.stop_ids)
    config = ForkLeftConfig(str(tmp_path / "run"), **SETTINGS | {"max_steps": 1, "max_new_tokens": 8})
    trainer = ForkLeftTrainer(student, teacher, config, [{"question": "1", "answer": "1"}])
    trainer.hub_model_id, trainer.push_in_progress = "someone/model", None
    trainer.train()
    before = (tmp_path / "run" / "config.json").read_bytes()
    assert json.loads(before)["model_type"] == "sdar"
    trainer.push_to_hub(license="apache-2.0")
    assert (tmp_path / "run" / "config.json").read_bytes() == before
    assert "license: apache-2.0" in (tmp_path / "run" / "README.md").read_text()
    assert hub[0][1] == "End of training"
