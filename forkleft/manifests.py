"""Manifests: the digests of the files of a folder, by which it is known whether all are there as they were written."""

import json
from collections.abc import Callable
from pathlib import Path

from forkleft.digests import file_digest
from forkleft.files import JSON_ERRORS, flush, is_file, read_regular, write_json

MANIFEST = "manifest.json"


def write_manifest(folder: Path) -> None:
    """Write the digests of all files of a folder, and force all to disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    write_json(folder / MANIFEST, {str(path.relative_to(folder)): file_digest(path) for path in files})
    for path in [*files, folder]:
        flush(path)


def fault(folder: Path, *, digests: bool = True, counts: Callable[[str], bool] = lambda name: True) -> str | None:
    """Why a folder is not as its manifest says, or None if it is.

    digests: read all files, not only check that they exist. counts: whether a file is looked at, by its name.
    """
    try:
        manifest = json.loads(read_regular(folder / MANIFEST))
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (*JSON_ERRORS, OSError) as error:
        return f"{MANIFEST} is damaged ({error})"
    if not isinstance(manifest, dict) or not manifest:
        return f"{MANIFEST} is damaged (expected digests by name, found {manifest!r:.40})"
    for name, digest in manifest.items():
        path = folder / name
        # A manifest that somebody else wrote must not let us read what is not in the folder.
        if ".." in path.parts or not path.is_relative_to(folder):
            return f"{MANIFEST} is damaged (it names {name!r:.40}, which is not in the folder)"
        if not counts(name):
            continue
        if not is_file(path):
            return f"{name:.200} is missing"
        try:
            if digests and file_digest(path) != digest:
                return f"{name} is damaged"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return None
