"""Records by key in a file that several processes may share, and that outlives crashes.

The file has one JSON object a line, each with a checksum over its key and fields. Lines are only appended, under a
lock. A line that a crash cut or the disk damaged is ignored, so that its record is made again, never trusted.
"""

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
        self._known: dict[str, Record] = {}
        self._read_to = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise ForkLeftError(f"cannot keep {what} in {path}: {error.strerror}; name another file") from error
        self._read()
        self._check_ours()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Record | None:
        """The record of a key, also if another process has written it in the meantime; None if there is none."""
        if key not in self._known:
            self._read()
        return self._known.get(key)

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
            file.write(b"\n" * torn + b"".join(_line(key, record) for key, record in new.items()))
            file.flush()
            flush(self.path)
            self._known |= new

    def _read(self) -> None:
        """Read the complete lines after those that were read before."""
        for line, row in read_appended(self.path, self._read_to):
            if line.endswith(b"\n"):
                self._read_to += len(line)
                self._trust(row)

    def _check_ours(self) -> None:
        """Raise ForkLeftError for a file of somebody else: a recipe that names it must not make us write into it."""
        with self.path.open("rb") as file:
            begins = file.read(len(_BEGINNING))
        if not self._known and not _BEGINNING.startswith(begins):
            raise ForkLeftError(
                f"{self.path} holds something else than {self._what}, which would be written into it; name another file"
            )

    def _trust(self, row: dict[str, Any] | None) -> None:
        """Take the record of a line, unless the line is damaged."""
        if row is None or not is_sealed(row):
            return
        record = unsealed(row)
        if {name: type(value) for name, value in record.items()} == self._fields:
            self._known[record.pop("key")] = record


def _line(key: str, record: Record) -> bytes:
    return json.dumps(sealed({"key": key} | dict(record))).encode() + b"\n"
