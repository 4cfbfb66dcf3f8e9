"""A run that a signal ends: after its update, with a checkpoint, in all its processes."""

import json
import os
import signal
import subprocess
import sys

import pytest
from nodes import ENVIRONMENT, SECONDS
from skips import slow
from trainer_runs import ROWS, make_trainer, state_digest, without_times
from transformers import TrainerCallback

from forkleft.errors import StoppedError
from forkleft.train import checkpoints

# In two processes, of which one alone gets the signal, within its second update.
ONE_OF_TWO = """
import json, os, signal, sys
from transformers import TrainerCallback
from forkleft.errors import StoppedError
from trainer_runs import make_trainer, state_digest
from pathlib import Path


class Signalled(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **others):
        if sys.argv[3] == os.environ["RANK"] and state.global_step == 1:
            os.kill(os.getpid(), signal.SIGTERM)


settings = json.loads(sys.argv[2])
trainer = make_trainer(Path(sys.argv[1]), trainer={"callbacks": [Signalled()], "stop_on_signals": True}, **settings)
try:
    trainer.train(resume_from_checkpoint=sys.argv[4] == "resume")
    ended = {"digest": state_digest(trainer)}
except StoppedError as error:
    ended = {"step": error.step, "number": error.number}
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


def test_an_evaluation_under_way_is_not_lost(tmp_path):
    settings = {"eval_dataset": ROWS[:2], "callbacks": [SignalAt("on_evaluate", 2)], "stop_on_signals": True}
    with pytest.raises(StoppedError) as raised:
        make_trainer(tmp_path / "run", eval_strategy="steps", eval_steps=2, trainer=settings).train()
    assert (raised.value.step, raised.value.number) == (2, signal.SIGTERM)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_accuracy" in row] == [2]


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
    settings = json.dumps({"per_device_train_batch_size": 2})

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
