"""Files, for all rooms: writing them whole or not at all, reading files with torn lines, and locks.

Also checks that the user's folder can be written to, before hours of work are lost.
"""

import errno
import fcntl
import gzip
import json
import os
import re
import socket
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from forkleft.digests import is_intact
from forkleft.errors import ForkLeftError, nearest

# What reading JSON that somebody else wrote may raise: RecursionError for thousands of brackets in each other.
JSON_ERRORS = (ValueError, RecursionError)
# The names of `replacing`, of the kinds of files that are written so.
_UNFINISHED = re.compile(r"\..+\.(?:jsonl|json|md|yaml|html|png|svg|jinja|safetensors)\.(.+)-(\d+)")
# Seconds after which a file that another machine was writing is not written any more.
_ABANDONED = 24 * 3600.0
# Entries of a YAML file. With aliases, a few lines could stand for billions.
_MOST_ENTRIES = 100_000
_MERGE = "tag:yaml.org,2002:merge"
# Characters of a line of data. A small gzipped file could hold one that fills the memory.
_LONGEST_LINE = 1 << 27


def check_writable(folder: Path, option: str = "--output") -> None:
    """Raise ForkLeftError if a folder cannot be written to or, if it does not exist yet, cannot be made.

    option: with which the user can name another folder.
    """
    if "\0" in str(folder):
        raise ForkLeftError(f"expected a folder to write to, found {str(folder)!r:.80}; name another ({option})")
    # Already to look at a path may be an error: a name of 300 characters, a folder that may not be searched.
    with writing_to(folder, option):
        if folder.is_file():
            raise ForkLeftError(f"expected a folder to write to, found a file: {folder}; name another ({option})")
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            pass


def check_new(folder: Path) -> None:
    """Raise ForkLeftError if a folder exists already, or cannot be made."""
    if folder.exists():
        raise ForkLeftError(f"{folder} exists already; name a new folder")
    check_writable(folder)


@contextmanager
def writing_to(path: Path, option: str = "--output") -> Iterator[None]:
    """Turn a system error within the block into a ForkLeftError that names the folder or file."""
    try:
        yield
    except OSError as error:
        raise ForkLeftError(f"cannot write to {path}: {error.strerror}; name another ({option})") from error


@contextmanager
def replacing(paths: Iterable[Path]) -> Iterator[dict[Path, Path]]:
    """Give each file a path beside it to write to. When all are on disk, each is renamed to its file, in order.

    After an error the files are as they were before.
    """
    staged = {path: path.with_name(f".{path.name}{unfinished_mark()}") for path in paths}
    try:
        yield staged
        for written in staged.values():
            flush(written)
        for path, written in staged.items():
            os.replace(written, path)
    finally:
        for written in staged.values():
            written.unlink(missing_ok=True)


def unfinished_mark() -> str:
    """The end of the names of files that this process has not finished: the machine, and the process on it."""
    return f".{socket.gethostname()}-{os.getpid()}"


def remove_unfinished(folder: Path) -> None:
    """Remove the files beside others that processes left which were killed while they wrote (`replacing`).

    To be called by who works on the folder. Another process may write a report there at the same time. On this machine
    it is known whether it still runs; on another one of a shared disk, files of the last day are left alone.
    """
    for path in folder.glob(".*"):
        if not (found := _UNFINISHED.fullmatch(path.name)):
            continue
        with suppress(FileNotFoundError):
            here = found[1] == socket.gethostname()
            written = _is_running(int(found[2])) if here else time.time() - path.stat().st_mtime < _ABANDONED
            if not written:
                path.unlink()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # of another user
        return True
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    try:
        with replacing([path]) as staged:
            staged[path].write_bytes(content)
    except OSError as error:
        # The error of a full disk names no file.
        error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any, **style: Any) -> None:
    """Write a JSON file, whole or not at all. style: for `json.dumps`; the default indent is 2."""
    write_text(path, json.dumps(value, **{"indent": 2} | style) + "\n")


def is_file(path: Path) -> bool:
    """Whether there is such a file; False also for a text that can be no path, which somebody else may have written."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_regular(path: Path, most: int = 1 << 26) -> str:
    """The text of a file that somebody else may have named: /dev/zero has no end, and a pipe may never begin.

    Raises OSError for anything but a regular file of at most so many bytes, UnicodeDecodeError for other than UTF-8.
    """
    with open(path, encoding="utf-8", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"Larger than {most >> 20} MiB", str(path))
        return file.read()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def flush(path: Path) -> None:
    """Force a file, or the names in a folder, to disk before anything relies on them."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_appended(path: Path, start: int = 0) -> Iterator[tuple[bytes, dict[str, Any] | None]]:
    """The lines of a JSON Lines file that is only ever appended to, from byte `start` on, each with its object.

    None instead of an object: the line is damaged (also if it is not as it was sealed), or has no end because it was
    cut or is still being written.
    """
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            yield line, _whole_object(line)


def _whole_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line) if line.endswith(b"\n") else None
        return row if isinstance(row, dict) and is_intact(row) else None
    except JSON_ERRORS:
        return None


def lock(file: IO[Any], *, wait: bool = True) -> bool:
    """Lock an open file until this process, and all that inherit the file, have closed it. False if another holds it.

    It is a lock of the operating system, which frees it whenever a process ends, even by a crash. wait: until another
    process frees it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has locked a file. Another that tries to lock it during this check may fail, and can retry."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def read_jsonl(path: str | Path) -> list[tuple[str, dict[str, Any]]]:
    """The objects of a JSON Lines file, each with its place in the file, for messages. Empty lines are skipped.

    Raises ForkLeftError if there is no such file, or if a line is not a JSON object.
    """
    return list(stream_jsonl(path))


def stream_jsonl(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same, read while it is iterated over."""
    path = Path(path)
    if not path.is_file():
        raise ForkLeftError(f"expected a JSON Lines file, found none at {path}")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE + 1), ""), start=1):
                if len(line) > _LONGEST_LINE:
                    raise ForkLeftError(f"{path}, line {number}: expected at most {_LONGEST_LINE:,} characters")
                if line.strip():
                    where = f"{path}, line {number}"
                    yield where, _object(line, where)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ForkLeftError(
            f"{path}: expected UTF-8 JSON Lines, cannot read it: {error}; copy the file anew"
        ) from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except JSON_ERRORS as error:
        raise ForkLeftError(f"{where}: expected a JSON object, found {line!r:.60} ({error})") from error
    if not isinstance(row, dict):
        raise ForkLeftError(f"{where}: expected a JSON object, found {line!r:.60}")
    return row


def missing_yaml(path: Path, kind: str) -> ForkLeftError:
    """The error for a recipe or another YAML file that does not exist, with the nearest file name in that folder."""
    there = [other.name for other in path.parent.glob("*.y*ml")]
    near = nearest(path.name, there) or nearest(f"{path.name}.yaml", there)
    hint = f"did you mean {path.parent / near}?" if near else "the folder recipes/ of the repository has some"
    return ForkLeftError(f"there is no {kind} {path}; {hint}")


class YamlLoader(yaml.SafeLoader):
    """YAML as people write it today: `no` and `on` are words, `1e-6` is a number.

    Aliases count as often as they are used: with too many entries, it raises yaml.YAMLError.
    """

    # Entries that were merged into others so far.
    _merged = 0

    def get_data(self) -> Any:
        """The next document."""
        return _countable(super().get_data())

    def get_single_data(self) -> Any:
        """The only document."""
        return _countable(super().get_single_data())

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Put the entries of `<<` beside those of a mapping. They are counted before, over all of the file."""
        for key, value in node.value:
            if key.tag == _MERGE:
                for part in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    if isinstance(part, yaml.MappingNode):
                        self.flatten_mapping(part)
                        self._merged += len(part.value)
                    if self._merged > _MOST_ENTRIES:
                        raise _too_many()
        super().flatten_mapping(node)


def _countable(value: Any) -> Any:
    """The value, if it has a number of entries that can be read. One that holds itself has not."""
    left, waiting = _MOST_ENTRIES, [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, Mapping):
            waiting.extend(inner.values())
        elif isinstance(inner, list | tuple):
            waiting.extend(inner)
        left -= 1
        if left < 0:
            raise _too_many()
    return value


def _too_many() -> yaml.YAMLError:
    return yaml.YAMLError(f"expected at most {_MOST_ENTRIES:,} entries, aliases counted as often as they are used")


YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if not tag.endswith((":bool", ":float"))]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"(true|false)$", re.IGNORECASE), list("tTfF"))
YamlLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$|[-+]?\.inf$|\.nan$", re.IGNORECASE),
    list("-+.0123456789"),
)


def read_yaml(path: Path, kind: str) -> dict[str, Any]:
    """The names and values of a YAML file. kind: of the file, for the message. Raises ForkLeftError if it has none."""
    try:
        values = yaml.load(read_regular(path), YamlLoader)
    except FileNotFoundError:
        raise missing_yaml(path, kind) from None
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise ForkLeftError(f"{path} is no YAML file{line}: {error.problem}") from error
    except (OSError, yaml.YAMLError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} is no YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(values, Mapping):
        raise ForkLeftError(f"{path}: expected names with values, as in `learning_rate: 1e-6`, found {values!r:.60}")
    return {str(name): value for name, value in values.items()}
