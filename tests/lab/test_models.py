import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from forkleft.errors import ForkLeftError
from forkleft.evaluate.evaluation import load_evaluated
from forkleft.lab.models import FAMILIES, MODELS, STUDENTS, TEACHERS, load_folder, load_model, model_path, read_card
from forkleft.students.bundled import LAB_VERSION


@pytest.fixture
def copied(tmp_path) -> Path:
    folder = tmp_path / "teacher-weak"
    shutil.copytree(model_path("teacher-weak"), folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_shipped_models_load_and_match_their_cards(name):
    loaded = load_model(name)
    assert type(loaded.model) is Qwen3ForCausalLM
    assert loaded.card.name == name
    assert loaded.card.lab_version == LAB_VERSION
    assert loaded.model.num_parameters() == loaded.card.parameters < 1_000_000
    assert f"--output {name}" in loaded.card.command
    assert not loaded.model.training


def test_a_shipped_folder_is_an_ordinary_transformers_folder():
    folder = model_path("teacher-weak")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size == len(tokenizer)
    assert len(model.generation_config.eos_token_id) == 2


def test_the_cards_show_three_strengths():
    strong, medium, weak = (read_card(model_path(name)).accuracy["chain-4"] for name in TEACHERS)
    assert strong.accuracy >= 0.97
    assert weak.interval[1] < medium.interval[0]


def test_the_cards_leave_the_students_room_to_learn():
    for name in STUDENTS:
        assert 0.3 <= read_card(model_path(name)).accuracy["chain-4"].accuracy <= 0.65


def test_a_card_says_whether_a_model_is_a_student():
    assert load_model("teacher-weak").student is None
    for name in STUDENTS:
        loaded = load_model(name)
        assert loaded.student.family == FAMILIES[loaded.card.family]
        assert loaded.student.vocabulary.stop_ids == tuple(loaded.model.generation_config.eos_token_id)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_evaluated_as_it_would_be_by_its_name(name):
    """The kind, the weights and the stop ids of `forkleft eval --model lab:NAME`."""
    ours, theirs = load_model(name).evaluated, load_evaluated(f"lab:{name}", autoregressive=name in TEACHERS)
    assert type(ours) is type(theirs)
    weights = theirs.model.state_dict()
    assert all(torch.equal(one, weights[key]) for key, one in ours.model.state_dict().items())
    both = [one.stop_ids if name in TEACHERS else (one.family, one.vocabulary.stop_ids) for one in (ours, theirs)]
    assert both[0] == both[1]


def test_all_weights_together_stay_small():
    size = sum(file.stat().st_size for name in MODELS for file in model_path(name).iterdir())
    assert size < 12_000_000


def test_unknown_model_names_what_exists():
    with pytest.raises(ForkLeftError, match="no lab model 'teacher'; there are student-block, student-block-2, "):
        load_model("teacher")


def test_missing_weights(copied):
    (copied / "model.safetensors").unlink()
    with pytest.raises(ForkLeftError, match=r"model\.safetensors is missing; reinstall"):
        load_folder(copied)


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_weights(copied, damage):
    weights = copied / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "cut":
        data = data[:-100]
    else:
        data[-7] ^= 1
    weights.write_bytes(data)
    with pytest.raises(ForkLeftError, match=r"model\.safetensors is damaged: its card gives sha256"):
        load_folder(copied)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
def test_other_files_missing_or_damaged(copied, name):
    (copied / name).write_text("{")
    with pytest.raises(ForkLeftError, match="teacher-weak is damaged"):
        load_folder(copied)
    (copied / name).unlink()
    with pytest.raises(ForkLeftError, match=f"{name} is missing; reinstall"):
        load_folder(copied)


def test_missing_and_damaged_card(copied):
    card = copied / "card.json"
    fields = json.loads(card.read_text())
    del fields["command"]
    for text in ("{", "[]", "{}", json.dumps(fields)):
        card.write_text(text)
        with pytest.raises(ForkLeftError, match=r"card\.json is damaged"):
            load_folder(copied)
    card.unlink()
    with pytest.raises(ForkLeftError, match=r"card\.json is missing"):
        load_folder(copied)
