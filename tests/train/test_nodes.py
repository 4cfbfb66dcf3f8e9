"""Several machines, as far as one can be several: nodes on loopback, processes that are lost, other numbers of them."""

import json
import shutil

import pytest
import sharded_runs
import torch
import trainer_runs
from exact import assert_exact
from nodes import TESTS, run_nodes

PROGRAM = str(TESTS / "trainer_runs.py")
# Plain descent in float64, which shows rounding as what it is. The last update of an epoch has one question of four.
CHANGES = {
    "max_steps": 4,
    "seed": 1,
    "questions": 9,
    "questions_per_update": 4,
    "optim": "sgd",
    "learning_rate": 0.1,
    "dtype": "float64",
    "verdicts": "one-in-four",
    "save_strategy": "steps",
    "save_steps": 2,
}


def words(folder, *others):
    return [PROGRAM, str(folder), json.dumps(CHANGES), *others]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights of the run in one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    changes = dict(CHANGES)
    rows = trainer_runs.ROWS[: changes.pop("questions")]
    trainer = trainer_runs.make_trainer(folder, rows=rows, **changes | {"dtype": torch.float64})
    trainer.train()
    return trainer.model.state_dict()


def assert_as_alone(folder, alone):
    found = torch.load(folder / "weights.pt")
    for name, tensor in alone.items():
        assert_exact(found[name], tensor, name)


def test_two_nodes_learn_as_one_process(tmp_path, alone):
    """Under DDP; also where a node has nothing retained, and where it has no question at all."""
    done = run_nodes(2, words(tmp_path / "run"))
    assert [code for code, _ in done] == [0, 0], [error[-2000:] for _, error in done]
    assert_as_alone(tmp_path / "run", alone)


@pytest.mark.slow
def test_two_nodes_shard_a_student_and_learn_as_one(tmp_path):
    """Under FSDP2; the nodes need different numbers of forwards to write."""
    done = run_nodes(2, [str(TESTS / "sharded_runs.py"), str(tmp_path / "found.pt"), "prefix"])
    assert [code for code, _ in done] == [0, 0], [error[-2000:] for _, error in done]
    found = torch.load(tmp_path / "found.pt")
    student, settings = sharded_runs.make("prefix")
    losses = [sharded_runs.learn(student, student.model, chosen, settings)[-1] for chosen in (range(2), range(2, 4))]
    assert_exact(found["loss"], sum(losses))
    for name, parameter in student.model.named_parameters():
        assert_exact(2 * found["gradients"][name], parameter.grad, name)


@pytest.mark.slow
def test_when_a_process_is_lost_the_other_ends_and_says_so_and_the_run_goes_on_elsewhere(tmp_path, alone):
    folder = tmp_path / "run"
    (_, one), (_, other) = run_nodes(2, words(folder, "", "step-3@1"))
    said = one if "another process of this run" in one else other
    assert "another process of this run has ended, or did not answer in time (" in said
    assert "resume from checkpoint-2 (--resume_from_checkpoint true)" in said
    assert "Signal 9 (SIGKILL)" in one + other
    # On one node with as many processes as before, and on a single process.
    for copy, processes in (("two", 2), ("one", 1)):
        shutil.copytree(folder, tmp_path / copy)
        ((code, error),) = run_nodes(1, words(tmp_path / copy, "resume"), per_node=processes)
        assert code == 0, error[-2000:]
        warned = "the run had 2 process(es) and has 1: each update has the same questions as before" in error
        assert warned == (processes == 1)
        assert_as_alone(tmp_path / copy, alone)
