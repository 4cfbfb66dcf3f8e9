import io
import re

import pytest
from rich.console import Console
from tiny import tiny_tokenizer
from transformers import TrainerControl, TrainerState

from forkleft.objective.forks import Fork
from forkleft.train.progress import ForkProgress

LOGS = {"loss": 0.25, "student_accuracy": 0.484, "teacher_accuracy": 1.0, "questions": 48, "taught": 25}
LOGS |= {"route_ce": 23, "route_leftopd": 25, "route_gold": 0, "route_exclude": 0, "tokens_per_second": 900.0}
FORK = Fork("q", 13, (1,), written=3, student=((7, 0.41), (3, 0.38)), teacher=(7, 0.99))
FIGURES = "loss 0.250  student right 48%, 25 of 48 taught by the teacher"


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def plain():
    return Console(file=io.StringIO(), width=80)


@pytest.mark.parametrize("console", [terminal(), plain()], ids=["terminal", "log"])
def test_the_line_tells_where_training_is(console):
    line = ForkProgress(console, tiny_tokenizer())
    assert line.watch_fork is None
    state = TrainerState(max_steps=3, is_world_process_zero=True)
    line.on_train_begin(None, state, TrainerControl())
    # Nobody computes a fork that nobody sees.
    assert (line.watch_fork is not None) == console.is_terminal
    if line.watch_fork is not None:
        line.watch_fork(FORK)
    for step in (1, 2, 3):
        state.global_step = step
        line.on_step_end(None, state, TrainerControl())
        line.on_log(None, state, TrainerControl(), logs=dict(LOGS))
        line.on_log(None, state, TrainerControl(), logs={"train_runtime": 1.0})
    line.on_train_end(None, state, TrainerControl())
    text = console.file.getvalue()
    assert (FIGURES in text) != console.is_terminal
    assert ("25 teacher only" in text and "torn between 7 (41%) and 3 (38%)" in text) == console.is_terminal
    assert ("3/3" in text) if console.is_terminal else ("update 1 of 3" in text and "update 3 of 3" in text)


def test_every_evaluation_has_a_line():
    console = Console(file=io.StringIO(), width=20)
    line = ForkProgress(console, tiny_tokenizer())
    state = TrainerState(max_steps=3, global_step=2, is_world_process_zero=True)
    metrics = {"eval_chains_accuracy": 0.525, "eval_chains_count": 40}
    line.on_evaluate(None, state, TrainerControl(), metrics=metrics)
    assert console.file.getvalue() == "update 2  eval chains: 52.5% of 40 right\n"
    state.is_world_process_zero = False
    line.on_evaluate(None, state, TrainerControl(), metrics=metrics)
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_warning_stays_above_the_panel_in_whole_words():
    text = "update 2  warning: " + "of the last 32 responses most were cut; " * 4
    for console in (terminal(60), plain()):
        line = ForkProgress(console, tiny_tokenizer())
        state = TrainerState(max_steps=3, is_world_process_zero=True)
        line.on_train_begin(None, state, TrainerControl())
        for step in (1, 2):
            state.global_step = step
            line.on_step_end(None, state, TrainerControl())
            line.on_log(None, state, TrainerControl(), logs=dict(LOGS))
            if step == 1:
                # This line draws the panel, which the warning then has to move down.
                line.on_evaluate(None, state, TrainerControl(), metrics={"eval_accuracy": 0.5, "eval_count": 40})
                line.warn(text)
        line.on_train_end(None, state, TrainerControl())
        rows = shown_on(console)
        begin = next(k for k, row in enumerate(rows) if row.startswith("update 2  warning:"))
        if console.is_terminal:
            panel = next(k for k, row in enumerate(rows) if row.startswith("update  "))
            # Neither the panel is left behind above it, nor is it drawn over: all words are there, and then the panel.
            assert " ".join(rows[begin:panel]).split() == text.split()
            assert all(len(row) <= 60 for row in rows)
            assert begin == 1 and sum("2/3" in row for row in rows) == 1 and rows[panel + 1].startswith("routes")
        else:
            assert rows[begin].split() == text.split()


def shown_on(console):
    """The lines of a terminal at the end: the panel is drawn anew over itself by moving up and erasing lines."""
    rows, at = [""], 0
    for count, code, text in re.findall(r"\x1b\[\??(\d*)([A-Za-z])|(\n|[^\x1b\r\n]+)", console.file.getvalue()):
        if code == "A":
            at -= int(count or 1)
        elif code == "K":
            rows[at] = ""
        elif text == "\n":
            at += 1
            rows += [""] * (at == len(rows))
        else:
            rows[at] += text
    return [row.rstrip() for row in rows]
