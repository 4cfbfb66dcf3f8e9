"""Records by key in a file that several processes may share, and that outlives crashes.

The file has one JSON object a line, each with a checksum over its key and fields. Lines are only appended, under a
lock. A line that a crash cut or the disk damaged is ignored, so that its record is made again, never trusted. In memory
there is only where each record stands: the texts of a long run would fill it, in every process.
"""

import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkleft.digests import is_sealed, sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.files import flush, lock, read_appended

Record = Mapping[str, Any]
# As every file of records begins.
_BEGINNING = b'{"key": '


class KeptRecords:
    """The records of a file. fields: the names in each record, and what they are; what: the records in a word.

    Raises ForkLeftError if the file cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path, fields: Mapping[str, type], what: str) -> None:
        self.path = path
        self._fields, self._what = {"key": str} | dict(fields), what
        # The first byte of the line of each record.
        self._known: dict[str, int] = {}
        self._read_to = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            if not path.is_file():
                raise OSError(errno.EINVAL, "Not a regular file")
        except (OSError, ValueError) as error:  # a name with a null byte in it
            reason = error.strerror if isinstance(error, OSError) else error
            raise ForkLeftError(f"cannot keep {what} in {str(path)!r}: {reason}; name another file") from error
        self._read()
        self._check_ours()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Record | None:
        """The record of a key, also if another process has written it in the meantime; None if there is none."""
        try:
            if key not in self._known:
                self._read()
            record = self._at(self._known[key]) if key in self._known else None
        except OSError as error:
            raise ForkLeftError(f"cannot read {self._what} in {self.path}: {error.strerror}; restore it") from error
        if key not in self._known:
            return None
        if record is None or record.pop("key") != key:
            # The disk has damaged it since it was read.
            del self._known[key]
            return None
        return record

    def put(self, records: Mapping[str, Record]) -> None:
        """Append records, one a line, except those that are known already."""
        try:
            self._append(records)
        except OSError as error:
            raise ForkLeftError(
                f"cannot keep {self._what} in {self.path}: {error.strerror}; make room, and start again"
            ) from error

    def _append(self, records: Mapping[str, Record]) -> None:
        with self.path.open("r+b") as file:
            lock(file)
            self._read()
            new = {key: record for key, record in records.items() if key not in self._known}
            end = file.seek(0, os.SEEK_END)
            # After a cut line start a new one, or both would be lost.
            torn = end > 0 and file.seek(end - 1) >= 0 and file.read(1) != b"\n"
            lines = {key: _line(key, record) for key, record in new.items()}
            file.write(b"\n" * torn + b"".join(lines.values()))
            file.flush()
            flush(self.path)
            place = end + torn
            for key, line in lines.items():
                self._known[key] = place
                place += len(line)

    def _read(self) -> None:
        """Read the complete lines after those that were read before."""
        for line, row in read_appended(self.path, self._read_to):
            if line.endswith(b"\n"):
                if (record := self._trusted(row)) is not None:
                    self._known[record["key"]] = self._read_to
                self._read_to += len(line)

    def _at(self, place: int) -> dict[str, Any] | None:
        """The record of the line that begins there, with its key; None if it is damaged."""
        _, row = next(read_appended(self.path, place), (b"", None))
        return self._trusted(row)

    def _check_ours(self) -> None:
        """Raise ForkLeftError for a file of somebody else: a recipe that names it must not make us write into it."""
        with self.path.open("rb") as file:
            begins = file.read(len(_BEGINNING))
        if not self._known and not _BEGINNING.startswith(begins):
            raise ForkLeftError(
                f"{self.path} holds something else than {self._what}, which would be written into it; name another file"
            )

    def _trusted(self, row: dict[str, Any] | None) -> dict[str, Any] | None:
        """The record of a line, with its key; None if the line is damaged."""
        if row is None or not is_sealed(row):
            return None
        record = unsealed(row)
        return record if {name: type(value) for name, value in record.items()} == self._fields else None


def _line(key: str, record: Record) -> bytes:
    return json.dumps(sealed({"key": key} | dict(record))).encode() + b"\n"
