import copy
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from naive import naive_answer, naive_generate, naive_update
from tiny import plain_copy
from trainer_runs import ROWS, VERDICTS, make_trainer, state_digest

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.objective.lessons import Question
from forkleft.randomness import keyed_generator
from forkleft.trainer import ForkLeftTrainer

PROGRAM = Path(__file__).with_name("trainer_runs.py")


def run(output, changes, *words, processes=1):
    """A run in processes of its own; returns the exit code."""
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "0"]
        launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = os.environ | {"PYTHONPATH": str(PROGRAM.parent), "OMP_NUM_THREADS": "1"}
    command = [*launch, str(PROGRAM), str(output), json.dumps(changes), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode > 0:
        raise AssertionError(done.stderr[-3000:])
    return done.returncode


def test_the_first_update_equals_the_naive_one(tmp_path):
    """With plain gradient descent at rate 1 the change of a weight is its gradient."""
    trainer = make_trainer(
        tmp_path, dtype=torch.float64, max_steps=1, optim="sgd", learning_rate=1.0, max_grad_norm=0.0, weight_decay=0.0
    )
    before, teacher = plain_copy(trainer.student), trainer.teacher.model
    settings, tokenizer = trainer.args.objective_settings(), trainer.student.tokenizer
    seen = []
    collect = trainer.collector.collect
    trainer.collector.collect = lambda examples, *others, **how: (
        seen.extend(examples) or collect(examples, *others, **how)
    )
    trainer.train()

    def draw(question, stream, candidates, n):
        generator = keyed_generator(trainer.args.seed, 0, question, stream)
        return torch.randperm(candidates, generator=generator)[:n].tolist()

    batch = []
    for example in seen:
        prompt = tokenizer.encode(example.messages[0]["content"])
        c, *_ = naive_generate(before, trainer.student.family, prompt, budget=12, passes=2, order="high_entropy")
        assert naive_answer(teacher, prompt, budget=12)
        right = [verdict(example.answer) for verdict in VERDICTS["all-routes"]]
        reference = [*tokenizer.encode(example.reference), 37]
        batch.append(Question(example.id, prompt, c, *right, reference))
    assert len({(q.student_right, q.teacher_right) for q in batch}) >= 3
    loss = naive_update(before, trainer.student.family, teacher, batch, settings, draw)
    loss.backward()
    logged = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert logged["loss"] == pytest.approx(loss.item(), abs=1e-6)
    for (name, theirs), ours in zip(before.named_parameters(), trainer.student.model.parameters(), strict=True):
        gradient = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert (theirs.detach() - gradient - ours).abs().max() < 1e-6, name


@pytest.mark.parametrize("verdicts", ["all-routes", "one-in-four"])
def test_accumulation_and_processes_change_nothing(tmp_path, verdicts):
    """4 questions at once = 2 accumulation steps of 2 = 2 processes of 2, also where one process has nothing."""
    # Plain descent: Adam would turn the rounding of a gradient near 0 into a step of its own.
    changes = {"max_steps": 3, "seed": 1, "verdicts": verdicts, "optim": "sgd", "learning_rate": 0.1}
    make_runs = {
        "whole": ({"per_device_train_batch_size": 4}, 1),
        "accumulated": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, 1),
        "processes": ({"per_device_train_batch_size": 2}, 2),
    }
    weights = {}
    for name, (batching, processes) in make_runs.items():
        run(tmp_path / name, changes | batching, processes=processes)
        weights[name] = torch.load(tmp_path / name / "weights.pt")
    for name in ("accumulated", "processes"):
        for key, tensor in weights["whole"].items():
            assert (tensor - weights[name][key]).abs().max() < 1e-5, (name, key)
    if verdicts == "one-in-four":
        rows = [json.loads(line) for line in (tmp_path / "processes" / "metrics.jsonl").read_text().splitlines()]
        assert any(row.get("route_exclude", 0) >= 3 for row in rows)


def test_all_excluded_is_no_update(tmp_path):
    """Not a bit of weights or moments changes, with weight decay on and moments from earlier updates."""
    trainer = make_trainer(tmp_path / "one", max_steps=2)
    trainer.train()
    optimizer, weights = copy.deepcopy(trainer.optimizer.state_dict()), copy.deepcopy(trainer.model.state_dict())
    excluded = make_trainer(tmp_path / "two", max_steps=3, verdicts="excluded")
    excluded.model.load_state_dict(weights)
    excluded.create_optimizer()
    excluded.optimizer.load_state_dict(optimizer)
    before = state_digest(excluded)
    excluded.train()
    assert state_digest(excluded) == before
    assert excluded.state.global_step == 3
    rows = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["route_exclude"] == 4 and row["loss"] == 0 for row in rows if "loss" in row)


CHECKPOINTED = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, CHECKPOINTED)
    return folder


def without_times(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    timed = ("seconds", "runtime", "per_second", "memory")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in rows if "loss" in row]


@pytest.mark.parametrize("moment", ["step-3", "update-4", "save-checkpoint-4", "step-6"])
def test_killed_and_resumed_equals_uninterrupted(tmp_path, uninterrupted, moment):
    folder = tmp_path / "run"
    assert run(folder, CHECKPOINTED, "", moment) == -9
    run(folder, CHECKPOINTED, "resume")
    assert (folder / "digest").read_text() == (uninterrupted / "digest").read_text()
    for name in ("model.safetensors", "teacher_answers.jsonl"):
        assert (folder / name).read_bytes() == (uninterrupted / name).read_bytes(), name
    assert without_times(folder / "metrics.jsonl") == without_times(uninterrupted / "metrics.jsonl")
    assert not (folder / "_staging").exists()


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    trainer = make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 4})
    trainer.train()
    weights = tmp_path / "checkpoint-4" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    again = make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 4})
    again.train(resume_from_checkpoint=True)
    assert state_digest(again) == state_digest(trainer)
    with pytest.raises(ForkLeftError, match=r"not a whole checkpoint \(trainer_state.json is missing\)"):
        (tmp_path / "checkpoint-2" / "trainer_state.json").unlink()
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_resuming_with_another_configuration_is_refused(tmp_path):
    make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    other = make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2, "rho": 0.25, "learning_rate": 1.0})
    with pytest.raises(ForkLeftError, match=r"another configuration: learning_rate was 0.001, is 1.0; rho was 0.5, is"):
        other.train(resume_from_checkpoint=True)
    rows = [*ROWS[:-1], ROWS[-1] | {"answer": "7"}]
    with pytest.raises(ForkLeftError, match="another configuration: questions was "):
        make_trainer(tmp_path, rows=rows, **CHECKPOINTED | {"max_steps": 2}).train(resume_from_checkpoint=True)
    with pytest.raises(ForkLeftError, match="holds checkpoints of an earlier run; resume it"):
        make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    with pytest.raises(ForkLeftError, match="no whole checkpoint to resume from"):
        make_trainer(tmp_path / "empty").train(resume_from_checkpoint=True)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, **CHECKPOINTED)
    save = torch.save

    def full(value, path, *arguments, **options):
        if "checkpoint-4" in str(path):
            raise OSError(28, "No space left on device")
        save(value, path, *arguments, **options)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        trainer.train()
    assert not (tmp_path / "checkpoint-4").exists()
    assert not (tmp_path / "_staging").exists()
    monkeypatch.setattr(torch, "save", save)
    again = make_trainer(tmp_path, **CHECKPOINTED)
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 6


def test_evaluation_and_the_best_checkpoint(tmp_path):
    trainer = make_trainer(
        tmp_path,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        save_total_limit=1,
        trainer={"eval_dataset": ROWS[:5]},
    )
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-2")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["eval_count"] for row in rows if "eval_count" in row] == [5, 5]


def test_gradient_checkpointing_changes_nothing(tmp_path):
    one = make_trainer(tmp_path / "one", max_steps=2)
    one.train()
    two = make_trainer(tmp_path / "two", max_steps=2, gradient_checkpointing=True)
    two.train()
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-5


def test_lora_trains_saves_and_merges(tmp_path):
    from peft import LoraConfig, PeftModel

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    trainer = make_trainer(tmp_path, max_steps=2, trainer={"peft_config": config})
    frozen = copy.deepcopy(trainer.student.model.lm_head.weight)
    trainer.train()
    assert torch.equal(trainer.student.model.lm_head.weight, frozen)
    assert (tmp_path / "adapter_model.safetensors").exists()
    fresh = make_trainer(tmp_path / "fresh").student.model
    merged = PeftModel.from_pretrained(fresh, tmp_path).merge_and_unload()
    ids = torch.tensor([[1, 2, 3]])
    ours = trainer.model.merge_and_unload()
    for model in (merged, ours):
        model.set_attn_implementation("sdpa")
    assert (merged(ids).logits - ours(ids).logits).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "the data set is empty"),
        ([{"question": "a"}], r"needs the columns answer and question \(or messages\), found question"),
        ([ROWS[0], ROWS[0] | {"answer": "9"}], "id 'q0' has two answers, '0' and '9' to be"),
        ([ROWS[0] | {"question": "a" * 200}], "question q0: a prompt of 200 tokens .* long_prompts: skip"),
        ([ROWS[0] | {"question": None}], "row 0: expected text in question, found None"),
    ],
)
def test_bad_data(tmp_path, rows, message):
    with pytest.raises(ForkLeftError, match=message):
        make_trainer(tmp_path, rows=rows)


def test_long_prompts_can_be_skipped(tmp_path):
    trainer = make_trainer(tmp_path, rows=[ROWS[0] | {"question": "a" * 200}, ROWS[1]], long_prompts="skip")
    assert [example.id for example in trainer.train_dataset] == ["q1"]


def test_a_reference_over_the_budget_is_cut_and_counted(tmp_path):
    rows = [row | {"solution": "x" * 30} for row in ROWS]
    trainer = make_trainer(tmp_path, rows=rows, max_steps=1, verdicts="neither")
    trainer.train()
    (row, *_) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["references_cut"] == 4
    assert row["route_gold"] == 4


def test_a_gradient_that_is_not_finite_stops_before_it_is_taken(tmp_path):
    trainer = make_trainer(tmp_path)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.student.model.model.layers[0].mlp.up_proj.weight.register_hook(lambda gradient: gradient * float("nan"))
    with pytest.raises(ForkLeftError, match=r"update 1: the gradient is not finite \(questions q"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda teacher: setattr(teacher, "stop_ids", (3,)), r"would not stop at the student's stop ids \[37\]"),
        (lambda teacher: teacher.tokenizer.add_tokens(["new"]) and None, None),
        (lambda teacher: setattr(teacher, "tokenizer", build_tokenizer()), "must share a tokenizer"),
    ],
    ids=["stop-ids", "an added token is left out", "another tokenizer"],
)
def test_student_and_teacher_must_share_a_vocabulary(tmp_path, change, message):
    trainer = make_trainer(tmp_path)
    trainer.teacher.tokenizer = copy.deepcopy(trainer.teacher.tokenizer)
    change(trainer.teacher)
    again = partial(ForkLeftTrainer, trainer.student, trainer.teacher, trainer.args, ROWS)
    if message is None:
        assert again().student.vocabulary == trainer.student.vocabulary
    else:
        with pytest.raises(ForkLeftError, match=message):
            again()


def test_a_reference_that_cannot_be_learned_is_refused_at_once(tmp_path):
    with pytest.raises(ForkLeftError, match="question q0: the reference holds a stop token"):
        make_trainer(tmp_path, rows=[ROWS[0] | {"solution": "x<stop>#5"}])
    with pytest.raises(ForkLeftError, match=r"question q0: the reference holds 1 id\(s\) outside the vocabulary"):
        make_trainer(tmp_path, rows=[ROWS[0] | {"solution": "x?#5"}])


def test_a_loss_that_is_not_finite_stops_and_names_the_question(tmp_path):
    trainer = make_trainer(tmp_path)
    with torch.no_grad():
        trainer.student.model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ForkLeftError, match="question q"):
        trainer.train()
