"""Tiny random models for the tests."""

import copy

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from forkleft.students import Family, Student
from forkleft.students.family import Anchor

VOCABULARY, MASK, PAD, STOP = 40, 39, 38, 37

_CLASSES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}
ARCHITECTURES = tuple(_CLASSES)
# The three anchors with both heads, and full attention with both.
FAMILIES = (
    *(Family("block", 4, anchor, head) for anchor in Anchor.__args__ for head in ("same", "shifted")),
    *(Family("full", 4, head=head) for head in ("same", "shifted")),
)


def family_name(family: Family) -> str:
    return f"{family.attention}-{family.anchor}-{family.head}" if family.attention == "block" else f"full-{family.head}"


def tiny_model(architecture: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    """A random model with spread-out predictions (the usual initialisation is close to uniform)."""
    config_class, model_class, extra = _CLASSES[architecture]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": STOP,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**settings | extra | changes))
    if architecture == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped kernel knows no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.35)
    return model.to(dtype).eval()


def tiny_student(
    family: Family, architecture: str = "qwen3", stop_ids: tuple[int, ...] = (STOP,), tokenizer=None, **settings
):
    return Student.from_model(tiny_model(architecture, **settings), family, MASK, stop_ids, tokenizer=tokenizer)


def plain_copy(student: Student):
    """The same parameters in a model that attends through Transformers' own `sdpa`."""
    model = copy.deepcopy(student.model)
    model.set_attn_implementation("sdpa")
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A token for every id of the tiny models: characters, of which `#` marks an answer, and the special ones."""
    tokens = [*"0123456789#abcdefghijklmnopqrstuvwxyz", "<stop>", "<pad>", "<mask>"]
    assert (tokens.index("<stop>"), tokens.index("<pad>"), tokens.index("<mask>")) == (STOP, PAD, MASK)
    inner = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    inner.pre_tokenizer = Split("", "isolated")
    inner.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<stop>", pad_token="<pad>", mask_token="<mask>"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return tokenizer


def slot_tokenizer(extra: str = "") -> PreTrainedTokenizerFast:
    """A token for every id of the tiny models, enough for an answer slot; `extra` is a token of several characters."""
    tokens = [*'0123456789#"answer: ABCD.\n=+-*?bcdfgh', "<stop>", "<pad>", "<mask>"]
    tokens = list(dict.fromkeys(tokens))
    tokens = [*tokens[:-3], *"ijklmopq"[: 40 - len(tokens)], *tokens[-3:]]
    assert (tokens.index("<stop>"), tokens.index("<pad>"), tokens.index("<mask>")) == (STOP, PAD, MASK)
    inner = Tokenizer(WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<pad>"))
    inner.pre_tokenizer = Split("", "isolated")
    inner.decoder = Fuse()
    if extra:
        inner.add_tokens([extra])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<stop>", pad_token="<pad>", mask_token="<mask>")
    made.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    return made
