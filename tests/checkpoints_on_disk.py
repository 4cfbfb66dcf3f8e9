"""Tiny random checkpoints in each family's own format: its fields of config.json, tensor names, tokenizer files.

Special tokens stand in the order of the real tokenizers, behind 256 byte tokens instead of some 150,000. The stock
model beside each checkpoint is built by hand from the same tensors, not by the code under test.
"""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from forkleft.students import Family

ROWS, WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, HEAD_WIDTH, EXPERTS, EXPERT_INNER = 320, 32, 48, 2, 4, 2, 8, 4, 16
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLADA_TEMPLATE = (
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
QWEN_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
]
QWEN3_TOKENS = [*QWEN_TOKENS, "<tool_response>", "</tool_response>", "<think>", "</think>"]
LLADA_TOKENS = [
    "<|startoftext|>",
    "<|endoftext|>",
    "[CLS]",
    "[gMASK]",
    "<|reserved_token_0|>",
    "<|mdm_mask|>",
    "<|reserved_token_253|>",
    "<role>",
    "</role>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
]
LLAMA_TOKENS = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|reserved_special_token_0|>",
    "<|reserved_special_token_1|>",
    "<|finetune_right_pad_id|>",
    "<|reserved_special_token_2|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|eot_id|>",
    "<|python_tag|>",
]
END, TURN_END = 256, 258  # <|endoftext|> and <|im_end|> of Qwen's tokenizers


@dataclass
class OnDisk:
    """A checkpoint that was written, and what loading it must give."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    stock: PreTrainedModel
    family: Family
    mask_id: int
    stop_ids: tuple[int, ...]
    # What the user has to say to load it.
    settings: dict[str, Any] = field(default_factory=dict)


def write_checkpoint(folder: Path, kind: str, *, shards: int = 1, tied: bool = False) -> OnDisk:
    """Write a checkpoint of one of KINDS."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = KINDS[kind](folder, tied)
    (folder / "config.json").write_text(json.dumps(checkpoint.config, indent=2))
    write_weights(folder, checkpoint.tensors, shards)
    return checkpoint


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> None:
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(tensors)
    weight_map = {name: f"model-{k % shards + 1:05d}-of-{shards:05d}.safetensors" for k, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name in names if weight_map[name] == file}, folder / file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path, tokens: list[str], *, split: bool = False, **settings: Any) -> None:
    """A byte-level tokenizer with special tokens behind the bytes: one file or, split, Qwen's two older ones."""
    vocabulary = {byte: i for i, byte in enumerate(sorted(ByteLevel.alphabet()))}
    ids = {token: len(vocabulary) + k for k, token in enumerate(tokens)}
    added = {
        str(i): {"content": token, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
        | {"special": True}
        for token, i in ids.items()
    }
    settings = {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "chat_template": TEMPLATE} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"added_tokens_decoder": added}))
    if split:
        (folder / "vocab.json").write_text(json.dumps(vocabulary))
        (folder / "merges.txt").write_text("#version: 0.2\n")
        (folder / "added_tokens.json").write_text(json.dumps(ids))
        return
    inner = Tokenizer(BPE(vocabulary, []))
    inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), ByteDecoder()
    inner.add_special_tokens(tokens)
    inner.save(str(folder / "tokenizer.json"))


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Tensors with spread-out predictions; norms near 1."""
    generator = torch.Generator().manual_seed(0)
    made = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: x * 0.35 if x.dim() > 1 else 1 + x * 0.1 for name, x in made.items()}


def qwen_shapes(*, biases: bool, norms: bool, experts: bool, tied: bool) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a Qwen checkpoint."""
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (ROWS, WIDTH), "model.norm.weight": (WIDTH,)}
    if not tied:
        shapes["lm_head.weight"] = (ROWS, WIDTH)
    outs = {"q_proj": HEADS * HEAD_WIDTH, "k_proj": KEY_HEADS * HEAD_WIDTH, "v_proj": KEY_HEADS * HEAD_WIDTH}
    for k in range(LAYERS):
        layer = f"model.layers.{k}"
        shapes[f"{layer}.input_layernorm.weight"] = shapes[f"{layer}.post_attention_layernorm.weight"] = (WIDTH,)
        for name, out in outs.items():
            shapes[f"{layer}.self_attn.{name}.weight"] = (out, WIDTH)
            if biases:
                shapes[f"{layer}.self_attn.{name}.bias"] = (out,)
        shapes[f"{layer}.self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD_WIDTH)
        if norms:
            shapes[f"{layer}.self_attn.q_norm.weight"] = shapes[f"{layer}.self_attn.k_norm.weight"] = (HEAD_WIDTH,)
        if experts:
            shapes[f"{layer}.mlp.gate.weight"] = (EXPERTS, WIDTH)
        for part, inner in [(f"experts.{e}.", EXPERT_INNER) for e in range(EXPERTS)] if experts else [("", INNER)]:
            shapes[f"{layer}.mlp.{part}gate_proj.weight"] = shapes[f"{layer}.mlp.{part}up_proj.weight"] = (inner, WIDTH)
            shapes[f"{layer}.mlp.{part}down_proj.weight"] = (WIDTH, inner)
    return shapes


def stock_settings(tied: bool, **changes: Any) -> dict[str, Any]:
    """What every stock model built by hand is given."""
    return {
        "vocab_size": ROWS,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    } | changes


def by_hand(model: PreTrainedModel, state: dict[str, torch.Tensor]) -> PreTrainedModel:
    """A stock model with the given parameters."""
    if model.config.tie_word_embeddings:
        state = state | {"lm_head.weight": state["model.embed_tokens.weight"]}
    model.load_state_dict(state, strict=True)
    return model.eval()


def qwen_config(model_type: str, architecture: str, tied: bool, **changes: Any) -> dict[str, Any]:
    """The fields that the Qwen-based families share."""
    return {
        "architectures": [architecture],
        "attention_dropout": 0.0,
        "bos_token_id": END,
        "eos_token_id": END,
        "hidden_act": "silu",
        "hidden_size": WIDTH,
        "initializer_range": 0.02,
        "intermediate_size": INNER,
        "max_position_embeddings": 256,
        "max_window_layers": LAYERS,
        "model_type": model_type,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": KEY_HEADS,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "float32",
        "transformers_version": "4.52.4",
        "use_cache": False,
        "use_sliding_window": False,
        "vocab_size": ROWS,
    } | changes


def _qwen3(tensors: dict[str, torch.Tensor], tied: bool) -> PreTrainedModel:
    return by_hand(Qwen3ForCausalLM(Qwen3Config(**stock_settings(tied, head_dim=HEAD_WIDTH))), tensors)


def _qwen2(tensors: dict[str, torch.Tensor], tied: bool) -> PreTrainedModel:
    return by_hand(Qwen2ForCausalLM(Qwen2Config(**stock_settings(tied))), tensors)


def _generation(folder: Path, **fields: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(fields))


def _code(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_text("raise RuntimeError('this file must never be imported')\n")


def _edlm(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=False, norms=True, experts=False, tied=tied))
    own = {"auto_map": {"AutoModel": "modeling_edlm.EfficientDLM"}, "head_dim": HEAD_WIDTH, "attention_bias": False}
    write_tokenizer(folder, [*QWEN3_TOKENS, "<|mask_token|>"], tokenizer_class="Qwen2Tokenizer", chat_template=None)
    _code(folder, "modeling_edlm.py")
    config = qwen_config("edlm", "EfficientDLM", tied, **own)
    settings = {"mask_token": "<|mask_token|>"}
    family = Family("block", 32, "prompt_end")
    return OnDisk(folder, config, tensors, _qwen3(tensors, tied), family, 282, (END,), settings)


def _sdar(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=False, norms=True, experts=False, tied=tied))
    config = _sdar_files(folder, "sdar", "SDAR", tied)
    family = Family("block", 4, "absolute")
    return OnDisk(folder, config, tensors, _qwen3(tensors, tied), family, 282, (TURN_END, END))


def _sdar_files(folder: Path, model_type: str, name: str, tied: bool, **changes: Any) -> dict[str, Any]:
    write_tokenizer(
        folder,
        [*QWEN3_TOKENS, "<|MASK|>"],
        mask_token="<|MASK|>",
        tokenizer_class="Qwen2Tokenizer",
        auto_map={"AutoTokenizer": ["tokenization_qwen2.Qwen2Tokenizer", None]},
    )
    _code(folder, f"modeling_{model_type}.py", f"configuration_{model_type}.py", "tokenization_qwen2.py")
    _generation(folder, bos_token_id=END, do_sample=True, eos_token_id=[TURN_END, END], temperature=0.6, top_k=20)
    auto_map = {
        "AutoConfig": f"configuration_{model_type}.{name}Config",
        "AutoModel": f"modeling_{model_type}.{name}Model",
        "AutoModelForCausalLM": f"modeling_{model_type}.{name}ForCausalLM",
    }
    own = {"auto_map": auto_map, "attn_implementation": "flex_attention", "block_size": 4, "mask_token_id": 282}
    own |= {"debug": False, "ep_size": 1, "fuse_cross_entropy": True, "head_dim": HEAD_WIDTH, "attention_bias": False}
    return qwen_config(model_type, f"{name}ForCausalLM", tied, **own, **changes)


def _sdar_moe(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=False, norms=True, experts=True, tied=tied))
    experts = {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_INNER,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    config = _sdar_files(folder, "sdar_moe", "SDARMoe", tied, **experts)
    state = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for k in range(LAYERS):
        prefix = f"model.layers.{k}.mlp.experts"
        gates, ups, downs = (
            [tensors[f"{prefix}.{e}.{part}_proj.weight"] for e in range(EXPERTS)] for part in ("gate", "up", "down")
        )
        state[f"{prefix}.gate_up_proj"] = torch.stack([torch.cat(pair) for pair in zip(gates, ups, strict=True)])
        state[f"{prefix}.down_proj"] = torch.stack(downs)
    stock = Qwen3MoeForCausalLM(Qwen3MoeConfig(**stock_settings(tied, head_dim=HEAD_WIDTH, **experts)))
    family = Family("block", 4, "absolute")
    return OnDisk(folder, config, tensors, by_hand(stock, state), family, 282, (TURN_END, END))


def _a2d(folder: Path, tied: bool, name: str, family: Family) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=False, norms=True, experts=False, tied=tied))
    # As OPDLM's initial students: no mask token in the tokenizer, its id is that of the first unused row.
    write_tokenizer(folder, QWEN3_TOKENS, eos_token="<|im_end|>", tokenizer_class="Qwen2Tokenizer")
    _code(folder, "modeling_qwen3.py")
    _generation(folder, eos_token_id=[TURN_END, END], pad_token_id=END)
    auto_map = {"AutoConfig": "modeling_qwen3.A2DQwen3Config", "AutoModel": "modeling_qwen3.A2DQwen3LMHeadModel"}
    own = {"auto_map": auto_map, "head_dim": HEAD_WIDTH, "attention_bias": False}
    config = qwen_config("a2d-qwen3", "A2DQwen3LMHeadModel", tied, **own, layer_types=["full_attention"] * LAYERS)
    config["dtype"] = config.pop("torch_dtype")
    return OnDisk(
        folder, config, tensors, _qwen3(tensors, tied), family, 282, (TURN_END, END), settings={"family": name}
    )


def _bd3lm(folder: Path, tied: bool) -> OnDisk:
    return _a2d(folder, tied, "bd3lm", Family("block", 4, "prompt_end_backward"))


def _mdlm(folder: Path, tied: bool) -> OnDisk:
    return _a2d(folder, tied, "mdlm", Family("full", 32))


def _a2d_qwen2(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=True, norms=False, experts=False, tied=tied))
    write_tokenizer(folder, QWEN_TOKENS, eos_token="<|im_end|>", tokenizer_class="Qwen2Tokenizer")
    _code(folder, "modeling_qwen2.py")
    _generation(folder, eos_token_id=[TURN_END, END], pad_token_id=END)
    auto_map = {"AutoConfig": "modeling_qwen2.A2DQwen2Config", "AutoModel": "modeling_qwen2.A2DQwen2LMHeadModel"}
    config = qwen_config("a2d-qwen2", "A2DQwen2LMHeadModel", tied, auto_map=auto_map)
    family = Family("full", 32)
    stock = _qwen2(tensors, tied)
    return OnDisk(folder, config, tensors, stock, family, 278, (TURN_END, END), settings={"family": "mdlm"})


def _a2d_llama(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=False, norms=False, experts=False, tied=tied))
    write_tokenizer(
        folder,
        LLAMA_TOKENS,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|finetune_right_pad_id|>",
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=LLADA_TEMPLATE,
    )
    _code(folder, "modeling_llama.py")
    _generation(folder, eos_token_id=[257, 264, 265])
    scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    auto_map = {"AutoConfig": "modeling_llama.A2DLlamaConfig", "AutoModel": "modeling_llama.A2DLlamaLMHeadModel"}
    own = {
        "auto_map": auto_map,
        "attention_bias": False,
        "mlp_bias": False,
        "head_dim": HEAD_WIDTH,
        "pretraining_tp": 1,
    }
    own |= {"rope_theta": 500000.0, "rope_scaling": scaling | {"rope_type": "llama3"}, "eos_token_id": [257, 264, 265]}
    config = qwen_config("a2d-llama", "A2DLlamaLMHeadModel", tied, **own)
    rotary = scaling | {"rope_type": "llama3", "rope_theta": 500000.0}
    stock = LlamaForCausalLM(LlamaConfig(**stock_settings(tied, head_dim=HEAD_WIDTH, rope_parameters=rotary)))
    family = Family("block", 4, "prompt_end_backward")
    settings = {"family": "bd3lm"}
    return OnDisk(folder, config, tensors, by_hand(stock, tensors), family, 267, (265, 257, 264), settings=settings)


def _fast_dllm_v2(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=True, norms=False, experts=False, tied=tied))
    tokens = [*QWEN_TOKENS, "|<MASK>|"]
    write_tokenizer(
        folder, tokens, split=True, eos_token="<|im_end|>", tokenizer_class="Qwen2Tokenizer", chat_template=None
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _code(folder, "modeling.py", "configuration.py")
    _generation(folder, eos_token_id=[TURN_END, END], repetition_penalty=1.05, temperature=0.7)
    auto_map = {
        "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
        "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
    }
    own = {"auto_map": auto_map, "bd_size": 32, "conplemenrary_mask": True, "pad_token_id": TURN_END}
    own |= {"eos_token_id": TURN_END, "layer_types": ["full_attention"] * LAYERS}
    config = qwen_config("Fast_dLLM_Qwen", "Fast_dLLM_QwenForCausalLM", tied, **own)
    family = Family("block", 32, "absolute", "shifted", sub_block=8)
    return OnDisk(folder, config, tensors, _qwen2(tensors, tied), family, 278, (TURN_END, END))


def _dream(folder: Path, tied: bool) -> OnDisk:
    tensors = random_tensors(qwen_shapes(biases=True, norms=False, experts=False, tied=tied))
    write_tokenizer(
        folder,
        [*QWEN_TOKENS, "<|beginoftext|>", "<|mask|>"],
        split=True,
        bos_token="<|beginoftext|>",
        mask_token="<|mask|>",
        tokenizer_class="DreamTokenizer",
        auto_map={"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
    )
    _code(folder, "modeling_dream.py", "configuration_dream.py", "tokenization_dream.py", "generation_utils.py")
    _generation(folder, alg="origin", eos_token_id=END, mask_token_id=None, pad_token_id=END, steps=512)
    auto_map = {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"}
    own = {"auto_map": auto_map, "mask_token_id": 279, "pad_token_id": END, "use_mrope": False}
    config = qwen_config("Dream", "DreamModel", tied, **own)
    family = Family("full", 32, head="shifted")
    return OnDisk(folder, config, tensors, _qwen2(tensors, tied), family, 279, (TURN_END, END))


def _llada(folder: Path, tied: bool) -> OnDisk:
    shapes: dict[str, tuple[int, ...]] = {
        "model.transformer.wte.weight": (ROWS, WIDTH),
        "model.transformer.ln_f.weight": (WIDTH,),
    }
    if not tied:
        shapes["model.transformer.ff_out.weight"] = (ROWS, WIDTH)
    for k in range(LAYERS):
        block = f"model.transformer.blocks.{k}"
        shapes |= {f"{block}.{name}.weight": (WIDTH,) for name in ("attn_norm", "ff_norm")}
        shapes |= {f"{block}.{name}.weight": (WIDTH, WIDTH) for name in ("q_proj", "k_proj", "v_proj", "attn_out")}
        shapes |= {f"{block}.{name}.weight": (INNER, WIDTH) for name in ("ff_proj", "up_proj")}
        shapes[f"{block}.ff_out.weight"] = (WIDTH, INNER)
    tensors = random_tensors(shapes)
    write_tokenizer(
        folder,
        LLADA_TOKENS,
        bos_token="<|startoftext|>",
        cls_token="[CLS]",
        tokenizer_class="PreTrainedTokenizerFast",
        chat_template=LLADA_TEMPLATE,
    )
    _code(folder, "modeling_llada.py", "configuration_llada.py")
    _generation(folder, eos_token_id=257, pad_token_id=257, use_cache=False)
    config = {
        "activation_type": "silu",
        "alibi": False,
        "alibi_bias_max": 8.0,
        "architectures": ["LLaDAModelLM"],
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "d_model": WIDTH,
        "embedding_dropout": 0.0,
        "embedding_size": ROWS,
        "eos_token_id": 257,
        "flash_attention": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "init_device": "meta",
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": 261,
        "max_sequence_length": 256,
        "mlp_hidden_size": INNER,
        "mlp_ratio": 4,
        "model_type": "llada",
        "multi_query_attention": None,
        "n_heads": HEADS,
        "n_kv_heads": HEADS,
        "n_layers": LAYERS,
        "pad_token_id": 257,
        "precision": "amp_bf16",
        "residual_dropout": 0.0,
        "rms_norm_eps": 1e-05,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 500000.0,
        "scale_logits": False,
        "torch_dtype": "float32",
        "use_cache": False,
        "vocab_size": ROWS,
        "weight_tying": tied,
    }
    family = Family("full", 32)
    return OnDisk(folder, config, tensors, _llada_by_hand(tensors, tied), family, 261, (267, 257))


def _llada_by_hand(tensors: dict[str, torch.Tensor], tied: bool) -> PreTrainedModel:
    rotary = {"rope_type": "default", "rope_theta": 500000.0}
    config = LlamaConfig(**stock_settings(tied, num_key_value_heads=HEADS, rms_norm_eps=1e-5, rope_parameters=rotary))
    parts = {
        "attn_norm": "input_layernorm",
        "ff_norm": "post_attention_layernorm",
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "attn_out": "self_attn.o_proj",
        "ff_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "ff_out": "mlp.down_proj",
    }
    whole = {"wte": "model.embed_tokens", "ln_f": "model.norm", "ff_out": "lm_head"}
    state = {}
    for name, tensor in tensors.items():
        if block := re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(\w+)\.weight", name):
            state[f"model.layers.{block[1]}.{parts[block[2]]}.weight"] = tensor
        else:
            state[f"{whole[name.split('.')[2]]}.weight"] = tensor
    return by_hand(LlamaForCausalLM(config), state)


def write_autoregressive(folder: Path, *, tied: bool = True) -> PreTrainedModel:
    """A plain Qwen3 checkpoint with its tokenizer, as a teacher or to convert."""
    tensors = random_tensors(qwen_shapes(biases=False, norms=True, experts=False, tied=tied))
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder, QWEN3_TOKENS, eos_token="<|im_end|>", tokenizer_class="Qwen2Tokenizer")
    _generation(folder, eos_token_id=[TURN_END, END], pad_token_id=END, do_sample=True, temperature=0.6)
    config = qwen_config("qwen3", "Qwen3ForCausalLM", tied, head_dim=HEAD_WIDTH, attention_bias=False)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_weights(folder, tensors)
    return _qwen3(tensors, tied)


def same_parameters(one: PreTrainedModel, two: PreTrainedModel) -> bool:
    """Whether two models have the same parameters under the same names."""
    ours, theirs = (dict(model.named_parameters(remove_duplicate=False)) for model in (one, two))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


KINDS = {
    "efficient-dlm": _edlm,
    "sdar": _sdar,
    "sdar-moe": _sdar_moe,
    "bd3lm": _bd3lm,
    "mdlm": _mdlm,
    "mdlm-qwen2": _a2d_qwen2,
    "bd3lm-llama": _a2d_llama,
    "fast-dllm-v2": _fast_dllm_v2,
    "dream": _dream,
    "llada": _llada,
}
