import pytest
import torch
from checkpoints_on_disk import qwen_config, write_checkpoint
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from forkleft.errors import ForkLeftError
from forkleft.students.formats import (
    is_computed,
    stock_class,
    stock_config,
    tensor_views,
    with_vocab_size,
)


def test_fields_reach_the_stock_configuration():
    fields = qwen_config("sdar", "SDARForCausalLM", True, head_dim=16, attention_bias=True, rope_theta=5000.0)
    config = stock_config(fields | {"rms_norm_eps": 1e-4, "num_key_value_heads": 1, "hidden_act": "gelu"})
    assert isinstance(config, Qwen3Config) and stock_class(config).__name__ == "Qwen3ForCausalLM"
    assert (config.head_dim, config.attention_bias, config.rms_norm_eps) == (16, True, 1e-4)
    assert (config.num_key_value_heads, config.hidden_act, config.tie_word_embeddings) == (1, "gelu", True)
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 5000.0}


def test_rotary_scaling_in_old_and_new_writing():
    plain = qwen_config("qwen2", "Qwen2ForCausalLM", False)
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    old = stock_config(plain | {"rope_scaling": yarn})
    assert isinstance(old, Qwen2Config) and old.rope_parameters["rope_type"] == "yarn"
    new = {name: value for name, value in plain.items() if name not in ("rope_theta", "rope_scaling")}
    both = {"rope_theta": 1000000.0, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert stock_config(new | {"rope_parameters": both}).rope_parameters == old.rope_parameters
    with pytest.raises(ForkLeftError, match="lacks rope_theta"):
        stock_config(new)


def test_a_written_stock_configuration_is_read_back():
    """What Transformers itself writes today."""
    for config in (LlamaConfig(), Qwen2Config(), Qwen3Config()):
        fields = config.to_dict() | {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}
        read = stock_config(fields)
        assert type(read) is type(config) and read.rope_parameters["rope_theta"] == 77.0
        assert read.max_position_embeddings == config.max_position_embeddings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mystery"}, "model_type 'mystery' has no stock class"),
        ({"hidden_size": None}, "lacks hidden_size; is it another model"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rotary embeddings of type 'dynamic'"),
        ({"rope_scaling": {"type": "longrope"}}, "rotary embeddings of type 'longrope'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "rotates only a part of each head"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor = 0.5, which .* \(expected None or 1\)"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of sliding_attention"),
        ({"use_mrope": True}, "use_mrope = True"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping = 30.0"),
        ({"quantization_config": {"bits": 4}}, r"quantization_config = \{'bits': 4\}"),
        ({"model_type": "sdar_moe"}, "lacks moe_intermediate_size, num_experts, num_experts_per_tok, norm_topk_prob"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(changes, message):
    with pytest.raises(ForkLeftError, match=message):
        stock_config(qwen_config("sdar", "SDARForCausalLM", False) | changes)


def test_views_share_memory_with_the_parameters():
    """Writing to a view writes to the parameter: that is how tensors are loaded."""
    fused = torch.zeros(2, 6, 4)
    views = tensor_views({"model.layers.0.mlp.experts.gate_up_proj": fused}, "sdar_moe", tied=False)
    assert sorted(views) == sorted(
        f"model.layers.0.mlp.experts.{e}.{part}_proj.weight" for e in range(2) for part in ("gate", "up")
    )
    views["model.layers.0.mlp.experts.1.up_proj.weight"].fill_(1.0)
    assert fused.sum() == fused[1, 3:].sum() == 12


def test_only_frequencies_are_passed_over():
    assert is_computed("model.layers.3.self_attn.rotary_emb.inv_freq") and is_computed("model.rotary_emb.inv_freq")
    assert not is_computed("model.layers.3.self_attn.q_proj.weight") and not is_computed("x.rotary_emb.inv_freq")


def test_only_old_llamas_may_omit_rope_theta():
    fields = qwen_config("llama", "LlamaForCausalLM", False)
    del fields["rope_theta"]
    assert stock_config(fields).rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    for kind in ("a2d-llama", "qwen2", "sdar"):
        with pytest.raises(ForkLeftError, match="lacks rope_theta"):
            stock_config(fields | {"model_type": kind})


def test_another_size_of_the_vocabulary(tmp_path):
    config = write_checkpoint(tmp_path, "llada").config | {"vocab_size": 268}
    assert stock_config(with_vocab_size(config, 400)).vocab_size == 400
    assert with_vocab_size(config, 400)["vocab_size"] == 268 and with_vocab_size(config, 260)["vocab_size"] == 260
    assert with_vocab_size(config | {"embedding_size": None}, 400)["vocab_size"] == 400
    assert stock_config(with_vocab_size(qwen_config("sdar", "SDAR", False), 400)).vocab_size == 400
