"""A run that a signal ends: after its update, with a checkpoint, in all its processes."""

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from nodes import ENVIRONMENT, SECONDS
from peft import LoraConfig
from skips import slow
from trainer_runs import ROWS, make_trainer, state_digest, without_times
from transformers import TrainerCallback

from forkleft.errors import ForkLeftError, StoppedError
from forkleft.teacher.connection import Connection
from forkleft.train import checkpoints

# In two processes, of which one alone gets the signal, within its second update.
ONE_OF_TWO = """
import json, os, signal, sys
from transformers import TrainerCallback
from forkleft.errors import ForkLeftError, StoppedError
from trainer_runs import ROWS, make_trainer, state_digest
from pathlib import Path


class Signalled(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **others):
        if sys.argv[3] == os.environ["RANK"] and state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


settings = json.loads(sys.argv[2])
more = {"callbacks": [Signalled()], "stop_on_signals": True, "eval_dataset": ROWS[:2]}
trainer = make_trainer(Path(sys.argv[1]), trainer=more, **settings)
if sys.argv[3] == "nan":
    clip = trainer._clip_grad_norm
    trainer._clip_grad_norm = lambda model: float("nan") if trainer.state.global_step == 2 else clip(model)
try:
    trainer.train(resume_from_checkpoint=sys.argv[4] == "resume")
    ended = {"digest": state_digest(trainer)}
except StoppedError as error:
    ended = {"step": error.step, "number": error.number}
except ForkLeftError as error:
    ended = {"error": str(error)}
(Path(sys.argv[1]).parent / f"ended-{os.environ['RANK']}.json").write_text(json.dumps(ended))
"""


class SignalAt(TrainerCallback):
    """Sends this process a signal at an event of an update."""

    def __init__(self, event, step, number=signal.SIGTERM):
        self.at, self.number = step, number
        setattr(self, event, self._send)

    def _send(self, args, state, control, **others):
        if state.global_step == self.at:
            os.kill(os.getpid(), self.number)


def stopping(folder, *callbacks, **changes):
    return make_trainer(folder, trainer={"callbacks": list(callbacks), "stop_on_signals": True}, **changes)


@pytest.mark.parametrize(
    ("event", "at", "changes"),
    [
        slow("on_step_begin", 1, {}),
        ("on_step_end", 2, {}),
        slow("on_step_end", 2, {"save_strategy": "steps", "save_steps": 2}),
        slow("on_step_end", 2, {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}),
        # Three updates make an epoch.
        slow("on_epoch_end", 3, {"num_train_epochs": 2, "max_steps": -1}),
        ("on_step_end", 3, {"num_train_epochs": 2, "max_steps": -1, "save_strategy": "epoch"}),
    ],
)
def test_a_run_that_was_stopped_and_resumed_is_the_same_run(tmp_path, event, at, changes):
    whole = stopping(tmp_path / "whole", **changes)
    whole.train()
    step = at + (event == "on_step_begin")
    with pytest.raises(StoppedError, match=f"stopped by SIGTERM after update {step}, which checkpoint-{step} holds"):
        stopping(tmp_path / "run", SignalAt(event, at), **changes).train()
    assert checkpoints.newest_whole(tmp_path / "run").name == f"checkpoint-{step}"
    again = stopping(tmp_path / "run", **changes)
    again.train(resume_from_checkpoint=True)
    assert state_digest(again) == state_digest(whole)
    for name in ("metrics.jsonl", "routes.jsonl"):
        assert without_times(tmp_path / "run" / name) == without_times(tmp_path / "whole" / name)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_a_run_does_not_wait_for_an_evaluation_and_makes_it_when_it_goes_on(tmp_path, monkeypatch, moment):
    settings = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 5}

    def made(folder, *callbacks):
        trainer = {"eval_dataset": ROWS[:2], "callbacks": list(callbacks), "stop_on_signals": True}
        return make_trainer(tmp_path / folder, **settings, trainer=trainer)

    def evaluated(folder):
        rows = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        return [row["step"] for row in rows if "eval_accuracy" in row]

    callbacks = {"before": [SignalAt("on_step_end", 2)], "within": [], "after": [SignalAt("on_evaluate", 2)]}[moment]
    stopped = made("run", *callbacks)
    if moment == "within":
        monkeypatch.setattr(stopped, "_measured", lambda rows, prefix: os.kill(os.getpid(), signal.SIGTERM) or {})
    with pytest.raises(StoppedError) as raised:
        stopped.train()
    assert (raised.value.step, raised.value.number) == (2, signal.SIGTERM)
    assert evaluated("run") == ([2] if moment == "after" else [])
    again, whole = made("run"), made("whole")
    again.train(resume_from_checkpoint=True)
    whole.train()
    assert evaluated("run") == evaluated("whole") == [2, 4, 5]
    assert again.state.log_history[2]["step"] == 2 and "eval_accuracy" in again.state.log_history[2]
    assert (tmp_path / "run" / "metrics.jsonl").read_text().count("\n") == 8
    assert state_digest(again) == state_digest(whole)


@pytest.mark.slow
def test_an_evaluation_that_is_made_late_may_be_the_best(tmp_path):
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    settings |= {"load_best_model_at_end": True}
    trainer = {"eval_dataset": ROWS[:2], "callbacks": [SignalAt("on_step_end", 2)], "stop_on_signals": True}
    with pytest.raises(StoppedError):
        make_trainer(tmp_path / "run", **settings, trainer=trainer).train()
    again = make_trainer(tmp_path / "run", **settings, trainer={"eval_dataset": ROWS[:2], "stop_on_signals": True})
    again.train(resume_from_checkpoint=True)
    # Of equally good ones the first.
    assert again.state.best_model_checkpoint == str(tmp_path / "run" / "checkpoint-2")


@pytest.mark.slow
def test_an_evaluation_that_is_made_late_may_end_the_run(tmp_path):
    class Enough(TrainerCallback):
        def on_evaluate(self, args, state, control, **others):
            control.should_training_stop = True

    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = {"eval_dataset": ROWS[:2], "stop_on_signals": True}
    stopped = make_trainer(tmp_path / "run", **settings, trainer=trainer | {"callbacks": [SignalAt("on_step_end", 2)]})
    with pytest.raises(StoppedError):
        stopped.train()
    again = make_trainer(tmp_path / "run", **settings, trainer=trainer | {"callbacks": [Enough()]})
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 2


@pytest.mark.slow
def test_a_checkpoint_of_before_the_evaluation_says_afterwards_that_there_was_none(tmp_path):
    """Three updates are an epoch: one saves, the other evaluates."""
    settings = {"eval_strategy": "epoch", "save_strategy": "steps", "save_steps": 3, "max_steps": 5}
    trainer = {"eval_dataset": ROWS[:2], "callbacks": [SignalAt("on_epoch_end", 3)], "stop_on_signals": True}
    with pytest.raises(StoppedError, match="checkpoint-3 holds"):
        make_trainer(tmp_path, **settings, trainer=trainer).train()
    assert checkpoints.newest_whole(tmp_path).name == "checkpoint-3"
    make_trainer(tmp_path, **settings, trainer=trainer | {"callbacks": []}).train(resume_from_checkpoint=True)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [3, 5]
    assert not list(tmp_path.rglob("*.older"))


# An update in two parts, of which the first adds to what is logged, and dropout, which draws as it goes.
DIVIDED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "logging_steps": 4}


def with_dropout(folder, *callbacks, **changes):
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5)
    settings = {"callbacks": list(callbacks), "stop_on_signals": True, "peft_config": config}
    return make_trainer(folder, trainer=settings, **DIVIDED | changes)


def failing(trainer, update, error):
    """Let the second part of an update fail."""
    compute, parts = trainer.compute_loss, []

    def failing(*arguments, **settings):
        parts.append(trainer.state.global_step)
        if parts.count(update) == 2:
            error()
        return compute(*arguments, **settings)

    trainer.compute_loss = failing


def server_gone():
    raise ForkLeftError("no hidden states from http://localhost:1")


@pytest.mark.slow
@pytest.mark.parametrize("error", ["server", "gradient"])
def test_an_error_within_an_update_costs_that_update_alone(tmp_path, error):
    whole = with_dropout(tmp_path / "whole")
    whole.train()
    # A run that is asked to end after the second update is what a run must be whose third one fails.
    with pytest.raises(StoppedError):
        with_dropout(tmp_path / "stopped", SignalAt("on_step_end", 2)).train()
    failed = with_dropout(tmp_path / "failed")
    if error == "server":
        failing(failed, 2, server_gone)
        expected = "no hidden states from http://localhost:1; checkpoint-2 holds all that was learned before"
    else:
        clip = failed._clip_grad_norm
        failed._clip_grad_norm = lambda model: float("nan") if failed.state.global_step == 2 else clip(model)
        expected = "update 3: the gradient is not finite; .*; checkpoint-2 holds all that was learned before"
    with pytest.raises(ForkLeftError, match=expected):
        failed.train()
    assert without_times(tmp_path / "failed" / "metrics.jsonl") == without_times(tmp_path / "stopped" / "metrics.jsonl")
    again = with_dropout(tmp_path / "failed")
    again.train(resume_from_checkpoint=True)
    assert state_digest(again) == state_digest(whole)


def test_before_the_first_update_ends_an_error_leaves_no_checkpoint(tmp_path):
    trainer = with_dropout(tmp_path)
    failing(trainer, 0, server_gone)
    with pytest.raises(ForkLeftError, match=r"http://localhost:1$"):
        trainer.train()
    assert not checkpoints.steps(tmp_path)


def test_an_error_stays_the_error_if_nothing_can_be_saved(tmp_path, monkeypatch, caplog):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    trainer = with_dropout(tmp_path)
    failing(trainer, 2, server_gone)
    monkeypatch.setattr(checkpoints, "publish", full)
    with pytest.raises(ForkLeftError, match=r"http://localhost:1$"):
        trainer.train()
    assert "what was learned since the last checkpoint is lost: could not save to" in caplog.text


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_a_server(tmp_path):
    whole = stopping(tmp_path / "whole")
    whole.train()
    waiting = stopping(tmp_path / "run")
    answerer = waiting.collector.answerer

    def answers(*arguments, **settings):
        if waiting.state.global_step < 2:
            return answerer.answers(*arguments, **settings)
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
        Connection("http://localhost:1", "m", patience=0.5).first_done([Future()])

    waiting.collector.answerer = SimpleNamespace(identity=answerer.identity, answers=answers)
    with pytest.raises(StoppedError, match="stopped by SIGTERM after update 2, which checkpoint-2 holds"):
        waiting.train()
    again = stopping(tmp_path / "run")
    again.train(resume_from_checkpoint=True)
    assert state_digest(again) == state_digest(whole)


def test_before_the_first_update_ends_there_is_nothing_to_save(tmp_path):
    with pytest.raises(StoppedError, match="stopped by SIGINT before the first update ended") as raised:
        stopping(tmp_path / "run", SignalAt("on_train_begin", 0, signal.SIGINT)).train()
    assert raised.value.step == 0
    assert not checkpoints.steps(tmp_path / "run")
    # The same run may start again.
    stopping(tmp_path / "run").train()


def test_a_signal_in_the_last_update_comes_too_late(tmp_path):
    trainer = stopping(tmp_path / "run", SignalAt("on_step_end", 4))
    trainer.train()
    assert trainer.folder.is_finished()


def test_rows_that_wait_for_their_line_are_logged_before_the_checkpoint(tmp_path):
    with pytest.raises(StoppedError):
        stopping(tmp_path / "run", SignalAt("on_step_end", 2), logging_steps=4).train()
    (row,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert row["step"] == 2
    assert row["questions"] == 8
    assert "grad_norm" in row


def test_without_being_told_a_trainer_leaves_signals_alone(tmp_path):
    trainer = make_trainer(tmp_path / "run", trainer={"callbacks": [SignalAt("on_step_end", 2, signal.SIGINT)]})
    with pytest.raises(KeyboardInterrupt):
        trainer.train()


@pytest.mark.slow
@pytest.mark.parametrize("signalled", ["0", "1"])
def test_processes_stop_at_the_same_update(tmp_path, signalled):
    (tmp_path / "program.py").write_text(ONE_OF_TWO)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(tmp_path / "program.py")]
    settings = json.dumps({"per_device_train_batch_size": 2, "eval_strategy": "steps", "eval_steps": 2})

    def ended(run, *words):
        environment = os.environ | ENVIRONMENT
        done = subprocess.run(
            [*launch, str(tmp_path / run), settings, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads((tmp_path / f"ended-{rank}.json").read_text()) for rank in (0, 1)]

    whole = ended("whole", "none", "start")
    assert ended("run", signalled, "start") == [{"step": 2, "number": signal.SIGTERM}] * 2
    assert ended("run", "none", "resume") == whole
    assert (tmp_path / "run" / "checkpoint-2").is_dir()
    # The evaluation that was due then was made later, by both.
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_count" in row] == [2, 4]
    if signalled == "0":
        # A gradient that is not finite is so in both.
        for found in ended("failed", "nan", "start"):
            assert found["error"].startswith("update 3: the gradient is not finite")
            assert "checkpoint-2 holds all that was learned before" in found["error"]
        assert ended("failed", "none", "resume") == whole
