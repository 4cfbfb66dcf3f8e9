"""Whether files can be written where the user wants them, before hours of work are to end there."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
