import json
from functools import partial
from pathlib import Path

import adapt_runs
import pytest
import torch
from adapt_runs import ROWS, Stream, make_trainer
from exact import assert_exact
from naive import naive_causal_loss, naive_denoising_loss
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import FAMILIES, MASK, STOP, family_name, plain_copy, tiny_student, tiny_tokenizer
from trainer_runs import in_float32, run_program, state_digest, without_times

from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Sample, prediction_loss
from forkleft.randomness import keyed_generator
from forkleft.rollout import decode
from forkleft.students import load_student
from forkleft.train import adapt, adapt_data, student_trainer
from forkleft.train.adapt import AdaptTrainer
from forkleft.train.adapt_data import prepare_samples
from forkleft.train.config import ForkLeftConfig
from forkleft.train.prepare import check_adapted

run = partial(run_program, Path(adapt_runs.__file__))
DESCENT = {"optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "weight_decay": 0.0}
TEXTS = [{"text": "abcdefghij" * (k % 3 + 1)} for k in range(6)]


def samples(rows):
    tokenizer = tiny_tokenizer()
    return [
        Sample(tokenizer.encode(prompt["content"]), [*tokenizer.encode(answer["content"]), STOP], row["id"])
        for row in rows
        for prompt, answer in [row["messages"]]
    ]


def metrics(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[-1]], ids=family_name)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"weighting": "1/t", "mask_shares": [0.2, 0.9], "gradient_accumulation_steps": 2},
        {"causal_weight": 0.5},
        {"causal_only": True},
    ],
    ids=["uniform", "1/t, accumulated", "mixed", "causal"],
)
def test_the_first_update_equals_the_naive_one(tmp_path, family, changes):
    """With plain gradient descent at rate 1 the change of a weight is its gradient."""
    trainer = make_trainer(tmp_path, family=family, dtype=torch.float64, max_steps=1, **DESCENT | changes)
    before, seen = plain_copy(trainer.student), []
    tasks_of = trainer._tasks
    trainer._tasks = lambda batch, update: seen.extend(batch) or tasks_of(batch, update)
    trainer.train()
    assert len(seen) == 4 * changes.get("gradient_accumulation_steps", 1)
    by_id = {sample.id: sample for sample in samples(ROWS)}
    assert all(by_id[sample.id] == sample for sample in seen)
    loss = torch.zeros((), dtype=torch.float64)
    if "causal_only" not in changes:
        generators = [keyed_generator(trainer.args.seed, "denoising", 0, sample.id) for sample in seen]
        shares, weighting = changes.get("mask_shares", [0.0, 1.0]), changes.get("weighting", "uniform")
        loss = loss + naive_denoising_loss(before, family, seen, generators, weighting, 16, shares)
    if "causal_only" in changes or "causal_weight" in changes:
        loss = loss + changes.get("causal_weight", 1.0) * naive_causal_loss(before, seen)
    loss.backward()
    assert metrics(tmp_path)[0]["loss"] == in_float32(loss.item())
    for (name, theirs), ours in zip(before.named_parameters(), trainer.student.model.parameters(), strict=True):
        assert_exact(theirs.detach() - theirs.grad, ours, name)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["list", "stream"])
@pytest.mark.parametrize("filled", [False, True], ids=["rows", "filled"])
def test_accumulation_and_processes_change_nothing(tmp_path, filled, stream):
    """4 rows at once = 2 accumulation steps of 2 = 2 processes of 2; the third of 4 updates has fewer."""
    changes = {"max_steps": 4, "optim": "sgd", "learning_rate": 0.1, "dtype": "float64", "causal_weight": 0.2}
    changes["stream"] = stream
    whole = {"per_device_train_batch_size": 4}
    parts = {"accumulated": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, 1)}
    parts["processes"] = ({"per_device_train_batch_size": 2}, 2)
    if filled:
        # The same batches, two in an update, however they are divided.
        whole = {"tokens_per_batch": 90, "gradient_accumulation_steps": 2}
        parts = {"processes": ({"tokens_per_batch": 90}, 2)}
    weights = {}
    for name, (batching, processes) in {"whole": (whole, 1), **parts}.items():
        run(tmp_path / name, changes | batching, processes=processes)
        weights[name] = torch.load(tmp_path / name / "weights.pt")
    logged = {name: without_times(tmp_path / name / "metrics.jsonl") for name in weights}
    for name in parts:
        for key, tensor in weights["whole"].items():
            assert_exact(weights[name][key], tensor, (name, key))
        for one, two in zip(logged["whole"], logged[name], strict=True):
            assert one["loss"] == in_float32(two["loss"]) and one["rows"] == two["rows"]
            assert one["loss_denoising"] == pytest.approx(two["loss_denoising"], abs=1e-12)


CHECKPOINTED = {
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "lr_scheduler_type": "linear",
    "causal_steps": 1,
    "first_mask_shares": [0.0, 0.2],
    "mask_share_steps": 4,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "processes", "moment"),
    [
        ({"stream": True}, 1, "save-checkpoint-4"),
        ({}, 1, "step-3"),
        ({"lora": True, "gradient_accumulation_steps": 2}, 1, "step-5"),
        ({"stream": True, "tokens_per_batch": 60}, 2, "step-5"),
    ],
    ids=["stream", "rows", "adapters, accumulated", "filled stream, processes"],
)
def test_a_killed_run_resumes_byte_for_byte(tmp_path, changes, processes, moment):
    changes = CHECKPOINTED | changes
    run(tmp_path / "whole", changes, processes=processes)
    assert run(tmp_path / "killed", changes, "", moment, processes=processes) == "killed"
    run(tmp_path / "killed", changes, "resume", processes=processes)
    assert (tmp_path / "killed" / "digest").read_text() == (tmp_path / "whole" / "digest").read_text()
    rows = [without_times(tmp_path / name / "metrics.jsonl") for name in ("whole", "killed")]
    assert rows[0] == rows[1] and [row["step"] for row in rows[0]] == [1, 2, 3, 4, 5, 6]


def test_a_stream_is_read_again_and_says_so(tmp_path, caplog):
    """11 rows, 4 an update: the third update has the last three, the fourth begins again."""
    trainer = make_trainer(tmp_path, rows=Stream())
    trainer.train()
    assert [row["rows"] for row in metrics(tmp_path)] == [4, 4, 3, 4]
    assert "the data ended after 11 rows; the run goes on with its first rows again" in caplog.text


def test_a_stream_learns_what_a_list_in_its_order_does(tmp_path):
    one = make_trainer(tmp_path / "one", rows=Stream(), max_steps=2)
    two = make_trainer(tmp_path / "two", max_steps=2, train_sampling_strategy="sequential")
    for trainer in (one, two):
        trainer.train()
    assert state_digest(one) == state_digest(two)


def test_batches_are_filled(tmp_path):
    trainer = make_trainer(tmp_path, tokens_per_batch=80, max_steps=-1, num_train_epochs=1)
    trainer.train()
    rows = metrics(tmp_path)
    assert sum(row["rows"] for row in rows) == len(ROWS)
    assert len({row["rows"] for row in rows}) > 1
    with pytest.raises(ForkLeftError, match=r"tokens_per_batch is 20, but a row has .* raise it"):
        make_trainer(tmp_path / "other", tokens_per_batch=20).train()


def test_the_model_learns_and_evaluations_are_repeatable(tmp_path):
    trainer = make_trainer(
        tmp_path, held_out=ROWS[:5], max_steps=30, eval_steps=15, eval_strategy="steps", causal_weight=0.1
    )
    before = trainer.evaluate()
    assert before == trainer.evaluate()
    trainer.train()
    evaluated = [row for row in metrics(tmp_path) if "eval_loss" in row]
    assert [row["step"] for row in evaluated][-2:] == [15, 30]
    assert evaluated[-1]["eval_loss"] < 0.5 * before["eval_loss"]
    assert evaluated[-1]["eval_causal_loss"] < before["eval_causal_loss"] and before["eval_rows"] == 5
    page = (tmp_path / "README.md").read_text()
    assert "# A diffusion language model adapted with ForkLeft" in page
    assert f"| loss on held-out rows | {evaluated[-1]['eval_loss']:.3f} on 5, at update 30 |" in page
    assert load_student(tmp_path).adapted


def test_the_loss_of_next_tokens_is_the_loss_if_nothing_else_is_learned(tmp_path):
    trainer = make_trainer(tmp_path, held_out=ROWS[:5], dtype=torch.float64, causal_only=True)
    found = trainer.evaluate()
    expected = naive_causal_loss(plain_copy(trainer.student), samples(ROWS[:5])).item()
    assert found["eval_loss"] == pytest.approx(expected, rel=1e-12)
    assert "eval_causal_loss" not in found


def test_evaluations_hide_the_same_whatever_the_seed(tmp_path):
    one, two = (make_trainer(tmp_path / str(seed), held_out=ROWS, seed=seed) for seed in (1, 2))
    assert one.evaluate() == two.evaluate()


@pytest.mark.parametrize("beside", [{}, {"causal_weight": 0.5}, {"causal_steps": 1}], ids=["alone", "mixed", "warm-up"])
def test_evaluations_are_within_tokens_per_batch(tmp_path, monkeypatch, beside):
    forwards = []

    def watched(student, tasks, scales):
        forwards.append(sum(adapt._tokens(task) for task in tasks))
        return prediction_loss(student, tasks, scales)

    monkeypatch.setattr(adapt, "prediction_loss", watched)
    settings = {"held_out": ROWS, "dtype": torch.float64, **beside}
    whole = make_trainer(tmp_path / "whole", **settings).evaluate()
    assert len(forwards) <= 2 and max(forwards) > 100
    forwards.clear()
    parts = make_trainer(tmp_path / "parts", tokens_per_batch=80, **settings).evaluate()
    assert max(forwards) <= 80 and len(forwards) > 2
    assert parts == pytest.approx(whole, abs=1e-12)
    long = [*ROWS, {"messages": [{"role": "user", "content": "a" * 90}, {"role": "assistant", "content": "x" * 15}]}]
    with pytest.raises(ForkLeftError, match="tokens_per_batch is 80, but a row has"):
        make_trainer(tmp_path / "long", tokens_per_batch=80, **settings | {"held_out": long})


def test_accuracy_on_the_way(tmp_path):
    rows = [{"question": f"a{k}", "answer": str(k), "solution": f"xy#{k}"} for k in range(4)]
    settings = {"verifier": "lab", "prompt_template": "{question}", "accuracy_questions": 3}
    trainer = make_trainer(tmp_path, rows=rows, held_out={"one": rows, "two": TEXTS}, **settings)
    found = trainer.evaluate()
    assert found["eval_one_count"] == 3 and 0 <= found["eval_one_accuracy"] <= 1
    assert "eval_two_loss" in found and "eval_two_accuracy" not in found


def test_accuracy_is_of_questions_that_leave_room_and_names_them(tmp_path, monkeypatch):
    """Context 128: a prompt of 120 fits with its solution, and not with the budget of 16."""
    asked = []

    def watched(student, prompts, decoding, *, ids, **settings):
        asked.extend(ids)
        return decode(student, prompts, decoding, ids=ids, **settings)

    monkeypatch.setattr(student_trainer, "decode", watched)
    rows = [{"id": f"q{n}", "question": "a" * n, "answer": "5", "solution": "x#5"} for n in (120, 4, 112, 113)]
    rows.insert(0, rows[1] | {"id": "none", "solution": None})
    settings = {"verifier": "lab", "prompt_template": "{question}", "accuracy_questions": 3}
    trainer = make_trainer(tmp_path, held_out=rows, **settings)
    found = trainer.evaluate()
    assert (found["eval_rows"], found["eval_count"]) == (4, 2) and asked == ["q4", "q112"]


def test_the_sums_of_an_update_need_nothing_of_the_device(tmp_path):
    """Apple's has no float64; this one has no numbers at all."""
    trainer = make_trainer(tmp_path, weighting="1/t")
    # Transformers makes it when the training begins.
    trainer._tr_loss = torch.zeros(())
    batches, rows = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 2, torch.device("meta"))
    tasks = [task for batch in batches for task in batch["tasks"]]
    assert rows == 8 and batches[0]["scales"] == {"denoising": pytest.approx(1 / sum(task.weight for task in tasks))}


def test_an_update_uses_the_shares_of_its_time(tmp_path):
    """From one hidden token a block to all of them, behind an update of next tokens."""
    shares = {"first_mask_shares": [0.0, 0.0], "mask_shares": [1.0, 1.0], "mask_share_steps": 1, "causal_steps": 1}
    trainer = make_trainer(tmp_path, max_steps=3, **shares)
    seen, tasks_of = {}, trainer._tasks
    trainer._tasks = lambda batch, update: seen.setdefault(update, tasks_of(batch, update))
    trainer.train()
    assert {task.kind for task in seen[0]} == {"causal"}
    for update, whole in ((1, False), (2, True)):
        for task in seen[update]:
            hidden = [sum(id == MASK for id in replica.ids) for replica in task.stream.replicas]
            assert hidden == [len(replica.ids) if whole else 1 for replica in task.stream.replicas]


def test_gradient_checkpointing_changes_nothing(tmp_path):
    settings = {"max_steps": 2, "dtype": torch.float64, "causal_weight": 0.5}
    one = make_trainer(tmp_path / "one", **settings)
    two = make_trainer(tmp_path / "two", gradient_checkpointing=True, **settings)
    for trainer in (one, two):
        trainer.train()
    assert two.model.is_gradient_checkpointing
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert_exact(a, b)


def test_a_tracker_gets_the_figures_of_adaptation(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "causal_weight": 0.1}
    make_trainer(tmp_path, report_to="tensorboard", held_out=ROWS[:3], **settings).train()
    (events,) = (tmp_path / "runs").rglob("events.out.tfevents*")
    found = EventAccumulator(str(events)).Reload()
    names = set()
    for row in metrics(tmp_path):
        step = row.pop("step")
        for name, value in row.items():
            tag = f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
            # Event files hold float32.
            assert value == pytest.approx(next(e.value for e in found.Scalars(tag) if e.step == step), rel=1e-6), name
            names.add(name)
    assert {"loss_denoising", "loss_causal", "rows", "tokens_per_second", "eval_loss", "eval_causal_loss"} <= names


def converted():
    return tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer()).but(adapted=False)


def test_a_student_is_adapted_once_it_has_denoised(tmp_path):
    student = converted()
    settings = {"causal_steps": 1, "max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    trainer = make_trainer(tmp_path, student=student, **settings)
    assert not student.adapted
    trainer.train()
    told = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.rglob("forkleft_student.json")}
    assert {name: facts.get("adapted", True) for name, facts in told.items()} == {
        "checkpoint-1": False,
        "checkpoint-2": True,
        tmp_path.name: True,
    }
    # The object that the caller gave is the one that learned.
    assert student.adapted
    check_adapted(student, ForkLeftConfig(str(tmp_path / "other"), use_cpu=True))
    # Resumed where nothing is left to do, from the converted student.
    again = converted()
    make_trainer(tmp_path, student=again, **settings).train(resume_from_checkpoint=True)
    assert again.adapted


def test_next_tokens_alone_adapt_nothing(tmp_path):
    student = converted()
    make_trainer(tmp_path, student=student, max_steps=1, causal_only=True).train()
    assert not student.adapted and not load_student(tmp_path).adapted
    page = (tmp_path / "README.md").read_text()
    assert "nothing of denoising" in page and "| next tokens | in all updates |" in page and "| hidden |" not in page


def test_a_run_whose_epochs_end_before_it_denoises(tmp_path):
    """11 rows, 4 an update: three updates."""
    trainer = make_trainer(tmp_path, max_steps=-1, num_train_epochs=1, causal_steps=3)
    with pytest.raises(ForkLeftError, match=r"causal_steps \(3\) must be fewer than the updates of the run \(3\)"):
        trainer.train()


def test_text_is_learned_as_it_stands(tmp_path):
    trainer = make_trainer(tmp_path, rows=TEXTS, max_length=16, long_rows="split", max_steps=2)
    trainer.train()
    assert trainer.data.budget is None
    assert max(len(sample.prompt) + len(sample.response) for sample in trainer.data.samples) <= 16


def test_a_stream_that_a_bad_row_has_ended_goes_on_without_it(tmp_path, monkeypatch):
    """It ends as a run that left the row out from the start."""
    for name in ("_LOOKED_AT", "_TOGETHER"):
        monkeypatch.setattr(adapt_data, name, 4)
    rows = [*ROWS[:8], {"messages": "no"}, *ROWS[8:]]
    settings = {"rows": Stream(rows), "save_strategy": "steps", "save_steps": 1}
    with pytest.raises(ForkLeftError, match=r"row 8: expected messages .* bad_rows: skip"):
        make_trainer(tmp_path / "ended", **settings).train()
    resumed = make_trainer(tmp_path / "ended", bad_rows="skip", **settings)
    resumed.train(resume_from_checkpoint=True)
    whole = make_trainer(tmp_path / "whole", bad_rows="skip", **settings)
    whole.train()
    assert state_digest(resumed) == state_digest(whole)


@pytest.mark.parametrize("kind", ["rows", "stream"])
def test_a_run_does_not_resume_with_other_data(tmp_path, kind):
    settings = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1}
    make = Stream if kind == "stream" else list
    make_trainer(tmp_path, rows=make(ROWS), **settings).train()
    name = "first_rows" if kind == "stream" else "rows"
    other = make_trainer(tmp_path, rows=make(ROWS[1:]), **settings | {"max_steps": 3})
    with pytest.raises(ForkLeftError, match=f"belongs to another configuration: {name} was"):
        other.train(resume_from_checkpoint=True)


def test_a_gradient_that_is_not_finite_names_the_rows(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1)
    trainer.create_optimizer()
    trainer._update = ["r1", "r2"]
    for parameter in trainer.model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    with pytest.raises(ForkLeftError, match=r"the gradient is not finite; .* whose rows are r1, r2"):
        trainer._get_grad_norm(trainer.model)


def test_what_cannot_be_trained_on(tmp_path):
    with pytest.raises(ForkLeftError, match="no known length; say with max_steps"):
        make_trainer(tmp_path, rows=Stream(), max_steps=-1)
    with pytest.raises(ForkLeftError, match="cannot be evaluated on"):
        make_trainer(tmp_path, held_out=Stream())
    with pytest.raises(ForkLeftError, match="found an iterator that can be read once"):
        make_trainer(tmp_path, rows=iter(ROWS))
    with pytest.raises(ForkLeftError, match="nothing to evaluate on"):
        make_trainer(tmp_path).evaluate()


def test_a_trainer_of_the_users_is_known_by_its_name(tmp_path):
    class Own(AdaptTrainer):
        pass

    trainer = make_trainer(tmp_path)
    assert "trainer" not in trainer._decisive
    own = Own(trainer.student, trainer.args, prepare_samples(trainer.student, ROWS, trainer.args))
    assert own._decisive["trainer"].endswith("Own")
