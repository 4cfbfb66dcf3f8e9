from dataclasses import replace

import pytest
import torch
from skips import slow

from forkleft.errors import ForkLeftError
from forkleft.lab import pretrain
from forkleft.lab.benchmarks import lab_set
from forkleft.lab.models import FAMILIES, MODELS, lab_student, load_folder, load_model
from forkleft.lab.pretrain import (
    STUDENTS,
    TEACHERS,
    Pretraining,
    Questions,
    build_model,
    main,
    train_last,
    train_student,
    train_teacher,
)
from forkleft.lab.questions import training_stream
from forkleft.lab.tokenizer import END_OF_TURN
from forkleft.objective.denoising import Sample, causal, draw, prediction_loss
from forkleft.prompts import prompt_ids
from forkleft.randomness import keyed_generator


@pytest.fixture
def few_questions(monkeypatch):
    """What is measured when a training ends is not what these tests are about."""
    monkeypatch.setattr(pretrain, "lab_set", lambda name: lab_set(name, 4))


def samples(tokenizer, count=32):
    """Questions that no training here has seen."""
    stream = training_stream(99)
    for number, question in zip(range(count), stream, strict=False):
        prompt = prompt_ids(tokenizer, [{"role": "user", "content": question.prompt}])
        yield Sample(prompt, tokenizer.encode(question.solution + END_OF_TURN, add_special_tokens=False), str(number))


@torch.no_grad()
def mean_loss(student, tasks):
    loss, _ = prediction_loss(student, tasks, dict.fromkeys(("denoising", "causal"), 1.0))
    return loss / sum(task.weight for task in tasks)


@pytest.mark.slow
def test_training_is_deterministic_in_its_recipe():
    recipe = replace(TEACHERS["weak"], steps=3, batch=8)
    one, _ = train_teacher(recipe)
    two, _ = train_teacher(recipe)
    other, _ = train_teacher(replace(recipe, seed=1))
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["block", slow("shifted")])
def test_student_training_is_deterministic_and_learns(family):
    recipe = replace(STUDENTS[family], causal_steps=2, steps=3, last_steps=2, batch=4)
    one, two = train_student(recipe, family), train_student(recipe, family)
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    recipe = Pretraining(layers=1, width=48, steps=60, batch=8, lr=1e-2, warmup=5)
    trained = train_student(recipe, family)
    fresh = lab_student(build_model(recipe, trained.tokenizer), trained.tokenizer, FAMILIES[family])
    losses = [
        mean_loss(s, [draw(s, sample, keyed_generator(1, sample.id), budget=64) for sample in samples(s.tokenizer)])
        for s in (trained, fresh)
    ]
    assert losses[0] < 0.6 * losses[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_cards_command_reaches_the_same_weights_step_by_step(name, tmp_path, few_questions):
    """A few steps of the card's own command, twice: the same bytes. The whole command takes minutes to run."""
    card = load_model(name).card
    role, _, kind, *_ = words = card.command.split()[3:]
    recipe = (TEACHERS if role == "teacher" else STUDENTS)[kind]
    told = {key: tuple(value) if isinstance(value, list) else value for key, value in card.recipe.items()}
    assert Pretraining(**told) == replace(recipe, seed=card.recipe["seed"])
    fewer = ["--steps", "5"] if role == "teacher" else ["--steps", "3", "--causal-steps", "3", "--last-steps", "2"]
    for folder in ("one", "two"):
        main([*words[:-1], str(tmp_path / folder), *fewer])
    weights = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in ("one", "two")]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_the_last_phase_has_its_own_questions_and_blocks():
    """It goes on from the weights of the phases before, and takes nothing from their streams."""
    recipe = replace(STUDENTS["block"], causal_steps=1, steps=2, last_steps=0, batch=4)
    one = train_student(recipe, "block")
    longer = replace(recipe, last_steps=2)
    train_last(one, longer)
    two = train_student(longer, "block")
    pairs = zip(one.model.parameters(), two.model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert two.family.block_size == 2 * recipe.first_block


@pytest.mark.slow
def test_training_learns():
    """A few dozen steps on a tiny model bring the loss well under that of a guess."""
    recipe = Pretraining(layers=1, width=48, steps=60, batch=16, lr=1e-2, warmup=5)
    model, tokenizer = train_teacher(recipe)
    tasks = [causal(sample) for sample in samples(tokenizer)]
    trained, fresh = (
        mean_loss(lab_student(each, tokenizer, FAMILIES["block"]), tasks)
        for each in (model, build_model(recipe, tokenizer))
    )
    assert trained < 0.6 * fresh


@pytest.mark.slow
def test_the_rates_of_the_phases(monkeypatch):
    """A warm-up and a cosine to a twentieth; in the last phase a warm-up, a plateau, and zero at the end."""
    rates = []

    class Watched(pretrain.AdaptTrainer):
        def log(self, logs, start_time=None):
            if "learning_rate" in logs:
                rates.append(logs["learning_rate"])
            super().log(logs, start_time)

    monkeypatch.setattr(pretrain, "AdaptTrainer", Watched)
    recipe = Pretraining(layers=1, width=24, steps=20, last_steps=40, last_lr=0.5, lr=1.0, warmup=4, batch=1)
    train_student(recipe, "block")
    first, last = rates[:20], rates[20:]
    assert first[:5] == pytest.approx([0, 0.25, 0.5, 0.75, 1.0]) and 0.05 < first[-1] < 0.07
    assert last[24:31] == pytest.approx([0.48, *[0.5] * 6]) and last[-1] == pytest.approx(0.05)


def test_questions_can_be_read_again_from_where_they_start():
    stream = training_stream(0, choice_share=0.5)
    expected = [next(stream) for _ in range(6)]
    rows = Questions(2, seed=0, choice_share=0.5)
    for _ in range(2):
        found = [row for row, _ in zip(rows, range(4), strict=False)]
        assert found == [
            {"question": item.prompt, "answer": item.answer, "solution": item.solution} for item in expected[2:]
        ]


def test_main_writes_a_model_with_a_card(tmp_path, few_questions):
    folder = tmp_path / "teacher"
    main(["teacher", "--strength", "weak", "--steps", "2", "--seed", "7", "--output", str(folder)])
    loaded = load_folder(folder)
    assert loaded.card.recipe["steps"] == 2
    assert loaded.card.command.endswith("--strength weak --steps 2 --seed 7 --output teacher-weak")
    page = (folder / "README.md").read_text()
    assert loaded.card.command in page and loaded.card.sha256 in page
    with pytest.raises(ForkLeftError, match="exists already"):
        main(["teacher", "--strength", "weak", "--steps", "2", "--output", str(folder)])


@pytest.mark.slow
def test_main_writes_a_student(tmp_path, few_questions):
    folder = tmp_path / "student"
    words = "student --family shifted --steps 2 --causal-steps 1 --seed 1 --last-steps 1 --output"
    main([*words.split(), str(folder)])
    loaded = load_folder(folder)
    assert loaded.student.family == FAMILIES["shifted"]
    assert (
        "student --family shifted --steps 2 --seed 1 --causal-steps 1 --last-steps 1 --output student-shifted-2"
        in loaded.card.command
    )


def test_no_steps_is_an_error(tmp_path):
    with pytest.raises(ForkLeftError, match="--steps must be at least 1, found 0"):
        main(["teacher", "--strength", "weak", "--steps", "0", "--output", str(tmp_path / "x")])
