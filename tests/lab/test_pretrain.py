from dataclasses import replace

import pytest
import torch

from forkleft.errors import ForkLeftError
from forkleft.lab.models import load_folder
from forkleft.lab.pretrain import TEACHERS, Recipe, build_model, learning_rate, main, teacher_batch, train_teacher
from forkleft.lab.questions import training_stream
from forkleft.lab.tokenizer import END_OF_TURN, build_tokenizer


def test_training_is_deterministic_in_its_recipe():
    recipe = replace(TEACHERS["weak"], steps=3, batch=8)
    one, _ = train_teacher(recipe)
    two, _ = train_teacher(recipe)
    other, _ = train_teacher(replace(recipe, seed=1))
    pairs = list(zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_training_learns():
    """A few dozen steps on a tiny model bring the loss well under that of a guess."""
    recipe = Recipe(layers=1, width=48, steps=60, batch=16, lr=1e-2, warmup=5)
    model, tokenizer = train_teacher(recipe)
    ids_BT, labels_BT = teacher_batch(training_stream(99), 32, tokenizer)
    with torch.no_grad():
        trained = model(input_ids=ids_BT, labels=labels_BT).loss
        fresh = build_model(recipe, tokenizer)(input_ids=ids_BT, labels=labels_BT).loss
    assert trained < 0.6 * fresh


def test_a_batch_asks_for_the_solution_and_its_stop_token_only():
    tokenizer = build_tokenizer()
    ids_BT, labels_BT = teacher_batch(training_stream(0, choice_share=0.5), 16, tokenizer)
    expected = training_stream(0, choice_share=0.5)
    for ids_T, labels_T in zip(ids_BT, labels_BT, strict=True):
        item = next(expected)
        asked = labels_T[labels_T != -100]
        assert tokenizer.decode(asked) == item.solution + END_OF_TURN
        assert torch.equal(ids_T[labels_T != -100], asked)
        text = tokenizer.decode(ids_T[ids_T != tokenizer.pad_token_id])
        assert text == f"<|user|>{item.prompt}<|assistant|>{item.solution}{END_OF_TURN}"


def test_learning_rate_warms_up_and_falls_to_a_twentieth():
    recipe = Recipe(layers=1, width=24, steps=1000, lr=1.0, warmup=10)
    assert learning_rate(recipe, 0) == pytest.approx(0.1)
    assert learning_rate(recipe, 9) == learning_rate(recipe, 10) == pytest.approx(1.0)
    assert learning_rate(recipe, 999) == pytest.approx(0.05, abs=1e-3)


def test_main_writes_a_model_with_a_card(tmp_path):
    folder = tmp_path / "teacher"
    main(["teacher", "--strength", "weak", "--steps", "2", "--seed", "7", "--output", str(folder)])
    loaded = load_folder(folder)
    assert loaded.card.recipe["steps"] == 2
    assert loaded.card.command.endswith("--strength weak --steps 2 --seed 7 --output teacher-weak")
    page = (folder / "README.md").read_text()
    assert loaded.card.command in page and loaded.card.sha256 in page
    with pytest.raises(ForkLeftError, match="exists already"):
        main(["teacher", "--strength", "weak", "--steps", "2", "--output", str(folder)])


def test_no_steps_is_an_error(tmp_path):
    with pytest.raises(ForkLeftError, match="--steps must be at least 1, found 0"):
        main(["teacher", "--strength", "weak", "--steps", "0", "--output", str(tmp_path / "x")])
