from types import SimpleNamespace

import pytest
from trainer_runs import ROWS, make_trainer

from forkleft.teacher import Answer, cached_answers
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


def test_a_teacher_is_recognised_by_its_answer_else_a_reference_else_the_question(tmp_path):
    rows = [*({**row, "solution": None} for row in ROWS[:2]), ROWS[2]]
    trainer = make_trainer(tmp_path, rows=rows)
    collector, examples = trainer.collector, trainer.train_dataset
    answer = Answer("abcabcabcabcabc", stopped=True)
    cached_answers(
        SimpleNamespace(identity=collector.answerer.identity, answers=lambda asked, keep, **others: keep(0, answer)),
        collector.cache,
        [examples[0].messages],
        max_new_tokens=12,
    )
    answered, asked, solved = collector.known(examples)
    encode = trainer.student.text_tokenizer.encode
    # No longer than a response.
    assert list(answered.response) == encode("abcabcabcabc")
    assert list(answered.prompt) == list(examples[0].teacher_prompt)
    assert [*asked.prompt, *asked.response] == list(examples[1].teacher_prompt)
    assert list(solved.response) == list(examples[2].reference_ids)
    for reading in (answered, asked, solved):
        assert list(reading.positions) == list(range(len(reading.response)))
