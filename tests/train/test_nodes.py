"""Several machines, as far as one can be several: nodes on loopback, processes that are lost, other numbers of them."""

import json
import shutil

import pytest
import sharded_runs
import torch
import trainer_runs
from exact import assert_exact
from nodes import TESTS, run_nodes
from state_servers import FakeVllm, hang_up, serving

from forkleft.teacher import AnswerCache, StateServer, cached_answers, load_teacher
from forkleft.teacher.answers import Renamed

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


@pytest.mark.slow
def test_two_nodes_learn_as_one_process(tmp_path, alone):
    """Under DDP; also where a node has nothing retained, and where it has no question at all."""
    done = run_nodes(2, words(tmp_path / "run"))
    assert [code for code, _ in done] == [0, 0], [error[-2000:] for _, error in done]
    assert_as_alone(tmp_path / "run", alone)


@pytest.fixture
def served(tmp_path):
    """The teacher of the runs on a server, in float64, with its answers in a file; and its folder, file and address."""
    local = trainer_runs.local_teacher(torch.float64, trainer_runs.tiny_tokenizer())
    for part in (local.model, local.tokenizer):
        part.save_pretrained(tmp_path / "teacher")
    fake = FakeVllm(local.model)
    fake.dtype = torch.float64
    remote = load_teacher(tmp_path / "teacher", dtype=torch.float64, server=StateServer("http://none", "teacher"))
    asked = [[{"role": "user", "content": row["question"]}] for row in trainer_runs.ROWS]
    budget = trainer_runs.SETTINGS["teacher_max_new_tokens"]
    cached_answers(
        Renamed(local, remote.identity), AnswerCache(tmp_path / "answers.jsonl"), asked, max_new_tokens=budget
    )
    with serving(fake) as url:
        yield fake, {"served": [str(tmp_path / "teacher"), url], "answer_cache": str(tmp_path / "answers.jsonl")}


@pytest.mark.slow
def test_two_processes_learn_from_one_server_as_one_with_the_teacher_in_memory(tmp_path, served):
    """Also if the server fails for a moment, while both read it. Every response is taught."""
    fake, where = served
    changes = CHANGES | {"supervision": "opd", "max_steps": 2, "save_strategy": "no"}
    del changes["questions"]
    trainer = trainer_runs.make_trainer(tmp_path / "alone", **changes | {"dtype": torch.float64})
    trainer.train()
    # Each process reads four texts for the first look; then both are in their first update.
    fake.faults = [lambda *request: False] * 10 + [hang_up] * 3
    ((code, error),) = run_nodes(1, [PROGRAM, str(tmp_path / "run"), json.dumps(changes | where)], per_node=2)
    assert code == 0, error[-2000:]
    assert not fake.faults
    # Both processes look at the start and in each of two updates of four questions.
    looks = [body for body in fake.asked if body["embed_dtype"] == "float32"]
    assert len(looks) >= 2 * 3 * 4
    assert len(fake.asked) - len(looks) >= 2 * 4
    assert_as_alone(tmp_path / "run", trainer.model.state_dict())


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
