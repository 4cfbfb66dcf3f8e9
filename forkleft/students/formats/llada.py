"""LLaDA as a Llama: its fields and tensors have names of their own."""

from collections.abc import Mapping
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.students.formats.fields import expect

# LLaDA's own field names, and the values of its other fields with which the network is a Llama.
FIELDS: Mapping[str, str] = {
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads",
    "max_position_embeddings": "max_sequence_length",
    "hidden_act": "activation_type",
    "tie_word_embeddings": "weight_tying",
}
MUST_BE: Mapping[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "rope": (True,),
    "weight_tying": (True, False),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_group_size": (1,),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "input_emb_norm": (False,),
    "layer_norm_with_affine": (True,),
    "scale_logits": (False,),
}
SAME = ("vocab_size", "rms_norm_eps", "rope_theta", "pad_token_id", "eos_token_id")
_WHOLE: Mapping[str, str] = {
    "model.embed_tokens.weight": "model.transformer.wte.weight",
    "model.norm.weight": "model.transformer.ln_f.weight",
    "lm_head.weight": "model.transformer.ff_out.weight",
}
_PARTS: Mapping[str, str] = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}


def as_llama(config: Mapping[str, Any]) -> dict[str, Any]:
    """LLaDA's fields under Llama's names."""
    if "d_model" not in config:
        raise ForkLeftError(
            "config.json has model_type 'llada' but no d_model: it is not a dense LLaDA (LLaDA-MoE uses the same "
            "model_type), and nothing else of that name is supported"
        )
    for name, values in MUST_BE.items():
        expect(config, name, values, required=True)
    fields = {name: config.get(name) for name in SAME}
    fields |= {name: config.get(own) for name, own in FIELDS.items()}
    # The embedding may have more rows than there are tokens.
    fields["vocab_size"] = config.get("embedding_size") or config.get("vocab_size")
    return fields


def tensor_name(name: str) -> str:
    """LLaDA's name of a tensor of Llama."""
    if name in _WHOLE:
        return _WHOLE[name]
    number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"model.transformer.blocks.{number}.{_PARTS[part]}.weight"
