"""Checkpoints that are complete or do not exist.

A checkpoint is written into a staging folder, gets a manifest with the digests of all its files, is flushed to disk,
and is then renamed. After a crash only a staging folder is left, which never counts as a checkpoint. A folder whose
files do not match its manifest does not count either.
"""

import logging
import re
import shutil
from collections.abc import Collection
from pathlib import Path

from forkleft.errors import ForkLeftError
from forkleft.files import flush
from forkleft.manifests import MANIFEST, fault, write_manifest
from forkleft.students.shards import remove_stale

_LOG = logging.getLogger(__name__)
# With an underscore, so that the hub ignores it; by a name that no user gives to a folder, because it is removed.
STAGING = "_forkleft_staging"
_ASIDE = "_not_whole_"
_NAME = re.compile(r"checkpoint-(\d+)")


def publish(staged: Path, final: Path) -> None:
    """Write the manifest of a staged folder, flush it to disk, and give it its name."""
    write_manifest(staged)
    # There may be one of the same update, saved before its evaluation. To remove gigabytes takes time: first comes the
    # new name.
    older = staged.with_name(f"{staged.name}.older")
    if final.exists():
        final.rename(older)
    staged.rename(final)
    flush(final.parent)
    if older.exists():
        shutil.rmtree(older)


def move_files(staged: Path, final: Path) -> None:
    """Move the files of a complete model, and a manifest of them, over those of an older one, and remove the folder.

    Weight files of the older model that the new one does not have (other shards) are removed.
    """
    write_manifest(staged)
    names = {path.name for path in staged.iterdir()}
    # While there are files of both, there is no manifest.
    (final / MANIFEST).unlink(missing_ok=True)
    for name in sorted(names, key=lambda name: name == MANIFEST):
        (staged / name).replace(final / name)
    remove_stale(final, names)
    staged.rmdir()


def set_aside(folder: Path) -> None:
    """Give a checkpoint that is not whole another name, under which it does not count any more.

    It is not removed: perhaps it could only not be read, from a disk that was away for a moment.
    """
    aside = folder.with_name(f"{_ASIDE}{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    _LOG.warning("%s is not whole, and is %s now; remove it when you do not need it", folder, aside.name)


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
