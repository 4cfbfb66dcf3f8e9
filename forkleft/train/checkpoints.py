"""Checkpoints that are complete or do not exist.

A checkpoint is written into a staging folder, gets a manifest with the digests of all its files, is flushed to disk,
and is then renamed. After a crash only a staging folder is left, which never counts as a checkpoint. A folder whose
files do not match its manifest does not count either.
"""

import json
import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from forkleft.digests import file_digest
from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS, flush, write_json
from forkleft.students.shards import remove_stale

_LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
# With an underscore, so that the hub ignores it.
STAGING = "_staging"
_NAME = re.compile(r"checkpoint-(\d+)")


def publish(staged: Path, final: Path) -> None:
    """Write the manifest of a staged folder, flush it to disk, and give it its name."""
    files = sorted(path for path in staged.rglob("*") if path.is_file() and path.name != MANIFEST)
    digests = {str(path.relative_to(staged)): file_digest(path) for path in files}
    manifest = staged / MANIFEST
    write_json(manifest, digests)
    for path in [*files, staged]:
        flush(path)
    if final.exists():
        # From a run that was resumed from an earlier checkpoint. The new one is the same, or newer.
        shutil.rmtree(final)
    staged.rename(final)
    flush(final.parent)


def move_files(staged: Path, final: Path) -> None:
    """Move the files of a complete model over those of an older one, and remove the folder.

    Weight files of the older model that the new one does not have (other shards) are removed.
    """
    names = {path.name for path in staged.iterdir()}
    for path in staged.iterdir():
        flush(path)
        path.replace(final / path.name)
    remove_stale(final, names)
    staged.rmdir()


def fault(folder: Path, *, digests: bool = True) -> str | None:
    """Why a checkpoint is not whole, or None if it is. digests: read all files, not only check that they exist."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (*JSON_ERRORS, OSError) as error:
        return f"{MANIFEST} is damaged ({error})"
    if not isinstance(manifest, dict) or not manifest:
        return f"{MANIFEST} is damaged (expected digests by name, found {manifest!r:.40})"
    for name, digest in manifest.items():
        path = folder / name
        # A manifest that somebody else wrote must not let us read what is not of the checkpoint.
        if ".." in path.parts or not path.is_relative_to(folder):
            return f"{MANIFEST} is damaged (it names {name!r:.40}, which is not in the checkpoint)"
        if not path.is_file():
            return f"{name} is missing"
        if digests and file_digest(path) != digest:
            return f"{name} is damaged"
    return None


def newest_whole(output: Path, *, digests: bool = True) -> Path:
    """The newest whole checkpoint of a run. Raises ForkLeftError, naming what was found, if there is none."""
    faults: list[str] = []
    for folder in reversed(steps(output).values()):
        if (reason := fault(folder, digests=digests)) is None:
            if faults and digests:
                _LOG.warning("not whole in %s: %s; %s is the newest that is", output, "; ".join(faults), folder.name)
            return folder
        faults.append(f"{folder.name}: {reason}")
    what = "; ".join(faults) if faults else "no folder checkpoint-N"
    raise ForkLeftError(f"no whole checkpoint to resume from in {output} ({what}); start without resuming")


def check_whole(folder: Path, *, digests: bool = True) -> None:
    """Raise ForkLeftError if a checkpoint that was named is not whole."""
    if not folder.is_dir():
        raise ForkLeftError(f"{folder} is no folder; name a checkpoint-N of the run, or true for the newest")
    if (reason := fault(folder, digests=digests)) is not None:
        raise ForkLeftError(
            f"{folder} is not a whole checkpoint ({reason}); name another, or true for the newest whole"
        )


def steps(output: Path) -> dict[int, Path]:
    """The checkpoints in a folder, whole or not, by their step, oldest first."""
    found = {int(match[1]): path for path in output.glob("checkpoint-*") if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))


def rotate(output: Path, limit: int | None, *, best: str | None, kept: Collection[int] = ()) -> None:
    """Remove the oldest checkpoints beyond `limit`; never the newest, nor the best. Those in `kept` do not count."""
    found = steps(output)
    counted = [path for step, path in found.items() if step not in kept]
    spared = {next(reversed(found.values())).name, None if best is None else Path(best).name}
    removable = [path for path in counted if path.name not in spared]
    excess = 0 if not limit else len(counted) - limit
    for path in removable[: max(0, excess)]:
        shutil.rmtree(path)
