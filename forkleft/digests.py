"""Digests that tell whether two files, values or models are the same; and where two values differ."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# How many numbers of each parameter go into a fingerprint.
_SAMPLE = 64
_SUM = "sum"
# Fields that depend on where a checkpoint was loaded from, or by which version. They change no answer.
_INCIDENTAL = {"_name_or_path", "transformers_version", "_attn_implementation_autoset", "_commit_hash"}


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def text_digest(text: str) -> str:
    """sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def json_digest(value: Any) -> str:
    """sha256 of a value that JSON can hold. The order of keys does not matter.

    Answer caches, results, checkpoints and studies on users' disks hold such digests: the digest of a value must never
    change.
    """
    return text_digest(json.dumps(value, sort_keys=True))


def sealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """An object for a file of ours, with a checksum of the rest under `sum`: a digit that the disk changes is seen."""
    # As it will be read: lists instead of tuples, names that are text.
    row = json.loads(json.dumps(row))
    return {**row, _SUM: json_digest(row)[:16]}


def is_intact(row: Mapping[str, Any]) -> bool:
    """Whether an object is as it was sealed. One without a checksum is from before there were any, and counts as so."""
    return _SUM not in row or row[_SUM] == json_digest({name: row[name] for name in row if name != _SUM})[:16]


def is_sealed(row: Mapping[str, Any]) -> bool:
    """Whether an object has a checksum, which `is_intact` can look at."""
    return _SUM in row


def unsealed(row: Mapping[str, Any]) -> dict[str, Any]:
    """The object without its checksum."""
    return {name: value for name, value in row.items() if name != _SUM}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Name, old value and new value of everything that differs; None for a value that is missing.

    Objects in both are compared entry by entry. An entry is named by its path: `sampler.seed`.
    """
    for name in {**old, **new}:
        was, now = old.get(name), new.get(name)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from differences(was, now, f"{within}{name}.")
        elif was != now:
            yield f"{within}{name}", was, now


def fingerprint(model: "PreTrainedModel", others: Iterable[str] = ()) -> str:
    """A digest of the configuration, a sample of every parameter, and `others`. Other weights give another fingerprint.

    Parameters that are not in memory (offloaded to disk) count only by name and shape.
    """
    config = {name: value for name, value in model.config.to_dict().items() if name not in _INCIDENTAL}
    digest = hashlib.sha256(json.dumps([config, *others], default=str, sort_keys=True).encode())
    for name, parameter in model.named_parameters():
        digest.update(f"{name}{tuple(parameter.shape)}".encode())
        if not parameter.is_meta:
            flat = parameter.detach().flatten()
            sample = flat[:: max(1, len(flat) // _SAMPLE)][:_SAMPLE].cpu().float()
            digest.update(sample.numpy().tobytes())
    return digest.hexdigest()
