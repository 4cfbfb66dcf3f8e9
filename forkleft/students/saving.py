"""`save_student`: a student back in the format it came from, so that its family's own tools still load it.

The weights are written under the checkpoint's own tensor names; its `config.json` is written as it was read, but for
the dtype; its tokenizer files and its code are copied, never run. A student made of a model in memory is saved as an
ordinary Transformers folder. Either carries ForkLeft's sidecar (`loading.SIDECAR`).
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from forkleft.errors import ForkLeftError
from forkleft.students.formats import stock_class, tensor_views
from forkleft.students.loading import write_sidecar
from forkleft.students.shards import write_tensors
from forkleft.students.student import Student

# The small files of a checkpoint that belong to its format.
_COPIED = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "*.model",
    "chat_template.*",
    "generation_config.json",
    "*.py",
    "LICENSE*",
    "NOTICE*",
)


def save_student(
    student: Student,
    folder: str | Path,
    *,
    merge_adapters: bool = False,
    dtype: torch.dtype | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a student to `folder`, in the format of its origin, as safetensors of at most `shard_bytes` each.

    merge_adapters: add LoRA adapters into the weights that are written; the model in memory keeps them apart.
    dtype: of the written weights (default: that of the model).

    Raises ForkLeftError if the model has adapters that are not to be merged, if the folder is the origin itself, or if
    the origin's files are gone.
    """
    folder = Path(folder)
    parameters = _whole_parameters(student.model, merge_adapters)
    config, dtype = student.model.config, dtype or student.model.dtype
    if student.origin is None:
        fields = json.loads(config.to_json_string())
        fields |= {"architectures": [stock_class(config).__name__], "dtype": None}
    else:
        if folder.resolve() == student.origin.folder:
            raise ForkLeftError(f"{folder} is where the student was loaded from; save it to another folder")
        fields = dict(student.origin.config)
    fields = _with_dtype(fields, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    if student.origin is None:
        _write_small_files(student, folder)
    else:
        _copy_small_files(student.origin.folder, folder)
    views = tensor_views(parameters, fields["model_type"], tied=config.tie_word_embeddings)
    write_tensors(folder, views, dtype=dtype, shard_bytes=shard_bytes)
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    write_sidecar(folder, student)


def _whole_parameters(model: PreTrainedModel, merge_adapters: bool) -> dict[str, torch.Tensor]:
    """The stock parameters by their stock names, also where PEFT has put adapters around their modules."""
    adapted = {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}
    if adapted and not merge_adapters:
        raise ForkLeftError(
            f"the student has adapters in {len(adapted)} of its modules; say merge_adapters=True to add them into the "
            "weights, or save the adapters alone with PeftModel.save_pretrained"
        )
    parameters: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = next((one for one in adapted if name.startswith(f"{one}.")), None)
        if owner is None:
            parameters[name] = parameter
        elif name.startswith(f"{owner}.base_layer."):
            kind = name.removeprefix(f"{owner}.base_layer.")
            parameters[f"{owner}.{kind}"] = _merged(adapted[owner], owner) if kind == "weight" else parameter
    with torch.device("meta"):
        expected = dict(stock_class(model.config)(model.config).named_parameters(remove_duplicate=False))
    if differing := sorted(set(parameters) ^ set(expected)):
        raise ForkLeftError(
            f"the student's model has parameters that its class does not, or lacks some: {', '.join(differing[:8])}; "
            "only plain LoRA adapters of linear layers can be merged"
        )
    return parameters


@torch.no_grad()
def _merged(layer: Any, name: str) -> torch.Tensor:
    """A linear layer's weight with its active LoRA adapters added, unless they are already in it."""
    plain = isinstance(layer.base_layer, torch.nn.Linear) and hasattr(layer, "lora_A")
    if not plain or any(getattr(layer, "use_dora", {}).values()) or any(getattr(layer, "lora_bias", {}).values()):
        raise ForkLeftError(f"{name} has adapters other than plain LoRA of a linear layer; merge them with PEFT first")
    weight = layer.base_layer.weight
    active = [one for one in layer.active_adapters if one in layer.lora_A and one not in layer.merged_adapters]
    return sum((layer.get_delta_weight(one).to(weight) for one in active), weight)


def _with_dtype(fields: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The configuration with the dtype of the weights beside it, under whichever name it has there."""
    name = "torch_dtype" if "torch_dtype" in fields else "dtype"
    return {**fields, name: str(dtype).removeprefix("torch.")} if name in fields else dict(fields)


def _copy_small_files(origin: Path, folder: Path) -> None:
    if not origin.is_dir():
        raise ForkLeftError(f"the student was loaded from {origin}, which is gone; its files belong to what is saved")
    for pattern in _COPIED:
        for path in origin.glob(pattern):
            shutil.copyfile(path, folder / path.name)


def _write_small_files(student: Student, folder: Path) -> None:
    if student.tokenizer is not None:
        student.tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": list(student.vocabulary.stop_ids), "pad_token_id": student.model.config.pad_token_id}
    text = json.dumps({name: value for name, value in ends.items() if value is not None}, indent=2)
    (folder / "generation_config.json").write_text(text + "\n", encoding="utf-8")
