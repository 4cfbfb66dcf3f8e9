"""Whether two files, or two models, are the same."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Numbers of each parameter that are looked at.
_SAMPLE = 64
# What differs with the place a checkpoint was loaded from, or with the version that loaded it, and changes no answer.
_INCIDENTAL = {"_name_or_path", "transformers_version", "_attn_implementation_autoset", "_commit_hash"}


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(model: "PreTrainedModel", others: Iterable[str] = ()) -> str:
    """A digest of configuration, a sample of every parameter, and `others`: other weights, another fingerprint.

    Parameters that are not in memory (offloaded to disk) count by name and shape alone.
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
