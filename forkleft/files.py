"""Files: JSON Lines, and whether anything can be written where the user wants it, before hours of work end there."""

import difflib
import gzip
import json
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forkleft.errors import ForkLeftError


def check_writable(folder: Path, option: str = "--output") -> None:
    """Raise ForkLeftError if a folder cannot be written to or, where it is not there yet, not be made.

    option: where the user names another.
    """
    if folder.is_file():
        raise ForkLeftError(f"expected a folder to write to, found a file: {folder}; name another ({option})")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    with told_of(folder, option), tempfile.TemporaryFile(dir=there):
        pass


@contextmanager
def told_of(path: Path, option: str = "--output") -> Iterator[None]:
    """Raise ForkLeftError, naming a folder or file, for an error of the system within."""
    try:
        yield
    except OSError as error:
        raise ForkLeftError(f"cannot write to {path}: {error.strerror}; name another ({option})") from error


def read_jsonl(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a file, each with where it stands, for messages. Empty lines are passed over.

    Raises ForkLeftError if there is no such file, or a line of it is not a JSON object.
    """
    path = Path(path)
    if not path.is_file():
        raise ForkLeftError(f"expected a JSON Lines file, found none at {path}")
    rows = []
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row, where = json.loads(line), f"{path}, line {number}"
                    if not isinstance(row, dict):
                        raise ForkLeftError(f"{where}: expected a JSON object, found {line!r:.60}")
                    rows.append((where, row))
    except json.JSONDecodeError as error:
        raise ForkLeftError(f"{path}, line {number}: expected a JSON object, found {line!r:.60} ({error})") from error
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ForkLeftError(
            f"{path}: expected UTF-8 JSON Lines, cannot read it: {error}; copy the file anew"
        ) from error
    return rows


def missing_yaml(path: Path, kind: str) -> ForkLeftError:
    """The error for a recipe or another YAML file that is not there, with the nearest name beside it."""
    there = [one.name for one in path.parent.glob("*.y*ml")]
    near = difflib.get_close_matches(path.name, there, n=1) or difflib.get_close_matches(f"{path.name}.yaml", there)
    hint = f"did you mean {path.parent / near[0]}?" if near else "the folder recipes/ of the repository has some"
    return ForkLeftError(f"there is no {kind} {path}; {hint}")
