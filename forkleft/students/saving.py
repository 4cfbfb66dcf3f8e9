"""`save_student`: write a student in the format it came from, so that its family's own tools still load it.

The weights are written under the checkpoint's own tensor names. Its `config.json` is written as it was read, except for
the dtype and, after a resize, the size of the vocabulary. Its tokenizer files and its code are copied and never run;
only a chat template that was replaced is written anew. A student made from a model in memory is saved as an ordinary
Transformers folder. Both get ForkLeft's sidecar (`loading.SIDECAR`).
"""

import json
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError
from forkleft.files import check_writable, write_json, write_text
from forkleft.manifests import MANIFEST
from forkleft.students.adapters import adapters_and_base
from forkleft.students.formats import stock_class, stock_config, tensor_views, with_vocab_size
from forkleft.students.loading import load_student, write_sidecar
from forkleft.students.shards import checkpoint_folder, read_json, shown, write_tensors
from forkleft.students.student import Student, embedding_rows

_LOG = logging.getLogger(__name__)
# The small files of a checkpoint: those that loading reads, and others that belong to it.
_LOADED = (
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "*.model",
    "chat_template.*",
    "generation_config.json",
)
_NOT_LOADED = ("*.py", "LICENSE*", "NOTICE*")


def save_student(
    student: Student,
    folder: str | Path,
    *,
    merge_adapters: bool = False,
    dtype: torch.dtype | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a student to `folder`, in the format of its origin, as safetensors of at most `shard_bytes` each.

    merge_adapters: add LoRA adapters into the written weights; the model in memory stays as it is.
    dtype: of the written weights (default: that of the model).

    Raises ForkLeftError if the model has adapters and they are not merged, if it no longer fits its configuration, if
    the folder is the origin itself, or if the origin's files are gone.
    """
    folder = Path(folder).expanduser()
    parameters, adapted = _whole_parameters(student.model, merge_adapters)
    config, dtype = student.model.config, dtype or student.model.dtype
    rows = embedding_rows(student.model)
    if student.vocabulary.mask_id >= rows:
        raise ForkLeftError(f"the mask id {student.vocabulary.mask_id} has no row left in the {rows} of the embedding")
    if student.origin is None:
        fields, described = json.loads(config.to_json_string()), config
        fields |= {"architectures": [stock_class(config).__name__], "dtype": None}
    else:
        if folder.resolve() == student.origin.folder:
            raise ForkLeftError(f"{folder} is where the student was loaded from; save it to another folder")
        if not student.origin.folder.is_dir():
            raise ForkLeftError(
                f"the student was loaded from {student.origin.folder}, which is gone; its files belong to what is saved"
            )
        fields, described = student.origin.config, stock_config(student.origin.config)
        if rows != described.vocab_size:
            fields = with_vocab_size(fields, rows)
            described = stock_config(fields)
    views = tensor_views(parameters, fields["model_type"], tied=config.tie_word_embeddings)
    _check_described(views, described, fields["model_type"])
    folder.mkdir(parents=True, exist_ok=True)
    # That of a model which this one replaces.
    (folder / MANIFEST).unlink(missing_ok=True)
    if student.origin is None:
        _write_small_files(student, folder)
    else:
        _copy_small_files(student, student.origin.folder, folder)
        if student.tokenizer is not None:
            _keep_template(student.tokenizer, folder)
    # Merged while they are written: a second whole model might not fit into memory.
    write_tensors(folder, views, dtype=dtype, shard_bytes=shard_bytes, final=partial(_merged, adapted))
    write_json(folder / "config.json", _with_dtype(fields, dtype))
    write_sidecar(folder, student)


def merge(source: str | Path, output: str | Path, *, dtype: torch.dtype = torch.float32) -> None:
    """Write the whole model of adapters and their base to the folder `output`, in the format of the base.

    source: a folder or a repository of the hub with only adapters. dtype: of the written weights; the sum is computed
    in float32, in which the adapters were trained.

    Raises ForkLeftError if there are no adapters, if their base is not found, or if `output` is not empty.
    """
    refuse_taken(Path(output).expanduser())
    adapters, _ = adapters_and_base(checkpoint_folder(source))
    if not adapters:
        raise ForkLeftError(f"{source} holds a whole model, no adapters that could be merged; load it as it is")
    save_student(load_student(source), output, dtype=dtype)


def refuse_taken(output: Path) -> None:
    """Raise ForkLeftError if a folder for a model is not new or empty, or cannot be written to."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ForkLeftError(f"{output} is not an empty folder; name a new one")
    check_writable(output)


def check_mergeable(model: PreTrainedModel) -> None:
    """Raise ForkLeftError if a model has adapters that cannot be added into its weights when it is saved."""
    adapted = _adapted(model)
    for name, layer in adapted.items():
        _check_plain(layer, name)
    if "lm_head" in adapted and model.config.tie_word_embeddings:
        raise ForkLeftError(
            "lm_head has an adapter, but its weight is the embedding's too and cannot hold it; leave the head out of "
            "the adapters"
        )


def _adapted(model: PreTrainedModel) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if hasattr(module, "base_layer")}


def _whole_parameters(
    model: PreTrainedModel, merge_adapters: bool
) -> tuple[dict[str, torch.Tensor], dict[torch.Tensor, Any]]:
    """The stock parameters by their stock names, also where PEFT has put adapters around their modules.

    Also returns the adapted layer of every weight that has adapters.
    """
    adapted = _adapted(model)
    if adapted and not merge_adapters:
        raise ForkLeftError(
            f"the student has adapters in {len(adapted)} of its modules; say merge_adapters=True to add them into the "
            "weights, or save the adapters alone with PeftModel.save_pretrained"
        )
    check_mergeable(model)
    parameters: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owner = next((layer for layer in adapted if name.startswith(f"{layer}.")), None)
        if owner is None:
            parameters[name] = parameter
        elif name.startswith(f"{owner}.base_layer."):
            parameters[f"{owner}.{name.removeprefix(f'{owner}.base_layer.')}"] = parameter
    with torch.device("meta"):
        expected = dict(stock_class(model.config)(model.config).named_parameters(remove_duplicate=False))
    if differing := sorted(set(parameters) ^ set(expected)):
        raise ForkLeftError(
            f"the student's model has parameters that its class does not, or lacks some: {shown(differing)}; only "
            "plain LoRA adapters of linear layers can be merged"
        )
    return parameters, {layer.base_layer.weight: layer for layer in adapted.values()}


def _check_described(views: Mapping[str, torch.Tensor], config: PreTrainedConfig, model_type: str) -> None:
    """Refuse to write tensors that do not fit the configuration beside them: they could not be loaded."""
    with torch.device("meta"):
        model = stock_class(config)(config)
    model.tie_weights()
    expected = tensor_views(dict(model.named_parameters()), model_type, tied=config.tie_word_embeddings)
    shapes, described = ({name: tuple(view.shape) for name, view in some.items()} for some in (views, expected))
    if differing := sorted(name for name in shapes | described if shapes.get(name) != described.get(name)):
        lines = [f"{name} {shapes.get(name, 'missing')} / {described.get(name, 'missing')}" for name in differing]
        raise ForkLeftError(
            f"the student is not what its configuration describes (tensor, its shape / as described): {shown(lines)}; "
            "only the size of the vocabulary may change, by model.resize_token_embeddings"
        )


def _check_plain(layer: Any, name: str) -> None:
    plain = isinstance(layer.base_layer, torch.nn.Linear) and hasattr(layer, "lora_A")
    if not plain or any(getattr(layer, "use_dora", {}).values()) or any(getattr(layer, "lora_bias", {}).values()):
        raise ForkLeftError(
            f"{name} has adapters other than plain LoRA of a linear layer, which cannot be merged into its weights; "
            "name other lora_targets, or save them apart (merge_adapters: false)"
        )


@torch.no_grad()
def _merged(adapted: Mapping[torch.Tensor, Any], weight: torch.Tensor) -> torch.Tensor:
    """A weight plus the active LoRA adapters of its layer that are not merged into it yet."""
    if weight not in adapted:
        return weight
    layer = adapted[weight]
    active = [
        adapter for adapter in layer.active_adapters if adapter in layer.lora_A and adapter not in layer.merged_adapters
    ]
    return sum((layer.get_delta_weight(adapter).to(weight) for adapter in active), weight)


def _with_dtype(fields: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The configuration with the dtype of the written weights, in the field that it already has for it."""
    name = "torch_dtype" if "torch_dtype" in fields else "dtype"
    return {**fields, name: str(dtype).removeprefix("torch.")} if name in fields else dict(fields)


def _copy_small_files(student: Student, origin: Path, folder: Path) -> None:
    """Copy those that are the checkpoint's own. What is saved may be published: a link may lead to any file.

    If it leads elsewhere from a file that was loaded, what is in memory is written in its place.
    """
    # The hub's cache has links, which lead to files of the same repository; `hf download` makes links to that cache.
    cached = origin.parents[1] if origin.parent.name == "snapshots" else origin
    roots = [Path(root).resolve() for root in (cached, HF_HUB_CACHE)]

    def own(path: Path) -> bool:
        return any(path.resolve().is_relative_to(root) for root in roots)

    loaded, others = ([p for n in names for p in origin.glob(n) if p.is_file()] for names in (_LOADED, _NOT_LOADED))
    if not all(map(own, loaded)):
        _write_small_files(student, folder)
    for path in filter(own, [*loaded, *others]):
        shutil.copyfile(path, folder / path.name)
    for path in others:
        if not own(path):
            _LOG.warning("%s is not copied: it is a link to a file elsewhere; copy it yourself if you want it", path)


def _keep_template(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the chat template that the student was used with, if it is not the one in the copied files."""
    path, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    fields = read_json(settings) if settings.is_file() else {}
    stored = path.read_text(encoding="utf-8") if path.is_file() else fields.get("chat_template")
    # A tokenizer may have several named templates; then they are its own.
    if not isinstance(tokenizer.chat_template, str) or tokenizer.chat_template == stored:
        return
    write_text(path, tokenizer.chat_template)
    if fields.pop("chat_template", None) is not None:
        write_json(settings, fields, ensure_ascii=False)


def _write_small_files(student: Student, folder: Path) -> None:
    if student.tokenizer is not None:
        student.tokenizer.save_pretrained(folder)
    ends = {"eos_token_id": list(student.vocabulary.stop_ids), "pad_token_id": student.model.config.pad_token_id}
    write_json(folder / "generation_config.json", {name: value for name, value in ends.items() if value is not None})
