import inspect

import pytest
from trainer_runs import make_trainer

from forkleft.errors import ForkLeftError
from forkleft.rollout import Writer, generate


def test_generate_can_be_called_as_a_writer_is():
    offered = inspect.signature(generate).parameters
    assert set(inspect.signature(Writer.__call__).parameters) - {"self"} <= set(offered)


def test_another_writer_is_asked_as_generate_would_be(tmp_path):
    """It gets the student of the moment, and its responses are what is learned from."""
    calls = []

    def writer(student, prompts, **settings):
        calls.append((student, len(prompts), settings))
        return generate(student, prompts, **settings)

    trainer = make_trainer(tmp_path / "own", max_steps=2, trainer={"writer": writer})
    trainer.train()
    plain = make_trainer(tmp_path / "plain", max_steps=2)
    plain.train()
    assert [(count, settings["order"]) for _, count, settings in calls] == [(4, "high_entropy")] * 2
    assert all(student is trainer.student for student, *_ in calls)
    assert calls[0][2]["seed"] != calls[1][2]["seed"]
    ours, theirs = ((tmp_path / name / "routes.jsonl").read_text() for name in ("own", "plain"))
    assert ours == theirs


def test_a_writer_that_gives_another_number_of_responses_is_refused(tmp_path):
    trainer = make_trainer(tmp_path, trainer={"writer": lambda *given, **settings: []})
    with pytest.raises(ForkLeftError, match="asked for 4 responses and gave 0; it must give one for each prompt"):
        trainer.train()
