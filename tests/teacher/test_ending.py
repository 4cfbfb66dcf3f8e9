import json

import pytest
import torch
from checkpoints_on_disk import write_autoregressive, write_weights
from safetensors.torch import load_file, save_file
from tiny import tiny_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    OPTConfig,
    OPTForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
)

from forkleft.errors import ForkLeftError
from forkleft.teacher.ending import FinalNorm, read_ending

SIZES = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}


def without_weights(folder):
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))


def read(folder, dtype=torch.float32):
    return read_ending(folder, without_weights(folder), dtype)


def spread(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.5, 0.3)
    return model.eval()


def gemma():
    """Its norms multiply by one more than their weights."""
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            **SIZES, intermediate_size=48, num_key_value_heads=2, head_dim=8, layer_types=["full_attention"]
        )
    )


def stable():
    """LayerNorm, with a mean and a bias."""
    return StableLmForCausalLM(StableLmConfig(**SIZES, intermediate_size=48, num_key_value_heads=2))


MODELS = {name: (lambda name=name: tiny_model(name)) for name in ("qwen2", "qwen3", "llama", "qwen3_moe")}
MODELS |= {"gemma": gemma, "stablelm": stable}


@torch.no_grad()
def hidden_of(model, ids=((1, 5, 9, 3),)):
    return model.base_model(input_ids=torch.tensor(ids), use_cache=False)[0][0]


@pytest.mark.parametrize("name", MODELS)
def test_head_and_norm_of_any_class(tmp_path, name):
    """The hidden states of the whole model came out of its norm; the same at another scale, or unnormed, did not."""
    model = spread(MODELS[name]())
    model.save_pretrained(tmp_path)
    ending = read(tmp_path)
    assert torch.equal(ending.head_VE, model.get_output_embeddings().weight)
    hidden_TE = hidden_of(model)
    assert ending.norm.came_out(hidden_TE)
    assert ending.norm.came_out(hidden_TE.bfloat16())
    for other_TE in (1.1 * hidden_TE, hidden_TE.roll(1, dims=-1), torch.nn.functional.normalize(hidden_TE, dim=-1)):
        assert not ending.norm.came_out(other_TE)
    # One bad row is enough.
    assert not ending.norm.came_out(torch.cat([hidden_TE, 0.9 * hidden_TE[:1]]))
    assert ending.norm.came_out(hidden_TE[:0])


def test_a_scale_of_zero_leaves_nothing_to_see():
    norm = FinalNorm(torch.tensor([0.0, 1.0]), torch.zeros(2))
    assert norm.came_out(torch.tensor([[3.0, 9.0]]))


def test_a_class_that_keeps_its_norm_elsewhere(tmp_path):
    model = OPTForCausalLM(OPTConfig(**SIZES, ffn_dim=48, word_embed_proj_dim=32))
    model.save_pretrained(tmp_path)
    ending = read(tmp_path)
    assert ending.norm is None
    assert torch.equal(ending.head_VE, model.get_output_embeddings().weight)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shards", [1, 3])
def test_only_the_files_of_the_ending_are_opened(tmp_path, tied, shards):
    model = write_autoregressive(tmp_path, tied=tied)
    if shards > 1:
        tensors = load_file(tmp_path / "model.safetensors")
        (tmp_path / "model.safetensors").unlink()
        write_weights(tmp_path, tensors, shards)
        places = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
        head = "model.embed_tokens.weight" if tied else "lm_head.weight"
        for file in set(places.values()) - {places[head], places["model.norm.weight"]}:
            (tmp_path / file).unlink()
    ending = read(tmp_path, torch.bfloat16)
    assert torch.equal(ending.head_VE, model.get_output_embeddings().weight.bfloat16())


def test_a_head_that_is_missing(tmp_path):
    write_autoregressive(tmp_path, tied=False)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ForkLeftError, match=r"not those that its config.json describes; missing: lm_head.weight"):
        read(tmp_path)


def test_a_head_of_another_shape_or_quantised_or_untied(tmp_path):
    model = write_autoregressive(tmp_path, tied=True)
    tensors = load_file(tmp_path / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]

    def written(**changes):
        save_file(
            tensors | {name.replace("__", "."): value for name, value in changes.items()},
            tmp_path / "model.safetensors",
        )
        return tmp_path

    with pytest.raises(ForkLeftError, match="has shape"):
        read(written(model__embed_tokens__weight=embedding[:-1].clone()))
    with pytest.raises(ForkLeftError, match="stored as I8; expected floating point"):
        read(written(model__embed_tokens__weight=embedding.to(torch.int8)))
    with pytest.raises(ForkLeftError, match=r"ties the output head .* but lm_head.weight differs"):
        read(written(lm_head__weight=embedding + 1))
    assert torch.equal(read(written(lm_head__weight=embedding.clone())).head_VE, model.get_output_embeddings().weight)


def test_a_damaged_file(tmp_path):
    write_autoregressive(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ForkLeftError, match="is damaged or truncated"):
        read(tmp_path)


def test_the_fingerprint_follows_the_weights(tmp_path):
    write_autoregressive(tmp_path)
    before = read(tmp_path).fingerprint
    assert read(tmp_path, torch.bfloat16).fingerprint == before
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    assert read(tmp_path).fingerprint != before
