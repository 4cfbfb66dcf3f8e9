"""The teacher's answers d, and the file that keeps them.

An answer is decoded once for a prompt, a teacher and a decoding configuration. The cache is a file with one JSON object
a line, each with a checksum over its key and answer. Lines are only appended, under a lock, so that processes may share
the file. A line that a crash cut or the disk damaged is ignored, and its answer is decoded again.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.files import flush, lock, read_appended
from forkleft.prompts import Message

Keep = Callable[[int, "Answer"], None]


@dataclass(frozen=True)
class Answer:
    """What a teacher wrote, as text. `stopped`: it ended by itself, not by the budget."""

    text: str
    stopped: bool


class Answerer(Protocol):
    """Something that answers: a model in memory, or a server."""

    @property
    def identity(self) -> str:
        """A name that changes whenever the answers may change."""

    def answers(
        self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int, keep: Keep | None = None
    ) -> list[Answer]:
        """A greedy answer to each conversation. `keep` gets the number of each and its answer as soon as it ends."""


@dataclass(frozen=True)
class Renamed:
    """An answerer whose answers are kept under another identity: of the same model, as somebody else knows it."""

    answerer: Answerer
    identity: str

    def answers(
        self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int, keep: Keep | None = None
    ) -> list[Answer]:
        """What the answerer answers."""
        return self.answerer.answers(conversations, max_new_tokens=max_new_tokens, keep=keep)


class AnswerCache:
    """Answers in a file, as the docstring of the module says. Raises ForkLeftError if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, Answer] = {}
        self._read_to = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except OSError as error:
            raise ForkLeftError(f"cannot keep answers in {path}: {error.strerror}; name another file") from error
        self._read()

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, key: str) -> Answer:
        """The answer of a key that `get` has found, or that was put."""
        return self._known[key]

    def get(self, key: str) -> Answer | None:
        """The answer of a key, also if another process has written it in the meantime; None if there is none."""
        if key not in self._known:
            self._read()
        return self._known.get(key)

    def put(self, answers: dict[str, Answer]) -> None:
        """Append answers, one a line, except those that are known already."""
        try:
            self._append(answers)
        except OSError as error:
            raise ForkLeftError(
                f"cannot keep answers in {self.path}: {error.strerror}; make room, and start again"
            ) from error

    def _append(self, answers: dict[str, Answer]) -> None:
        with self.path.open("r+b") as file:
            lock(file)
            self._read()
            new = {key: answer for key, answer in answers.items() if key not in self._known}
            end = file.seek(0, os.SEEK_END)
            # After a cut line start a new one, or both would be lost.
            torn = end > 0 and file.seek(end - 1) >= 0 and file.read(1) != b"\n"
            file.write(b"\n" * torn + b"".join(_line(key, answer) for key, answer in new.items()))
            file.flush()
            flush(self.path)
            self._known |= new

    def _read(self) -> None:
        """Read the complete lines after those that were read before."""
        for line, record in read_appended(self.path, self._read_to):
            if line.endswith(b"\n"):
                self._read_to += len(line)
                self._known |= _trusted(record)


def _line(key: str, answer: Answer) -> bytes:
    record = {"key": key} | asdict(answer)
    return json.dumps(record | {"sum": _checksum(record)}).encode() + b"\n"


def _trusted(record: dict[str, Any] | None) -> dict[str, Answer]:
    """The key and answer of a line; empty if the line is damaged."""
    if record is None or record.pop("sum", None) != _checksum(record):
        return {}
    try:
        return {record.pop("key"): Answer(**record)}
    except (KeyError, TypeError):
        return {}


def _checksum(record: dict[str, Any]) -> str:
    return json_digest(record)[:16]


def answer_key(identity: str, messages: Sequence[Message], max_new_tokens: int) -> str:
    """The digest under which an answer is kept."""
    asked = {"teacher": identity, "messages": list(messages), "max_new_tokens": max_new_tokens, "decoding": "greedy"}
    return json_digest(asked)


def cached_answers(
    teacher: Answerer,
    cache: AnswerCache,
    conversations: Sequence[Sequence[Message]],
    *,
    max_new_tokens: int,
    found: Callable[[int], None] = lambda count: None,
) -> list[Answer]:
    """The teacher's answers. Only those that the cache lacks are decoded, and then kept there.

    Each answer is kept as soon as it comes, so that an interrupted run loses only those under way. found: called with
    each answer and the number of conversations that it answers, since a conversation may be there twice.
    """
    keys = [answer_key(teacher.identity, messages, max_new_tokens) for messages in conversations]
    missing = {key: messages for key, messages in zip(keys, conversations, strict=True) if cache.get(key) is None}
    unknown, counts = list(missing), Counter(keys)

    def keep(number: int, answer: Answer) -> None:
        cache.put({unknown[number]: answer})
        found(counts[unknown[number]])

    if unknown:
        teacher.answers(list(missing.values()), max_new_tokens=max_new_tokens, keep=keep)
    return [cache[key] for key in keys]
