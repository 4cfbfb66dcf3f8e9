import json
import re
import shutil

import pytest
from trainer_runs import make_trainer

from forkleft.train import signs as module
from forkleft.train.signs import RULES, signs

# Updates of a run that works, 32 questions each.
HEALTHY = {
    "loss": 0.5,
    "questions": 32,
    "student_accuracy": 0.5,
    "teacher_accuracy": 0.75,
    "route_ce": 12,
    "route_leftopd": 12,
    "route_gold": 4,
    "route_exclude": 4,
    "taught": 12,
    "stopped": 0.9,
    "empty": 0.05,
    "references_cut": 1,
    "kl": 0.5,
}
NO_ROUTES = {"route_ce": 0, "route_leftopd": 0, "route_gold": 0, "route_exclude": 0}


def updates(count, start=1, **changes):
    return [HEALTHY | {"step": start + k} | changes for k in range(count)]


def falling(count=60):
    return [row | {"kl": 0.5 * 0.98 ** row["step"]} for row in updates(count)]


def test_a_run_that_works_shows_none():
    for count in (0, 1, 3, 10, 60):
        assert signs(falling(count)) == {}


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("responses_unfinished", {"empty": 0.6}, "of the last 96 responses 60% are empty and 10% were cut: "),
        ("responses_unfinished", {"stopped": 0.4}, "5% are empty and 60% were cut: .*raise max_new_tokens"),
        ("responses_unfinished", {"empty": 0.3, "stopped": 0.75}, "30% are empty and 25% were cut"),
        ("references_cut", {"references_cut": 4}, "of the last 96 questions 12 have a reference that was cut"),
        ("one_route", NO_ROUTES | {"route_ce": 32}, "both models are right on all of the last 96 .*harder questions"),
        ("one_route", NO_ROUTES | {"route_leftopd": 32}, "the teacher is right on all .*the student on none"),
        ("one_route", NO_ROUTES | {"route_gold": 32}, "neither model is right on any"),
        ("one_route", NO_ROUTES | {"route_exclude": 32}, "only the student is right.*stronger teacher"),
        ("teacher_wrong", {"teacher_accuracy": 0.0}, "the teacher is right on 0 of the last 96 questions"),
        ("teacher_wrong", {"teacher_accuracy": 0.01}, "the teacher is right on 1 of the last 96 questions"),
    ],
)
def test_a_sign_shows_once_there_are_enough_questions_at_the_start_or_later(name, changes, words):
    assert signs(updates(1, **changes | {"questions": 31})) == {}
    assert list(signs(updates(1, **changes))) == [name]
    for rows in (updates(3, **changes), [*falling(30), *updates(3, start=31, **changes)]):
        found = signs(rows)
        assert list(found) == [name]
        assert re.search(words, found[name])
        assert signs(rows, known=[name]) == {}
    # What was so in the past, and is not any more, is no sign.
    assert signs([*updates(3, **changes), *updates(30, start=4)]) == {}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("responses_unfinished", {"empty": 0.2, "stopped": 0.71}),
        ("references_cut", {"references_cut": 3}),
        ("one_route", NO_ROUTES | {"route_ce": 31, "route_gold": 1}),
        ("teacher_wrong", {"teacher_accuracy": 1 / 32}),
    ],
)
def test_what_is_near_the_bound_is_no_sign(name, changes):
    assert RULES[name](updates(3, **changes)) is None


# KL in 50 updates of recipes/lab.yaml, at its learning rate and at 1e-9, as they were measured.
LEARNING = """
0.097 0.085 0.187 0.142 0.151 0.084 0.102 0.07 0.104 0.106 0.12 0.145 0.077 0.064 0.097 0.068 0.105 0.073 0.07 0.082
0.059 0.036 0.063 0.072 0.058 0.077 0.072 0.041 0.09 0.063 0.1 0.045 0.051 0.046 0.07 0.08 0.041 0.09 0.046 0.057
0.071 0.04 0.114 0.055 0.037 0.063 0.073 0.054 0.045 0.066
"""
STANDING = """
0.097 0.085 0.187 0.148 0.155 0.128 0.093 0.091 0.129 0.116 0.141 0.144 0.106 0.088 0.107 0.123 0.151 0.088 0.085 0.124
0.114 0.102 0.114 0.162 0.156 0.158 0.105 0.057 0.118 0.087 0.141 0.117 0.107 0.099 0.137 0.157 0.068 0.134 0.093 0.148
0.109 0.106 0.138 0.131 0.096 0.126 0.163 0.175 0.082 0.103
"""


def measured(text, **changes):
    return [row | {"kl": float(kl)} for row, kl in zip(updates(50, **changes), text.split(), strict=True)]


def test_kl_that_does_not_fall():
    assert all(signs(measured(LEARNING)[:count]) == {} for count in range(51))
    assert signs(measured(STANDING)[:40]) == {}
    found = signs(measured(STANDING)[:41])
    assert list(found) == ["kl_not_falling"]
    text = "(KL, in nats, 0 if they are the same) was 0.125 over updates 1 to 13, 0.117 over updates 29 to 41, with a"
    assert f"{text} noise of 0.011; nor is it right more often in training, written as" in found["kl_not_falling"]
    assert "raise learning_rate" in found["kl_not_falling"]


def test_kl_of_a_student_that_is_right_more_often_may_stand():
    rows = [row | {"student_accuracy": 0.4 + row["step"] / 250} for row in measured(STANDING)]
    assert signs(rows) == {}


def test_kl_needs_several_rows_and_a_fall_beyond_its_noise():
    assert signs([row for row in measured(STANDING) if row["step"] % 5 == 0]) == {}
    # A small fall counts where there is no noise, a larger one does not where there is much.
    quiet = [row | {"kl": 0.5 - row["step"] / 2000} for row in updates(45)]
    assert signs(quiet) == {}
    noisy = [row | {"kl": row["kl"] + (0.2 if row["step"] % 2 else -0.2)} for row in quiet]
    assert list(signs(noisy)) == ["kl_not_falling"]


def test_updates_without_a_taught_question_have_no_kl():
    rows = [{k: v for k, v in row.items() if k != "kl"} | {"taught": 0} for row in updates(60)]
    assert signs(rows) == {}


def warnings_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["step"], row["warning"], row["text"]) for row in rows if "warning" in row]


RUN = {"max_steps": 5, "save_strategy": "steps", "save_steps": 1, "verdicts": "neither"}


@pytest.mark.slow
def test_a_run_warns_once_in_terminal_metrics_and_card_and_a_resumed_one_the_same(tmp_path, monkeypatch, capsys):
    """Resumed before and after the update that showed the signs."""
    monkeypatch.setattr(module, "_QUESTIONS", 12)
    make_trainer(tmp_path, **RUN).train()
    found = warnings_of(tmp_path)
    assert {(3, "one_route"), (3, "teacher_wrong")} <= {(step, name) for step, name, _ in found}
    assert len(found) == len({name for _, name, _ in found})
    printed, page = capsys.readouterr().out, (tmp_path / "README.md").read_text()
    for step, _, text in found:
        assert printed.count(f"update {step}  warning: {text}\n") == 1
        assert page.count(f"- Update {step}: {text}.\n") == 1
    for checkpoint, repeated in ((2, len(found)), (4, 0)):
        for later in range(checkpoint + 1, 6):
            shutil.rmtree(tmp_path / f"checkpoint-{later}")
        make_trainer(tmp_path, **RUN).train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}"))
        assert warnings_of(tmp_path) == found
        assert capsys.readouterr().out.count("warning: ") == repeated
        assert (tmp_path / "README.md").read_text() == page


def test_routes_that_decide_nothing_are_no_sign(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_QUESTIONS", 4)
    make_trainer(tmp_path, max_steps=1, verdicts="neither", supervision="opd").train()
    assert "one_route" not in [name for _, name, _ in warnings_of(tmp_path)]
