import copy
import json
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import trainer_runs
from exact import assert_exact
from naive import naive_answer, naive_generate, naive_update
from peft import PeftModel
from questions import Question
from skips import slow
from tiny import STOP, plain_copy
from trainer_runs import ROWS, VERDICTS, in_float32, make_trainer, run_program, state_digest, without_times

from forkleft import rollout
from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.randomness import keyed_generator
from forkleft.students import KNOWN_FAMILIES
from forkleft.students.families import Decoding
from forkleft.teacher.answers import Answer
from forkleft.train import checkpoints
from forkleft.train.data import Example
from forkleft.train.trainer import ForkLeftTrainer
from forkleft.verify import Verifier

run = partial(run_program, Path(trainer_runs.__file__))


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
    assert logged["loss"] == in_float32(loss.item())
    for (name, theirs), ours in zip(before.named_parameters(), trainer.student.model.parameters(), strict=True):
        gradient = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
        assert_exact(theirs.detach() - gradient, ours, name)


@pytest.mark.slow
@pytest.mark.parametrize("verdicts", ["one-in-four", "all-routes", "excluded"])
def test_accumulation_and_processes_change_nothing(tmp_path, verdicts):
    """4 questions at once = 2 accumulation steps of 2 = 2 processes of 2, also where one process has nothing.

    The last batch has a single question, so that one of the processes has none at all.
    """
    # Plain descent: Adam would turn the rounding of a gradient near 0 into a step of its own.
    changes = {"max_steps": 3, "seed": 1, "verdicts": verdicts, "optim": "sgd", "learning_rate": 0.1, "questions": 9}
    changes["dtype"] = "float64"
    make_runs = {
        "whole": ({"per_device_train_batch_size": 4}, 1),
        "accumulated": ({"per_device_train_batch_size": 2, "questions_per_update": 4}, 1),
        "processes": ({"questions_per_update": 4}, 2),
    }
    weights = {}
    for name, (batching, processes) in make_runs.items():
        run(tmp_path / name, changes | batching, processes=processes)
        weights[name] = torch.load(tmp_path / name / "weights.pt")
    for name in ("accumulated", "processes"):
        for key, tensor in weights["whole"].items():
            assert_exact(weights[name][key], tensor, (name, key))
    rows = {name: without_times(tmp_path / name / "metrics.jsonl") for name in make_runs}
    assert [row["questions"] for row in rows["whole"]] == [4, 4, 1]
    for name in ("accumulated", "processes"):
        for one, two in zip(rows["whole"], rows[name], strict=True):
            assert one["loss"] == in_float32(two["loss"])
            # An epoch is counted in batches, which differ.
            other = {"epoch": 0, "loss": 0}
            assert one | other == pytest.approx(two | other, abs=1e-12)
    routes = {name: routes_by_step(tmp_path / name) for name in make_runs}
    assert routes["whole"] == routes["accumulated"] == routes["processes"]
    assert [len(found) for found in routes["whole"].values()] == [4, 4, 1]
    for row, found in zip(rows["whole"], routes["whole"].values(), strict=True):
        assert row["route_exclude"] == list(found.values()).count("EXCLUDE")
    if verdicts == "one-in-four":
        assert any(row["route_exclude"] >= 3 for row in rows["processes"])
    if verdicts == "excluded":
        assert all(torch.equal(tensor, weights["processes"][key]) for key, tensor in weights["whole"].items())


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


CHECKPOINTED = {
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 2,
    "logging_steps": 3,
    "lr_scheduler_type": "linear",
}
KINDS = {
    "plain": ({}, 1),
    "adapters, accumulated": ({"lora": True, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, 1),
    "processes": ({"per_device_train_batch_size": 2}, 2),
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """The folder of a run of each kind, made when it is asked for."""
    made = {}

    def find(kind):
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("whole") / "run"
            changes, processes = KINDS[kind]
            run(made[kind], CHECKPOINTED | changes, processes=processes)
        return made[kind]

    return find


def routes_by_step(folder):
    rows = [json.loads(line) for line in (folder / "routes.jsonl").read_text().splitlines()]
    return {row["step"]: dict(zip(row["ids"], row["routes"], strict=True)) for row in rows}


# A quick one is among the tests of faults.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "moment"),
    [
        ("plain", "step-1"),
        ("plain", "update-4"),
        ("plain", "save-checkpoint-4"),
        ("plain", "saved-4"),
        ("plain", "step-6"),
        ("adapters, accumulated", "step-3"),
        ("processes", "step-5"),
    ],
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, uninterrupted, kind, moment):
    folder, whole, (changes, processes) = tmp_path / "run", uninterrupted(kind), KINDS[kind]
    assert run(folder, CHECKPOINTED | changes, "", moment, processes=processes) == "killed"
    # Before the first checkpoint there is nothing to resume.
    resume = "" if moment == "step-1" else "resume"
    run(folder, CHECKPOINTED | changes, resume, processes=processes)
    assert (folder / "digest").read_text() == (whole / "digest").read_text()
    (weights,) = folder.glob("*model.safetensors")
    assert weights.read_bytes() == (whole / weights.name).read_bytes()
    # Processes append to the cache in any order.
    ours, theirs = (sorted((f / "teacher_answers.jsonl").read_text().splitlines()) for f in (folder, whole))
    assert ours == theirs
    assert without_times(folder / "metrics.jsonl") == without_times(whole / "metrics.jsonl")
    assert [row["step"] for row in without_times(whole / "metrics.jsonl")] == [2, 3, 4, 6]
    assert (folder / "routes.jsonl").read_text() == (whole / "routes.jsonl").read_text()
    assert list(routes_by_step(whole)) == [1, 2, 3, 4, 5, 6]
    ours, theirs = (
        json.loads((f / "checkpoint-6" / "trainer_state.json").read_text(encoding="utf-8")) for f in (folder, whole)
    )
    assert ours["global_step"] == theirs["global_step"]
    assert [row["loss"] for row in ours["log_history"]] == [row["loss"] for row in theirs["log_history"]]
    assert not (folder / checkpoints.STAGING).exists()


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
    with pytest.raises(ForkLeftError, match="holds a finished run; name another folder"):
        make_trainer(tmp_path, **CHECKPOINTED | {"max_steps": 2}).train()
    with pytest.raises(ForkLeftError, match="no whole checkpoint to resume from"):
        make_trainer(tmp_path / "empty").train(resume_from_checkpoint=True)


@pytest.mark.parametrize("schedule", [slow("constant"), "constant_with_warmup", slow("linear")])
def test_a_run_may_be_made_longer(tmp_path, caplog, schedule):
    """With a schedule that knows no end it is the run that was as long from the start; else that is said."""
    settings = CHECKPOINTED | {"lr_scheduler_type": schedule, "warmup_steps": 2, "logging_steps": 1, "max_steps": 4}
    whole = make_trainer(tmp_path / "whole", **settings | {"max_steps": 6})
    whole.train()
    make_trainer(tmp_path / "grown", **settings).train()
    grown = make_trainer(tmp_path / "grown", **settings | {"max_steps": 6})
    grown.train(resume_from_checkpoint=True)
    assert grown.state.global_step == grown.state.max_steps == 6
    rates = {
        name: [row["learning_rate"] for row in without_times(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "grown")
    }
    # The first update behind the old end has the rate of the new schedule at once.
    assert rates["grown"][4:] == rates["whole"][4:]
    assert ("with a constant schedule it would be, byte for byte" in caplog.text) == (schedule == "linear")
    assert (state_digest(grown) == state_digest(whole)) == (schedule != "linear")
    assert (rates["grown"] == rates["whole"]) == (schedule != "linear")
    if schedule == "constant":
        ours, theirs = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("grown", "whole"))
        assert ours == theirs
        with pytest.raises(ForkLeftError, match=r"max_steps was 6, is 5 \(max_steps may grow, and not shrink\)"):
            make_trainer(tmp_path / "grown", **settings | {"max_steps": 5}).train(resume_from_checkpoint=True)
    card = (tmp_path / "grown" / "README.md").read_text()
    assert ("| 0.001, linear, max_steps was 4 before update 5 |" in card) == (schedule == "linear")
    if schedule == "linear":
        again = make_trainer(tmp_path / "grown", **settings | {"max_steps": 8})
        with pytest.raises(
            ForkLeftError, match=r"holds checkpoint-4, checkpoint-6 behind checkpoint-2, which a run that goes on"
        ):
            again.train(resume_from_checkpoint=str(tmp_path / "grown" / "checkpoint-2"))


def test_the_learning_rate_falls_where_accuracy_stands_still(tmp_path):
    trainer = make_trainer(
        tmp_path,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=1,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0},
        trainer={"eval_dataset": ROWS[:2]},
    )
    trainer.train()
    rates = [row["learning_rate"] for row in trainer.state.log_history if "learning_rate" in row]
    assert rates[-1] < rates[0]


def test_there_must_be_something_to_evaluate_on(tmp_path):
    with pytest.raises(ForkLeftError, match="the data set is empty"):
        make_trainer(tmp_path).evaluate([])


def test_evaluation_and_the_best_checkpoint(tmp_path):
    """The second of three evaluations is the best, by script."""
    verdicts = iter([[True] * right + [False] * (5 - right) for right in (2, 4, 3)])
    trainer = make_trainer(
        tmp_path,
        max_steps=6,
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        save_total_limit=1,
        trainer={"eval_dataset": ROWS[:5]},
    )
    trainer.verifier = SimpleNamespace(judge=lambda *batch, ids: next(verdicts))
    trainer.train()
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
    assert [folder.name for folder in tmp_path.glob("checkpoint-*")] == ["checkpoint-4"]
    best = (tmp_path / "checkpoint-4" / "model.safetensors").read_bytes()
    assert (tmp_path / "model.safetensors").read_bytes() == best
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(row["eval_count"], row["eval_accuracy"]) for row in rows if "eval_count" in row] == [
        (5, 0.4),
        (5, 0.8),
        (5, 0.6),
    ]
    assert "80.0% of 5" in (tmp_path / "README.md").read_text()


def test_evaluation_on_sets_by_name_and_on_rows(tmp_path):
    trainer = make_trainer(tmp_path, trainer={"eval_dataset": {"one": ROWS[:2], "two": ROWS[2:5]}})
    found = trainer.evaluate()
    assert {name: found[name] for name in found if "count" in name} == {"eval_one_count": 2, "eval_two_count": 3}
    assert trainer.evaluate(ROWS[:4])["eval_count"] == 4
    with pytest.raises(ForkLeftError, match="nothing to evaluate on"):
        make_trainer(tmp_path / "other").evaluate()


def test_evaluation_decodes_as_it_is_told(tmp_path, monkeypatch):
    used = []
    real = rollout.decode

    def decode(student, prompts, decoding, **settings):
        used.append(decoding)
        return real(student, prompts, decoding, **settings)

    monkeypatch.setattr("forkleft.train.student_trainer.decode", decode)
    make_trainer(tmp_path / "one").evaluate(ROWS[:2])
    with pytest.raises(ForkLeftError, match="the native decoding is known of the families"):
        make_trainer(tmp_path / "two", eval_decoding="native")
    monkeypatch.setattr("trainer_runs.FAMILIES", [KNOWN_FAMILIES["sdar"].family])
    make_trainer(tmp_path / "three", eval_decoding="native").evaluate(ROWS[:2])
    assert used == [Decoding(), Decoding(threshold=0.85)]


def test_bf16_autocast_learns_in_full_precision_weights(tmp_path):
    one, two = make_trainer(tmp_path / "one", max_steps=2), make_trainer(tmp_path / "two", max_steps=2, bf16=True)
    before = copy.deepcopy(one.model.state_dict())
    for trainer in (one, two):
        trainer.train()
        assert all(parameter.dtype == torch.float32 for parameter in trainer.model.parameters())
    moved = [(value - before[name]).abs().max() for name, value in two.model.state_dict().items()]
    assert min(moved) > 0
    assert any(not torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))


def test_gradient_checkpointing_changes_nothing(tmp_path):
    one = make_trainer(tmp_path / "one", max_steps=2, dtype=torch.float64)
    one.train()
    two = make_trainer(tmp_path / "two", max_steps=2, gradient_checkpointing=True, dtype=torch.float64)
    two.train()
    assert two.model.is_gradient_checkpointing
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert_exact(a, b)


@pytest.mark.slow
def test_compiled_layers_change_nothing(tmp_path):
    """Accelerate does not compile the whole model; the decoder layers are compiled, and the weights end the same."""
    one = make_trainer(tmp_path / "one", max_steps=2, dtype=torch.float64)
    one.train()
    settings = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    torch._dynamo.reset()
    two = make_trainer(tmp_path / "two", max_steps=2, dtype=torch.float64, **settings)
    two.train()
    assert two.model_wrapped is two.model
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert_exact(a, b)


def test_lora_trains_saves_and_merges(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2, lora=True, dtype=torch.float64)
    before = copy.deepcopy(dict(trainer.model.named_parameters()))
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        assert torch.equal(parameter, before[name]) == ("lora" not in name), name
    assert (tmp_path / "adapter_model.safetensors").exists()
    fresh = make_trainer(tmp_path / "fresh", dtype=torch.float64).student.model
    merged = PeftModel.from_pretrained(fresh, tmp_path).merge_and_unload()
    ids = torch.tensor([[1, 2, 3]])
    ours = trainer.model.merge_and_unload()
    for model in (merged, ours):
        model.set_attn_implementation("sdpa")
    assert_exact(merged(ids).logits, ours(ids).logits)


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


def test_an_answer_that_the_budget_cut_does_not_teach_to_stop(tmp_path):
    collector = make_trainer(tmp_path, supervision="sft").collector
    example = Example("q", ({"role": "user", "content": "?"},), "1", None)
    ids = collector._reference(example, Answer("xyz", stopped=True))
    assert (ids[-1], len(ids)) == (STOP, 4)
    assert collector._reference(example, Answer("xyz", stopped=False)) == ids[:-1]


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
    with pytest.raises(ForkLeftError, match=r"update 1: the gradient is not finite; .*questions are q\d+ \((CE|LEFT)"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_only_the_questions_of_the_update_are_blamed(tmp_path):
    trainer, asked = make_trainer(tmp_path, max_steps=3, logging_steps=10), []
    collect = trainer.collector.collect
    trainer.collector.collect = lambda examples, *a, **b: asked.append(examples) or collect(examples, *a, **b)

    def break_the_third(gradient):
        return gradient * float("nan") if trainer.state.global_step == 2 else gradient

    trainer.student.model.model.layers[0].mlp.up_proj.weight.register_hook(break_the_third)
    with pytest.raises(ForkLeftError, match="update 3: the gradient is not finite") as caught:
        trainer.train()
    named = set(re.findall(r"q\d+", str(caught.value)))
    assert named and named <= {example.id for example in asked[2]}


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
    """Weights that break once the responses are written: the loss is the first to see it."""
    trainer = make_trainer(tmp_path)
    collect = trainer.collector.collect

    def break_after(*arguments, **settings):
        collected = collect(*arguments, **settings)
        with torch.no_grad():
            trainer.student.model.lm_head.weight.fill_(float("nan"))
        return collected

    trainer.collector.collect = break_after
    with pytest.raises(ForkLeftError, match=r"question q\d+ \((CE|LEFTOPD|GOLD)\): the loss is nan"):
        trainer.train()


def test_a_verifier_of_the_user_s_judges_and_is_named(tmp_path):
    """Given once: references, responses of both models, and evaluations."""
    seen = []

    def mine(responses, answers):
        seen.extend(zip(responses, answers, strict=True))
        return [True] * len(responses)

    trainer = make_trainer(
        tmp_path,
        max_steps=2,
        save_strategy="steps",
        save_steps=1,
        verdicts=None,
        trainer={"eval_dataset": ROWS[:3], "verifier": mine},
    )
    assert seen[0] == ("xyz#5", "0") and len(seen) == 15
    trainer.train()
    assert trainer.evaluate()["eval_accuracy"] == 1
    name = trainer.verifier.kind
    assert name.endswith("mine") and f"| verifier | {name} |" in (tmp_path / "README.md").read_text()
    assert trainer._decisive["verifier"] == name

    def fails(responses, answers):
        raise ValueError("no")

    fails.__qualname__ = mine.__qualname__
    settings = {"max_steps": 3, "verdicts": None, "reference_template": "{solution}"}
    other = make_trainer(tmp_path, **settings, trainer={"verifier": mine})
    other.collector.verifier = Verifier.of(fails)
    with pytest.raises(ForkLeftError, match=r"the verifier \S+mine raised ValueError on question q\d+: no; what was"):
        other.train(resume_from_checkpoint=True)
    # What was finished is there, and the run goes on once the verifier is mended.
    again = make_trainer(tmp_path, **settings, trainer={"verifier": mine})
    again.train(resume_from_checkpoint=True)
    assert again.state.global_step == 3
