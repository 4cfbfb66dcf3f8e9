"""The shapes of models, from their `config.json` alone: how many weights, and how wide everything is.

The weights are counted on the stock class of the model, made on the meta device, which has shapes and no memory.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from forkleft.errors import ForkLeftError
from forkleft.students.bundled import local_path
from forkleft.students.families import named_family, recognise
from forkleft.students.family import Family
from forkleft.students.formats import stock_class, stock_config
from forkleft.students.loading import facts_of, read_sidecar
from forkleft.students.shards import first_line, hub_unreached, not_reached, read_json

# All modules of the layers, in the words of PEFT.
ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that decide what it costs.

    weights: all of them, a tied head once. linear: weights that multiply each token in the layers (of a mixture of
    experts, those of the experts that a token visits). layer: all weights of one layer. pairs: inputs and outputs of
    all products that get an adapter, added up: LoRA adapters of rank r have r times as many weights.
    width: of the hidden states; queries, keys: of all query heads and all key heads together; inner: of the
    feed-forward layer; experts: how many a token visits, each of width `inner` (0: no mixture). normed: queries and
    keys have norms. stacked: weights of all experts of all layers. expert_pairs: the part of `pairs` that is of
    experts; folded: those of `stacked` that get adapters. PEFT adds these to a copy of the weights in every forward.
    """

    name: str
    weights: int
    linear: int
    layer: int
    pairs: int
    layers: int
    width: int
    queries: int
    keys: int
    inner: int
    words: int
    experts: int = 0
    normed: bool = False
    stacked: int = 0
    expert_pairs: int = 0
    folded: int = 0

    @property
    def head(self) -> int:
        """Weights of the output head."""
        return self.words * self.width

    @property
    def outside(self) -> int:
        """Weights outside the layers: embedding, head and the last norm, which FSDP keeps in one group."""
        return self.weights - self.layers * self.layer

    @property
    def feed_forward(self) -> int:
        """Weights of the feed-forward part of one layer that multiply a token."""
        return 3 * self.width * self.inner * max(1, self.experts)

    def cache(self, number: int) -> int:
        """Bytes of keys and values of one token, with numbers of `number` bytes."""
        return 2 * self.layers * self.keys * number


# Public facts of the models in the recipes, so that these can be planned without the hub: the sizes in the model cards
# of Qwen, which Efficient-DLM and SDAR keep (docs/models.md).
_QWEN3 = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 36,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
_QWEN3_4B = _QWEN3 | {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
_QWEN3_8B = _QWEN3 | {"hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
_QWEN3_30B = _QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
_QWEN25_7B = {
    "model_type": "qwen2",
    "vocab_size": 152064,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "nvidia/Efficient-DLM-4B": _QWEN3_4B,
    "nvidia/Efficient-DLM-8B": _QWEN3_8B,
    "JetLM/SDAR-4B-Chat-b32": _QWEN3_4B | {"model_type": "sdar", "block_size": 32},
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-8B-Base": _QWEN3_8B,
    "Qwen/Qwen3-30B-A3B-Base": _QWEN3_30B,
    "Qwen/Qwen2.5-7B": _QWEN25_7B,
}


def config_of(name: str, file: Path | None = None) -> tuple[dict[str, Any], str]:
    """The `config.json` of a model, and in a few words where it comes from.

    From the given file, else a local folder (`lab:NAME` too), else the facts above, else the hub. Raises ForkLeftError
    if there is none.
    """
    if file is not None:
        path = file / "config.json" if file.is_dir() else file
        if not path.exists():
            raise ForkLeftError(f"there is no file {path}; name the config.json of {name}, or its folder")
        return read_json(path), str(path)
    folder = local_path(name)
    if folder.is_dir():
        return read_json(folder / "config.json"), "its config.json"
    if name in KNOWN_CONFIGS:
        return dict(KNOWN_CONFIGS[name]), "known sizes"
    source, _, revision = name.partition("@")
    try:
        found, _ = PretrainedConfig.get_config_dict(source, revision=revision or None)
    except (OSError, ValueError) as error:
        if hub_unreached(error):
            raise ForkLeftError(f"{not_reached(source)}; or give its config.json as a file") from error
        raise ForkLeftError(f"there is no config.json of {source}: {first_line(error)}; give it as a file") from error
    if not found:
        raise ForkLeftError(f"{not_reached(source)}; or give its config.json as a file")
    return found, "the hub"


def student_of(
    name: str,
    *,
    file: Path | None = None,
    family: str | None = None,
    block_size: int | None = None,
    targets: Sequence[str] | str = ALL_LINEAR,
) -> tuple[Shape, Family, str]:
    """The shape of a student, its family, and where both come from. Raises ForkLeftError if either is unknown.

    targets: the modules that would get adapters, as PEFT takes them.
    """
    config, source = config_of(name, file)
    sidecar = None
    folder = local_path(name) if file is None else file if file.is_dir() else file.parent
    if folder.is_dir():
        sidecar = read_sidecar(folder)
    if family is not None:
        said: Any = named_family(family)
    else:
        said = recognise(config) if sidecar is None else sidecar.family
    stock = stock_config(config)
    with torch.device("meta"):
        model = stock_class(stock)(stock)
    try:
        return shape_of(name, model, targets), facts_of(said, config, block_size), source
    except re.error as error:
        raise ForkLeftError(f"lora_targets: {targets!r} is no regular expression: {error}") from error


def teacher_of(name: str, *, file: Path | None = None) -> tuple[Shape, str]:
    """The shape of a teacher, any causal LM that Transformers knows, and where it comes from."""
    config, source = config_of(name, file)
    kind = config.get("model_type")
    try:
        stock = AutoConfig.for_model(**config)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(stock)
    except (ValueError, KeyError, TypeError) as error:
        raise ForkLeftError(
            f"{source}: expected a causal LM that Transformers knows, found model_type {kind!r}: {first_line(error)}"
        ) from error
    try:
        return shape_of(name, model), source
    except (AttributeError, ZeroDivisionError) as error:
        raise ForkLeftError(
            f"{source}: model_type {kind!r} has layers that the plan cannot count ({first_line(error)}); plan with a "
            "teacher of the same size that is built like Llama or Qwen"
        ) from error


def shape_of(name: str, model: PreTrainedModel, targets: Sequence[str] | str = ALL_LINEAR) -> Shape:
    """The shape of a stock decoder, on the meta device or in memory. targets: as in `student_of`."""
    config = model.config.get_text_config()
    experts = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0) or 0
    visited = getattr(config, "num_experts_per_tok", 0) if experts else 0
    layers: Any = model.base_model.layers
    # Transformers keeps the experts of a layer as one tensor of three dimensions.
    linear = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    linear += sum(weight.numel() * visited // experts for weight in layers.parameters() if weight.dim() == 3)
    pairs, expert_pairs, folded = _adapters(model, targets)
    return Shape(
        name=name,
        weights=sum(weight.numel() for weight in model.parameters()),
        linear=linear,
        layer=sum(weight.numel() for weight in layers[0].parameters()),
        pairs=pairs,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        queries=config.num_attention_heads * _head_width(config),
        keys=(getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * _head_width(config),
        inner=getattr(config, "moe_intermediate_size", config.intermediate_size)
        if visited
        else config.intermediate_size,
        words=model.get_output_embeddings().weight.shape[0],
        experts=visited,
        normed=any(name.endswith("q_norm") for name, _ in layers.named_modules()),
        stacked=sum(weight.numel() for weight in layers.parameters() if weight.dim() == 3),
        expert_pairs=expert_pairs,
        folded=folded,
    )


def _adapters(model: PreTrainedModel, targets: Sequence[str] | str) -> tuple[int, int, int]:
    """`pairs`, `expert_pairs` and `folded` of a shape, as PEFT puts adapters on linear layers, routers and experts."""
    pairs = expert_pairs = folded = 0
    for name, weight in model.named_parameters():
        if ".layers." not in name or weight.dim() < 2:
            continue
        *experts, rows, columns = weight.shape
        module = name.removesuffix(".weight")
        parts = [module]
        if experts and module.endswith("gate_up_proj"):
            # PEFT knows the two halves by their old names, and gives their one adapter the ranks of both.
            parts = [module.replace("gate_up_proj", part) for part in ("gate_proj", "up_proj")]
        ranks = sum(_is_target(part, targets) for part in parts)
        found = math.prod(experts) * (rows + columns) * ranks
        pairs += found
        if experts and ranks:
            expert_pairs += found
            folded += weight.numel()
    return pairs, expert_pairs, folded


def _is_target(module: str, targets: Sequence[str] | str) -> bool:
    if isinstance(targets, str):
        return targets == ALL_LINEAR or re.fullmatch(targets, module) is not None
    return any(f".{module}".endswith(f".{target}") for target in targets)


def _head_width(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
