"""Checkpoint folders: where they are, and their tensors in one or more safetensors files.

Nothing is unpickled and nothing is imported: JSON and safetensors are read, everything else is at most copied.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from forkleft.errors import ForkLeftError

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
# What a student needs of a repository: weights, configuration, tokenizer; its code is kept, for saving, and never run.
_DOWNLOADED = ["*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "*.py", "LICENSE*", "NOTICE*"]
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_DTYPES = ("F64", "F32", "F16", "BF16")
_SHOWN = 8


def checkpoint_folder(path_or_hub_id: str | Path) -> Path:
    """The local folder of a checkpoint, downloaded from the Hugging Face hub if it is the id of a repository there."""
    path = Path(path_or_hub_id).expanduser()
    if path.is_dir():
        return path
    if path.exists():
        raise ForkLeftError(
            f"{path} is a file: expected a checkpoint's folder; a GGUF file becomes a student with `forkleft convert`"
        )
    name = str(path_or_hub_id)
    if not _HUB_ID.fullmatch(name):
        raise ForkLeftError(f"there is no folder {name}, and it cannot be the id of a repository (owner/name)")
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_DOWNLOADED))
    except (OSError, ValueError) as error:  # what the hub's client raises derives from these
        raise ForkLeftError(
            f"there is no folder {name}, and the hub gave no repository of that name: {first_line(error)}"
        ) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ForkLeftError if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ForkLeftError(f"{path} is missing: {path.parent} is not a whole checkpoint") from None
    except (OSError, ValueError) as error:
        raise ForkLeftError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise ForkLeftError(f"{path} must hold a JSON object, found a {type(found).__name__}")
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refuse_pickles(folder: Path) -> None:
    """Raise ForkLeftError if the folder's only weights are pickled: to load those is to run what is in them."""
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise ForkLeftError(
            f"{folder} has its weights in {', '.join(pickles[:_SHOWN])}: pickles, which can run code when they are "
            "loaded, are refused; convert them to safetensors first, or take a revision that has them"
        )


@torch.no_grad()
def read_tensors(
    folder: Path,
    views: Mapping[str, torch.Tensor],
    *,
    copies: Mapping[str, str],
    passed_over: Callable[[str], bool],
) -> None:
    """Copy a checkpoint's tensors into `views`, one at a time, in their dtype and on their device.

    copies: names that may be there too if they equal another tensor (a tied head). passed_over: names to leave alone.
    Raises ForkLeftError for missing or damaged files, and listing the tensors that are missing, unexpected, of another
    shape than their view, or not in floating point. Names and shapes are checked before anything is copied.
    """
    where = _files_of_tensors(folder)
    unexpected = sorted(name for name in where if name not in views and name not in copies and not passed_over(name))
    missing = sorted(set(views) - set(where))
    if unexpected or missing:
        told = [
            f"{kind}: {_shown(names)}" for kind, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        raise ForkLeftError(f"the tensors in {folder} are not those that its config.json describes; {'; '.join(told)}")
    names_in: dict[Path, list[str]] = {}
    for name, path in where.items():
        if name in views:
            names_in.setdefault(path, []).append(name)
    for path, names in names_in.items():
        with _opened(path) as file:
            for name in names:
                view, stored = views[name], file.get_slice(name)
                if tuple(stored.get_shape()) != tuple(view.shape):
                    raise ForkLeftError(
                        f"{path.name}: {name} has shape {tuple(stored.get_shape())}, but config.json makes it "
                        f"{tuple(view.shape)}"
                    )
                if stored.get_dtype() not in _DTYPES:
                    raise ForkLeftError(
                        f"{path.name}: {name} is stored as {stored.get_dtype()}; expected floating point "
                        f"({', '.join(_DTYPES)}), not a quantised form"
                    )
    for path, names in names_in.items():
        with _opened(path) as file:
            for name in names:
                views[name].copy_(file.get_tensor(name))
    for name, of in copies.items():
        if name in where:
            with _opened(where[name]) as file, _opened(where[of]) as other:
                if not torch.equal(file.get_tensor(name), other.get_tensor(of)):
                    raise ForkLeftError(
                        f"config.json ties the output head to the embedding, but {name} differs from {of}; correct "
                        "tie_word_embeddings in config.json"
                    )


def write_tensors(folder: Path, views: Mapping[str, torch.Tensor], *, dtype: torch.dtype, shard_bytes: int) -> None:
    """Write tensors to safetensors files of at most `shard_bytes` each (or one tensor), with an index if several.

    Weights that an earlier save left in the folder are removed first.
    """
    for old in (*folder.glob("model*.safetensors"), folder / _INDEX):
        old.unlink(missing_ok=True)
    shards: list[list[str]] = [[]]
    size = total = 0
    for name, view in views.items():
        bytes_ = view.numel() * dtype.itemsize
        if shards[-1] and size + bytes_ > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size, total = size + bytes_, total + bytes_
    files = [_ONE_FILE]
    if len(shards) > 1:
        files = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for file, names in zip(files, shards, strict=True):
        # Views of one tensor (experts) must not share memory in a file.
        tensors = {
            name: views[name].detach().to("cpu", dtype).clone(memory_format=torch.contiguous_format) for name in names
        }
        save_file(tensors, folder / file, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: file for file, names in zip(files, shards, strict=True) for name in names}
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _files_of_tensors(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    refuse_pickles(folder)
    if (folder / _INDEX).is_file():
        weight_map = read_json(folder / _INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise ForkLeftError(f"{folder / _INDEX} has no weight_map of tensor names to files")
        files = sorted(set(weight_map.values()))
        if outside := [file for file in files if Path(file).name != file]:
            raise ForkLeftError(f"{folder / _INDEX} names files outside its folder: {_shown(outside)}")
        if absent := [file for file in files if not (folder / file).is_file()]:
            raise ForkLeftError(
                f"{folder} lacks {len(absent)} of its {len(files)} weight files: {_shown(absent)}; download it again"
            )
    elif (folder / _ONE_FILE).is_file():
        weight_map, files = None, [_ONE_FILE]
    elif found := sorted(path.name for path in folder.glob("*.safetensors")):
        raise ForkLeftError(f"{folder} has {_shown(found)} but neither {_ONE_FILE} nor {_INDEX}; download it again")
    elif found := sorted(path.name for path in folder.glob("*.gguf")):
        raise ForkLeftError(f"{folder} has only GGUF weights ({_shown(found)}); make a student with `forkleft convert`")
    else:
        raise ForkLeftError(f"{folder} has no weights: expected {_ONE_FILE} or {_INDEX}")
    where: dict[str, Path] = {}
    for file in files:
        with _opened(folder / file) as tensors:
            where |= dict.fromkeys(tensors.keys(), folder / file)
    if weight_map is not None and (absent := sorted(set(weight_map) - set(where))):
        raise ForkLeftError(f"{folder / _INDEX} lists tensors that are in none of its files: {_shown(absent)}")
    return where


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ForkLeftError(f"{path} is damaged or truncated ({first_line(error)}); download it again") from error


def _shown(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
