"""The formats of the known families: from their checkpoints into stock Transformers classes, and back.

All of them are Qwen2, Qwen3, Qwen3-MoE or Llama under other names. Two things differ: the fields of `config.json` and
the names of the tensors. `stock_config` reads the fields, and refuses those that the stock class would not compute.
`tensor_views` gives, for every tensor of the checkpoint, the *view* of the stock parameters that holds it. So loading
copies into the views, and saving copies out of them.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.activations import ACT2FN

from forkleft.errors import ForkLeftError
from forkleft.students.formats import llada
from forkleft.students.formats.fields import expect, is_number, senseless

_CLASSES: Mapping[str, tuple[type[PreTrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
# Which stock class computes a model_type.
STOCK: Mapping[str, str] = {
    "llama": "llama",
    "a2d-llama": "llama",
    "llada": "llama",
    "qwen2": "qwen2",
    "a2d-qwen2": "qwen2",
    "Dream": "qwen2",
    "Fast_dLLM_Qwen": "qwen2",
    "qwen3": "qwen3",
    "a2d-qwen3": "qwen3",
    "edlm": "qwen3",
    "sdar": "qwen3",
    "qwen3_moe": "qwen3_moe",
    "sdar_moe": "qwen3_moe",
}

# Fields of the stock configurations. Their defaults for the required ones fit no particular checkpoint.
_REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
)
# A model is built of its layers and experts before its tensors are looked at: a billion of them would take for ever.
MOST = {"num_hidden_layers": 1000, "num_experts": 10_000}
_OPTIONAL = (
    "num_key_value_heads",
    "head_dim",
    "hidden_act",
    "initializer_range",
    "tie_word_embeddings",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
_REQUIRED_MOE = ("moe_intermediate_size", "num_experts", "num_experts_per_tok", "norm_topk_prob")
_OPTIONAL_MOE = ("decoder_sparse_step", "mlp_only_layers")
# Biases that are an option of a stock class. Those of Qwen2 are fixed.
_BIASES: Mapping[str, tuple[str, ...]] = {
    "llama": ("attention_bias", "mlp_bias"),
    "qwen2": (),
    "qwen3": ("attention_bias",),
    "qwen3_moe": ("attention_bias",),
}
# Fields that change the computation in ways that the stock classes, or our masks, do not support: only "off" is
# accepted.
_OFF: Mapping[str, tuple[Any, ...]] = {
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "partial_rotary_factor": (1,),
    "attention_dropout": (0,),
    "residual_dropout": (0,),
    "embedding_dropout": (0,),
    "multi_query_attention": (False,),
    "clip_qkv": (),
    "quantization_config": (),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "logit_scale": (1,),
    "logits_scaling": (1,),
    "embedding_multiplier": (1,),
    "attention_multiplier": (1,),
    "residual_multiplier": (1,),
}
# Rotary embeddings that depend only on the position, and the numbers that each needs. Others change with the length of
# the sequence, so that a packed readout would differ from a plain one.
_ROPE_TYPES: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_ROPE_NUMBERS = (
    *("rope_theta", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    *("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
)
# The value for files of Llama that are older than the field.
_OLD_LLAMA_THETA = 10000.0
# The kinds of values of fields, if the fields exist.
_FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob")
_NUMBERS = ("rms_norm_eps", "initializer_range")
_IDS = ("pad_token_id", "bos_token_id")
# How files were made and how their own code ran: none of this changes what is computed.
_BOOKKEEPING = (
    "architectures",
    "auto_map",
    "model_type",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "attn_implementation",
    "_name_or_path",
    "_model_name_or_path",
    "unk_token_id",
    "max_window_layers",
    "sliding_window",
    "layer_types",
    "block_size",
    "bd_size",
    "mask_token_id",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "attention_bias",
    "router_aux_loss_coef",
    "output_router_logits",
    "pretraining_tp",
    # Of every configuration of Transformers.
    "chunk_size_feed_forward",
    "id2label",
    "is_encoder_decoder",
    "label2id",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
)

# Frequencies that old versions saved; the stock classes compute them.
_COMPUTED = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")


def stock_config(config: Mapping[str, Any]) -> PreTrainedConfig:
    """The stock configuration that computes what this `config.json` describes.

    Raises ForkLeftError for a model type without a stock class, for a missing field, for a senseless value, and for a
    field that needs something the stock class does not compute.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in STOCK:
        raise ForkLeftError(
            f"model_type {kind!r} has no stock class; ForkLeft loads {', '.join(STOCK)} and never runs a model's own "
            "code"
        )
    for name, values in _OFF.items():
        expect(config, name, (None, *values), required=False)
    _check_layers(config)
    fields = _stock_fields(config)
    own = llada.FIELDS if kind == "llada" else {}
    required, optional = _fields_of(STOCK[kind])
    if missing := [own.get(name, name) for name in required if fields.get(name) is None]:
        raise ForkLeftError(f"config.json of model_type {kind!r} lacks {', '.join(missing)}; is it another model?")
    taken = {name: fields[name] for name in (*required, *optional) if fields.get(name) is not None}
    for name, value in taken.items():
        _check_value(own.get(name, name), name, value)
    _check_heads(taken)
    config_class, model_class = _CLASSES[STOCK[kind]]
    settings: dict[str, Any] = {
        # Transformers would otherwise use its default ids, which mean something else here.
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        **taken,
        "rope_parameters": _rope(fields, _OLD_LLAMA_THETA if kind == "llama" else None),
        "architectures": [model_class.__name__],
    }
    return config_class(**settings)


def unread_fields(config: Mapping[str, Any]) -> list[str]:
    """The fields of a `config.json` of a known `model_type` that are neither read nor known to change nothing."""
    kind = config["model_type"]
    if kind == "llada":
        known = {*llada.MUST_BE, *llada.FIELDS.values(), *llada.SAME, "embedding_size"}
    else:
        required, optional = _fields_of(STOCK[kind])
        known = {*required, *optional, "num_local_experts"}
    return sorted(set(config) - known - {*_OFF, *_BOOKKEEPING})


def with_vocab_size(config: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """This `config.json` for an embedding of `rows` rows."""
    if config["model_type"] == "llada" and config.get("embedding_size"):
        # LLaDA counts the tokens apart from the rows.
        return {**config, "embedding_size": rows, "vocab_size": min(config.get("vocab_size") or rows, rows)}
    return {**config, "vocab_size": rows}


def stock_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The stock model class of a stock configuration."""
    return _CLASSES[config.model_type][1]


def tensor_views(parameters: Mapping[str, torch.Tensor], model_type: str, *, tied: bool) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint of `model_type`: its name and the view of the stock `parameters` that holds it.

    tied: the output head is the embedding and has no tensor of its own. Stock classes fuse all experts into one tensor;
    in checkpoints each expert has its own.
    """
    views: dict[str, torch.Tensor] = {}
    for name, tensor in parameters.items():
        if name == "lm_head.weight" and tied:
            continue
        layer, _, part = name.rpartition(".experts.")
        if layer:
            middle = tensor.shape[1] // 2
            for expert, weight in enumerate(tensor):
                pieces = (
                    {"gate_proj": weight[:middle], "up_proj": weight[middle:]}
                    if part == "gate_up_proj"
                    else {part: weight}
                )
                views |= {f"{layer}.experts.{expert}.{piece}.weight": view for piece, view in pieces.items()}
        else:
            views[llada.tensor_name(name) if model_type == "llada" else name] = tensor
    return views


def head_and_embedding(model_type: str) -> tuple[str, str]:
    """The names of the output head's and of the embedding's tensor in a checkpoint of `model_type`."""
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if model_type == "llada":
        return llada.tensor_name(head), llada.tensor_name(embedding)
    return head, embedding


def is_computed(name: str) -> bool:
    """Whether the stock classes compute this tensor of a checkpoint, so that it can be skipped."""
    return _COMPUTED.fullmatch(name) is not None


def _fields_of(stock: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The required and the optional fields of a stock class."""
    required, optional = _REQUIRED, _OPTIONAL + _BIASES[stock]
    return (required + _REQUIRED_MOE, optional + _OPTIONAL_MOE) if stock == "qwen3_moe" else (required, optional)


def _stock_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields under the names of the stock configurations."""
    if config["model_type"] == "llada":
        return llada.as_llama(config)
    fields = dict(config)
    if "num_local_experts" in fields:  # as Transformers 5 writes it
        fields.setdefault("num_experts", fields.pop("num_local_experts"))
    return fields


def _check_value(shown: str, name: str, value: Any) -> None:
    """Refuse a value that is not of its field's kind. shown: what the field is called in the file."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if name in _FLAGS:
        good, expected = isinstance(value, bool), "true or false"
    elif name in _NUMBERS:
        good, expected = is_number(value) and value > 0, "a number above 0"
    elif name in _IDS:
        good, expected = whole, "a token id"
    elif name == "eos_token_id":
        ids = value if isinstance(value, list) else [value]
        good, expected = all(isinstance(i, int) for i in ids), "a token id or a list of them"
    elif name == "hidden_act":
        good, expected = isinstance(value, str) and value in ACT2FN, "the name of an activation of Transformers"
    elif name == "mlp_only_layers":
        good = isinstance(value, list) and all(isinstance(layer, int) for layer in value)
        expected = "a list of layers"
    elif name in MOST:
        good, expected = whole and 0 < value <= MOST[name], f"a whole number from 1 to {MOST[name]}"
    else:
        good, expected = whole and value > 0, "a whole number above 0"
    if not good:
        raise senseless(shown, value, expected)


def _check_layers(config: Mapping[str, Any]) -> None:
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise senseless("layer_types", kinds, "a list of names")
    if windows := sorted(set(kinds) - {"full_attention"}):
        raise ForkLeftError(f"config.json has layers of {', '.join(windows)}; only full_attention is supported")


def _check_heads(taken: Mapping[str, Any]) -> None:
    """Refuse numbers that are valid on their own but do not fit together."""
    width, heads = taken["hidden_size"], taken["num_attention_heads"]
    if "head_dim" not in taken and width % heads:
        raise senseless("num_attention_heads", heads, f"a divisor of the {width} of hidden_size")
    if heads % taken.get("num_key_value_heads", heads):
        raise senseless("num_key_value_heads", taken["num_key_value_heads"], f"a divisor of the {heads} heads")
    if (head := taken.get("head_dim", width // heads)) % 2:
        raise senseless("head_dim", head, "an even number, since pairs are rotated")
    if taken.get("num_experts_per_tok", 0) > taken.get("num_experts", 0):
        raise senseless("num_experts_per_tok", taken["num_experts_per_tok"], f"at most {taken['num_experts']}")
    if not -taken["vocab_size"] <= taken.get("pad_token_id", 0) < taken["vocab_size"]:
        raise senseless("pad_token_id", taken["pad_token_id"], f"one of the {taken['vocab_size']} of vocab_size")


def _rope(fields: Mapping[str, Any], usual_theta: float | None) -> dict[str, Any]:
    """The rotary embedding, from `rope_theta` and `rope_scaling` or, as Transformers 5 writes it, `rope_parameters`."""
    rope: dict[str, Any] = {"rope_theta": fields.get("rope_theta")}
    for name in ("rope_scaling", "rope_parameters"):
        found = fields.get(name)
        if found is not None and not isinstance(found, dict):
            raise senseless(name, found, "an object or null")
        rope |= found or {}
    rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
    if rope["rope_type"] not in list(_ROPE_TYPES):
        raise ForkLeftError(
            f"config.json asks for rotary embeddings of type {rope['rope_type']!r}; ForkLeft computes "
            f"{', '.join(_ROPE_TYPES)}"
        )
    if rope.get("partial_rotary_factor") not in (None, 1):
        raise ForkLeftError("config.json rotates only a part of each head (partial_rotary_factor); not supported")
    if rope["rope_theta"] is None:
        rope["rope_theta"] = usual_theta
    if rope["rope_theta"] is None:
        raise ForkLeftError("config.json lacks rope_theta, the base of the rotary embedding; is it another model?")
    if missing := [name for name in _ROPE_TYPES[rope["rope_type"]] if rope.get(name) is None]:
        raise ForkLeftError(f"config.json has rotary embeddings of type {rope['rope_type']!r} without {missing[0]}")
    for name in _ROPE_NUMBERS:
        if rope.get(name) is not None and not (is_number(rope[name]) and rope[name] > 0):
            raise senseless(name, rope[name], "a number above 0")
    return rope
