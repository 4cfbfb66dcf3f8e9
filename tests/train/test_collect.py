from types import SimpleNamespace

import pytest
from trainer_runs import ROWS, make_trainer

from forkleft.train import collect
from forkleft.train.collect import Clock
from forkleft.train.progress import ProgressLine


def test_a_phase_within_another_is_counted_once_and_every_turn_is_heard(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(collect, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    heard = []
    clock = Clock(heard.append)
    for _ in range(2):
        with clock.phase("backward"):
            now.seconds += 1
            with pytest.raises(KeyError), clock.phase("readout"):
                now.seconds += 10
                raise KeyError
            now.seconds += 100
        now.seconds += 1000
    assert clock.seconds == {"backward": 202, "readout": 20}
    assert heard == ["backward", "readout", "backward", ""] * 2


def test_the_phases_of_a_run_are_shown(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(ProgressLine, "phase", lambda line, name: heard.append(name))
    trainer = make_trainer(
        tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, trainer={"eval_dataset": ROWS[:2]}
    )
    trainer.train()
    named = [name for name in heard if name]
    assert named == ["rollout", "teacher", "verify", "teacher", "backward", "readout", "backward", "evaluation"]
    assert heard[-1] == ""
