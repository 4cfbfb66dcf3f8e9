"""Checkpoint folders: where they are, and their tensors in one or more safetensors files.

Nothing is unpickled or imported: JSON and safetensors are read, all other files are at most copied.
"""

import hashlib
import json
import re
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatch
from functools import reduce
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS, read_regular, replacing
from forkleft.students.bundled import local_path

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
# What a student needs of a repository: weights, configuration, tokenizer. Its code is kept for saving, and never run.
_WEIGHTS = "*.safetensors"
_BESIDE = ["*.json", "*.txt", "*.jinja", "*.model", "*.py", "LICENSE*", "NOTICE*"]
_DOWNLOADED = [_WEIGHTS, *_BESIDE]
_HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?")
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# How many numbers of each tensor go into a fingerprint.
_SAMPLE = 64
# The files that this module writes, and so may remove.
_WRITTEN = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_SHOWN = 20
# No connection, or none allowed. Errors of the client's HTTP library are recognised by name: that library has changed
# once.
_UNREACHED = (LocalEntryNotFoundError, OfflineModeIsEnabled, ConnectionError)
_UNREACHED_NAMES = ("ConnectError", "ConnectTimeout", "ReadTimeout", "ProxyError")


def checkpoint_folder(path_or_hub_id: str | Path, *, weights: bool = True) -> Path:
    """The local folder of a checkpoint in safetensors, downloaded if it is a repository of the Hugging Face hub.

    weights: download them, too.
    A repository is `owner/name`, or `owner/name@revision` for a branch, tag or commit of it; `lab:NAME` is a model of
    the lab. Raises ForkLeftError if there is none of these, or if its weights are in other formats only.
    """
    path = local_path(path_or_hub_id)
    if path.is_dir():
        refuse_other_weights(path)
        return path
    if path.exists():
        raise ForkLeftError(
            f"{path} is a file: expected a checkpoint's folder; a GGUF file becomes a student with `forkleft convert`"
        )
    found = _HUB_ID.fullmatch(str(path_or_hub_id))
    if not found:
        raise ForkLeftError(
            f"there is no file or folder {path_or_hub_id}, and it cannot be the id of a repository (owner/name or "
            "owner/name@revision)"
        )
    name, revision = found.groups()
    try:
        wanted = _DOWNLOADED if weights else _BESIDE
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (OSError, ValueError) as error:  # what the hub's client raises derives from these
        if hub_unreached(error):
            raise not_reached(path_or_hub_id) from error
        raise ForkLeftError(
            f"there is no folder {path_or_hub_id}, and the hub gave no repository of that name: {first_line(error)}"
        ) from error
    refuse_other_weights(folder)
    if not any(folder.glob("*.safetensors")):
        refuse_other_weights_on_hub(name, revision)
    return folder


def partial_folder(path_or_hub_id: str | Path, tensors: Collection[str]) -> Path:
    """The same, but of a repository of the hub only those weights are downloaded whose files hold the named tensors.

    A repository without an index has all weights in one file. Raises ForkLeftError as `checkpoint_folder` does.
    """
    folder = checkpoint_folder(path_or_hub_id, weights=False)
    found = _HUB_ID.fullmatch(str(path_or_hub_id))
    if local_path(path_or_hub_id).is_dir() or found is None:
        return folder
    files = {_ONE_FILE}
    if (folder / _INDEX).is_file():
        files = {file for name, file in _weight_map(folder).items() if name in tensors}
    name, revision = found.groups()
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=[*_BESIDE, *files]))
    except (OSError, ValueError) as error:
        if hub_unreached(error):
            raise not_reached(path_or_hub_id) from error
        raise ForkLeftError(f"the weights of {path_or_hub_id} cannot be downloaded: {first_line(error)}") from error


def hub_unreached(error: BaseException | None) -> bool:
    """Whether an error of the hub's client means that the hub was not reached. It then says nothing about the model."""
    while error is not None:
        if isinstance(error, _UNREACHED) or type(error).__name__ in _UNREACHED_NAMES:
            return True
        error = error.__cause__ or error.__context__
    return False


def not_reached(name: str | Path) -> ForkLeftError:
    """The error for a model that is not on this machine, if the hub was not reached."""
    if huggingface_hub.constants.is_offline_mode():
        why, what = "the hub was not asked, since HF_HUB_OFFLINE is set", "unset it to download the model"
    else:
        why, what = "the hub was not reached", "try again with a connection"
    return ForkLeftError(f"there is no folder {name} here, and {why}; name a local folder, or {what}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ForkLeftError if the file is missing or damaged."""
    try:
        found = json.loads(read_regular(path))
    except FileNotFoundError:
        raise ForkLeftError(f"{path} is missing: {path.parent} is not a whole checkpoint") from None
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} cannot be read: {first_line(error)}") from error
    if not isinstance(found, dict):
        raise ForkLeftError(f"{path} must hold a JSON object, found a {type(found).__name__}")
    return found


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def refuse_other_weights(folder: Path) -> None:
    """Raise ForkLeftError if the folder's only weights are pickles, or GGUF files and none was named."""
    _refuse(str(folder), [path.name for path in folder.iterdir()])


def refuse_other_weights_on_hub(name: str, revision: str | None) -> None:
    """The same for a repository of the hub; only its list of files is downloaded."""
    try:
        files = huggingface_hub.list_repo_files(name, revision=revision)
    except (OSError, ValueError):  # without the hub nothing is known about files that were not downloaded
        return
    _refuse(name, files)


def _refuse(where: str, files: Iterable[str]) -> None:
    files = sorted(files)
    if any(fnmatch(file, "*.safetensors") and "/" not in file for file in files):
        return
    # Loading a pickle runs the code in it.
    if pickles := [file for file in files if any(fnmatch(file, pattern) for pattern in _PICKLES)]:
        raise ForkLeftError(
            f"{where} has its weights in {shown(pickles)}: pickles, which can run code when they are loaded, are "
            "refused; convert them to safetensors first, or name a revision that has safetensors (owner/name@revision)"
        )
    if packed := [file for file in files if file.endswith(".gguf")]:
        raise ForkLeftError(
            f"{where} has only GGUF weights ({shown(packed)}); name the file to use: --gguf-file {packed[0]} of "
            "`forkleft convert` makes a student of it; of a teacher it is teacher_gguf_file in a recipe, gguf_file in "
            "Python"
        )


def find_tensors(
    folder: Path,
    views: Mapping[str, torch.Tensor],
    *,
    copies: Mapping[str, str],
    passed_over: Callable[[str], bool],
    only: bool = False,
) -> dict[str, Path]:
    """The file of every tensor of a checkpoint that belongs into `views`. Of the views, only the shapes are used.

    copies: names that may also exist, if they equal another tensor (a tied head). passed_over: names to ignore. only:
    files without any of these names need not be there.
    Raises ForkLeftError for missing or damaged files; and, listing them, for tensors that are missing, unexpected, of
    another shape than their view, or not in floating point.
    """
    where = _files_of_tensors(folder, {*views, *copies} if only else None)
    unexpected = sorted(name for name in where if name not in views and name not in copies and not passed_over(name))
    missing = sorted(set(views) - set(where))
    if unexpected or missing:
        faults = [
            f"{kind}: {shown(names)}" for kind, names in (("missing", missing), ("unexpected", unexpected)) if names
        ]
        raise ForkLeftError(
            f"the tensors in {folder} are not those that its config.json describes; {'; '.join(faults)}"
        )
    found = {name: path for name, path in where.items() if name in views}
    for path, names in _by_file(found).items():
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
    for name, of in copies.items():
        if name in where:
            with _opened(where[name]) as file, _opened(where[of]) as other:
                if not torch.equal(file.get_tensor(name), other.get_tensor(of)):
                    raise ForkLeftError(
                        f"config.json ties the output head to the embedding, but {name} differs from {of}; correct "
                        "tie_word_embeddings in config.json"
                    )
    return found


def stored_dtype(where: Mapping[str, Path]) -> torch.dtype:
    """The dtype that can hold all stored tensors that `find_tensors` found."""
    stored = set()
    for path, names in _by_file(where).items():
        with _opened(path) as file:
            stored |= {file.get_slice(name).get_dtype() for name in names}
    return reduce(torch.promote_types, [_DTYPES[name] for name in stored])


@torch.no_grad()
def read_tensors(where: Mapping[str, Path], views: Mapping[str, torch.Tensor]) -> None:
    """Copy the tensors that `find_tensors` found into `views`, one at a time, in their dtype and on their device."""
    for path, names in _by_file(where).items():
        with _opened(path) as file:
            for name in names:
                views[name].copy_(file.get_tensor(name))


def fingerprint_of_file(path: Path) -> str:
    """A digest of the names and shapes of a file's tensors, and of a few numbers in the middle of each."""
    digest = hashlib.sha256()
    with _opened(path) as file:
        for name in sorted(file.keys()):
            stored = file.get_slice(name)
            shape = stored.get_shape()
            digest.update(f"{name}{shape}{stored.get_dtype()}".encode())
            # In the middle, because the first rows of an embedding may never have been trained.
            counts = [1] * (len(shape) - 1) + [_SAMPLE] * (len(shape) > 0)
            middle = tuple(
                slice(size // 2, min(size, size // 2 + count)) for size, count in zip(shape, counts, strict=True)
            )
            digest.update(stored[middle].contiguous().view(torch.uint8).numpy().tobytes() if shape else b"")
    return digest.hexdigest()


def _by_file(where: Mapping[str, Path]) -> dict[Path, list[str]]:
    names_in: dict[Path, list[str]] = {}
    for name, path in where.items():
        names_in.setdefault(path, []).append(name)
    return names_in


def write_tensors(
    folder: Path,
    views: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype,
    shard_bytes: int,
    final: Callable[[torch.Tensor], torch.Tensor] = lambda view: view,
) -> None:
    """Write tensors to safetensors files of at most `shard_bytes` each (or one tensor), with an index if several.

    final: turns a view into what is written (adapters added), one file at a time, so that memory never holds a second
    model. All files are complete before the first gets its name; only then are weights of an earlier save removed.
    """
    # On the meta device: views of one tensor (experts) share memory, and would be put into the same file.
    shapes = {name: torch.empty(view.shape, dtype=dtype, device="meta") for name, view in views.items()}
    shards = huggingface_hub.split_torch_state_dict_into_shards(shapes, max_shard_size=shard_bytes)
    files = [*shards.filename_to_tensors, *([_INDEX] if shards.is_sharded else [])]
    with replacing(folder / file for file in files) as staged:
        for file, names in shards.filename_to_tensors.items():
            tensors = {name: final(views[name]).detach().to("cpu", dtype, copy=True).contiguous() for name in names}
            save_file(tensors, staged[folder / file], metadata={"format": "pt"})
            make_readable(staged[folder / file])
        if shards.is_sharded:
            index = {"metadata": shards.metadata, "weight_map": dict(sorted(shards.tensor_to_filename.items()))}
            staged[folder / _INDEX].write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    remove_stale(folder, files)


def make_readable(path: Path) -> None:
    """Give a file the usual permissions of a new file there: safetensors makes files that only their owner can read."""
    other = path.with_name(f"{path.name}.new")
    other.touch()
    path.chmod(stat.S_IMODE(other.stat().st_mode))
    other.unlink()


def shown(names: list[str]) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def remove_stale(folder: Path, kept: Collection[str]) -> None:
    """Remove the weight files of an older save, except the names in `kept`. No other file is removed."""
    # The index first: while it exists, it says which files are the weights.
    old = [folder / _INDEX, *(path for path in folder.iterdir() if _WRITTEN.fullmatch(path.name))]
    for path in old:
        if path.name not in kept:
            path.unlink(missing_ok=True)


def _files_of_tensors(folder: Path, only: Collection[str] | None = None) -> dict[str, Path]:
    """Which file holds each tensor; only: of these names, and only their files need be there."""
    if (folder / _INDEX).is_file():
        weight_map = _weight_map(folder)
        if only is not None:
            weight_map = {name: file for name, file in weight_map.items() if name in only}
        files = sorted(set(weight_map.values()))
        if absent := [file for file in files if not (folder / file).is_file()]:
            raise ForkLeftError(
                f"{folder} lacks {len(absent)} of its {len(files)} weight files: {shown(absent)}; download it again"
            )
    elif (folder / _ONE_FILE).is_file():
        weight_map, files = None, [_ONE_FILE]
    elif found := sorted(path.name for path in folder.glob("*.safetensors")):
        raise ForkLeftError(f"{folder} has {shown(found)} but neither {_ONE_FILE} nor {_INDEX}; download it again")
    else:
        raise ForkLeftError(f"{folder} has no weights: expected {_ONE_FILE} or {_INDEX}")
    where: dict[str, Path] = {}
    for file in files:
        with _opened(folder / file) as tensors:
            where |= dict.fromkeys(tensors.keys(), folder / file)
    if weight_map is not None and (absent := sorted(set(weight_map) - set(where))):
        raise ForkLeftError(f"{folder / _INDEX} lists tensors that are in none of its files: {shown(absent)}")
    return where


def _weight_map(folder: Path) -> dict[str, str]:
    """The index of a checkpoint in several files: which of them holds each tensor."""
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ForkLeftError(f"{folder / _INDEX} has no weight_map of tensor names to files")
    if outside := [file for file in sorted(set(weight_map.values())) if Path(file).name != file]:
        raise ForkLeftError(f"{folder / _INDEX} names files outside its folder: {shown(outside)}")
    return weight_map


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ForkLeftError(f"{path} is damaged or truncated ({first_line(error)}); download it again") from error
