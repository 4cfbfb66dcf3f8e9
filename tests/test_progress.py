import io

import pytest
from rich.console import Console
from transformers import TrainerControl, TrainerState

from forkleft.progress import ProgressLine

LOGS = {"loss": 0.25, "student_accuracy": 0.5, "route_leftopd": 12}


@pytest.mark.parametrize("terminal", [True, False])
def test_the_line_tells_where_training_is(terminal):
    out = io.StringIO()
    line = ProgressLine(Console(file=out, force_terminal=terminal, width=120))
    state = TrainerState(max_steps=3, is_world_process_zero=True)
    line.on_train_begin(None, state, TrainerControl())
    for step in (1, 2, 3):
        state.global_step = step
        line.on_step_end(None, state, TrainerControl())
        line.on_log(None, state, TrainerControl(), logs=dict(LOGS))
        line.on_log(None, state, TrainerControl(), logs={"train_runtime": 1.0})
    line.on_train_end(None, state, TrainerControl())
    told = out.getvalue()
    assert "loss 0.250  student right 50%  taught by the teacher 12" in told
    assert ("3/3" in told) if terminal else ("update 1 of 3" in told and "update 3 of 3" in told)


def test_the_line_moves_between_log_lines():
    out = io.StringIO()
    line = ProgressLine(Console(file=out, force_terminal=True, width=120))
    state = TrainerState(max_steps=3, is_world_process_zero=True)
    line.on_train_begin(None, state, TrainerControl())
    state.global_step = 2
    line.on_step_end(None, state, TrainerControl())
    line.stop()
    assert "2/3" in out.getvalue()


def test_every_evaluation_has_a_line():
    out = io.StringIO()
    line = ProgressLine(Console(file=out, width=120))
    state = TrainerState(max_steps=3, global_step=2, is_world_process_zero=True)
    metrics = {"eval_chains_accuracy": 0.525, "eval_chains_count": 40}
    line.on_evaluate(None, state, TrainerControl(), metrics=metrics)
    assert out.getvalue() == "update 2  eval chains: 52.5% of 40 right\n"
    state.is_world_process_zero = False
    line.on_evaluate(None, state, TrainerControl(), metrics=metrics)
    assert len(out.getvalue().splitlines()) == 1


def test_only_one_process_speaks():
    out = io.StringIO()
    line = ProgressLine(Console(file=out))
    state = TrainerState(max_steps=1, is_world_process_zero=False)
    line.on_train_begin(None, state, TrainerControl())
    line.on_log(None, state, TrainerControl(), logs=dict(LOGS))
    assert out.getvalue() == ""
