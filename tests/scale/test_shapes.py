import json

import pytest
import torch
from documents import ROOT
from peft import LoraConfig, get_peft_model
from tiny import ARCHITECTURES, tiny_model

from forkleft.errors import ForkLeftError
from forkleft.files import read_yaml
from forkleft.lab.models import model_path
from forkleft.scale.shapes import KNOWN_CONFIGS, config_of, shape_of, student_of, teacher_of
from forkleft.students import load_student


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_shape_is_that_of_the_model(architecture):
    model = tiny_model(architecture)
    shape = shape_of("tiny", model)
    assert shape.weights == sum(weight.numel() for weight in model.parameters())
    assert shape.outside == sum(weight.numel() for name, weight in model.named_parameters() if "layers" not in name)
    linear = sum(
        module.weight.numel() for module in model.model.layers.modules() if isinstance(module, torch.nn.Linear)
    )
    if architecture == "qwen3_moe":
        # Two of four experts, of three matrices each; and the router.
        linear += 2 * (2 * 3 * 32 * 16 + 4 * 32)
    assert shape.linear == linear
    assert (shape.layers, shape.width, shape.words) == (2, 32, 40)
    assert (shape.queries, shape.keys) == (32, 16)
    assert (shape.inner, shape.experts) == ((16, 2) if architecture == "qwen3_moe" else (48, 0))
    assert shape.normed == architecture.startswith("qwen3")
    assert shape.cache(2) == 2 * 2 * 16 * 2


def test_adapters_are_sums_of_inputs_and_outputs():
    # Queries 32, keys and values 16, output 32, and three matrices of 32 x 48.
    shape = shape_of("tiny", tiny_model())
    assert shape.pairs == 2 * (64 + 48 + 48 + 64 + 3 * 80)
    assert (shape.stacked, shape.expert_pairs, shape.folded) == (0, 0, 0)


@pytest.mark.parametrize(
    "targets",
    [
        "all-linear",
        ["q_proj", "o_proj"],
        ["k_proj", "down_proj"],
        ["q_proj", "gate_proj", "up_proj"],
        r".*\.self_attn\.[qv]_proj",
    ],
    ids=str,
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_adapters_are_those_that_peft_makes(architecture, targets):
    """On experts, too: PEFT adapts each of them, and gate and up together with twice the rank."""
    model = tiny_model(architecture)
    shape = shape_of("tiny", model, targets)
    config = LoraConfig(r=3, target_modules=targets, exclude_modules=["lm_head"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    assert 3 * shape.pairs == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    experts = {name: weight for name, weight in adapted.named_parameters() if ".experts." in name}
    on_experts = sum(weight.numel() for weight in experts.values() if weight.requires_grad)
    assert 3 * shape.expert_pairs == on_experts
    assert shape.stacked == sum(weight.numel() for weight in experts.values() if weight.dim() == 3)
    assert (0 < shape.folded <= shape.stacked) == (on_experts > 0)


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        # The numbers that the model cards give, of all weights and of those outside embedding and head.
        ("Qwen/Qwen3-4B", 4.0, 3.6),
        ("Qwen/Qwen3-8B-Base", 8.2, 6.95),
        ("Qwen/Qwen2.5-7B", 7.61, 6.53),
        ("Qwen/Qwen3-30B-A3B-Base", 30.5, 2.7),
        ("nvidia/Efficient-DLM-4B", 4.0, 3.6),
    ],
)
def test_known_models_have_as_many_weights_as_their_cards_say(name, billions, active):
    shape, source = teacher_of(name)
    assert shape.weights / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.linear / 1e9 == pytest.approx(active, rel=0.02)
    assert source == "known sizes"


def test_all_models_of_the_recipes_are_known():
    for path in (ROOT / "recipes").glob("*.yaml"):
        recipe = read_yaml(path, "recipe")
        for name in (recipe["student"], recipe["teacher"]):
            assert name.startswith("lab:") or name in KNOWN_CONFIGS


def test_a_student_of_the_lab_has_its_own_family():
    shape, family, source = student_of("lab:student-shifted")
    student = load_student("lab:student-shifted")
    assert family == student.family
    assert shape.weights == sum(weight.numel() for weight in student.model.parameters())
    assert source == "its config.json"
    assert student_of("lab:student-shifted", block_size=8)[1].block_size == 8


def test_a_config_file_wins_over_everything(tmp_path):
    config = json.loads((model_path("student-block") / "config.json").read_text())
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config | {"num_hidden_layers": 1, "layer_types": ["full_attention"]}))
    shape, family, source = student_of("nvidia/Efficient-DLM-4B", file=file, family="efficient-dlm")
    assert (shape.layers, family.name, source) == (1, "efficient-dlm", str(file))
    assert config_of("any/name", tmp_path)[0]["num_hidden_layers"] == 1


def test_what_is_missing_or_unknown_is_said(tmp_path):
    with pytest.raises(ForkLeftError, match=r"there is no file .*name the config.json of a/b, or its folder"):
        config_of("a/b", tmp_path / "none.json")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises(ForkLeftError, match="expected a causal LM that Transformers knows, found model_type 'no-such"):
        teacher_of("a/b", file=tmp_path)
    # A stock checkpoint does not say that it is a diffusion model.
    with pytest.raises(ForkLeftError, match="say of which family"):
        student_of("Qwen/Qwen3-4B")


@pytest.mark.parametrize("kind", ["gpt2", "mamba"])
def test_layers_of_another_build_cannot_be_counted(tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    with pytest.raises(ForkLeftError, match=f"model_type '{kind}' has layers that the plan cannot count"):
        teacher_of("a/b", file=tmp_path)


def test_without_the_hub_a_file_is_asked_for(monkeypatch):
    def unreached(*arguments, **settings):
        raise ConnectionError("no network")

    monkeypatch.setattr("forkleft.scale.shapes.PretrainedConfig.get_config_dict", unreached)
    with pytest.raises(ForkLeftError, match=r"the hub was not reached.*or give its config\.json as a file"):
        config_of("some/model")
