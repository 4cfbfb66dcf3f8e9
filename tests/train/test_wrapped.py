import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sharded_runs
import torch
from exact import assert_exact
from tiny import tiny_model

from forkleft.train.wrapped import answer_calls, gathered

PROGRAM = Path(sharded_runs.__file__)


def test_calls_run_within_forward_and_copies_answer_for_themselves():
    model = tiny_model(dtype=torch.float64)
    ids = torch.tensor([[1, 2, 3]])
    expected = model(ids).logits
    answer_calls(model)
    assert_exact(model(ids).logits, expected)
    assert model(forkleft_call=lambda: "called") == "called"
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.lm_head.weight.zero_()
    assert_exact(model(ids).logits, expected)
    assert not other(ids).logits.any()


def test_a_model_that_is_not_sharded_is_left_alone():
    model = tiny_model()
    with gathered(model):
        assert model(torch.tensor([[1]])).logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("view", ["prefix", "target_masked"])
def test_sharded_processes_write_are_traced_and_learn_as_one(tmp_path, view):
    """Though the processes need different numbers of forwards to write."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, PROGRAM.parents[:2])), "OMP_NUM_THREADS": "1"}
    command = [*launch, str(PROGRAM), str(tmp_path / "found.pt"), view]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = torch.load(tmp_path / "found.pt")

    student, settings = sharded_runs.make(view)
    tokens, rows, losses = [], [], []
    for chosen in (range(0, 2), range(2, 4)):
        some, traced, loss = sharded_runs.learn(student, student.model, chosen, settings)
        tokens += some
        rows += traced
        losses.append(loss)
    assert found["tokens"] == tokens
    assert len(rows) == 4 and any(row["kl"] for row in rows)
    for row, expected in zip(found["traces"], rows, strict=True):
        assert_same_trace(row, expected)
    assert len(tokens[0]) != len(tokens[2])
    assert_exact(found["loss"], sum(losses))
    for name, parameter in student.model.named_parameters():
        # FSDP averages over the processes; the trainer multiplies the loss by their number.
        assert_exact(2 * found["gradients"][name], parameter.grad, name)


def assert_same_trace(row, expected):
    """The same words, and the same numbers; probabilities are written with four digits."""
    assert row.keys() == expected.keys()
    for name, value in expected.items():
        if name.endswith("_alternatives") and value is not None:
            pairs = [[pair for part in parts for pair in part] for parts in (row[name], value)]
            words, odds = zip(*(zip(*part, strict=True) for part in pairs), strict=True)
            assert words[0] == words[1], name
            assert_exact(*(torch.tensor(part, dtype=torch.float64) for part in odds), name, tolerance=1.1e-4)
        elif isinstance(value, list) and value and isinstance(value[0], float):
            assert_exact(*(torch.tensor(part, dtype=torch.float64) for part in (row[name], value)), name)
        else:
            assert row[name] == value, name
