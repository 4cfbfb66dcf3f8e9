"""The teacher's answers d, and the file that keeps them.

An answer is decoded once for a prompt, a teacher and a decoding configuration. Processes may share the file
(`records.py`); an answer whose line is damaged is decoded again.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from forkleft.digests import json_digest
from forkleft.prompts import Message
from forkleft.records import KeptRecords

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
    """Answers in a file (`KeptRecords`), each by its key. Raises ForkLeftError if it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self._records = KeptRecords(path, {"text": str, "stopped": bool}, "answers")

    def __len__(self) -> int:
        return len(self._records)

    @property
    def path(self) -> Path:
        """The file."""
        return self._records.path

    def get(self, key: str) -> Answer | None:
        """The answer of a key, also if another process has written it in the meantime; None if there is none."""
        record = self._records.get(key)
        return None if record is None else Answer(**record)

    def put(self, answers: dict[str, Answer]) -> None:
        """Append answers, one a line, except those that are known already."""
        self._records.put({key: asdict(answer) for key, answer in answers.items()})


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
    return [answer for key in keys if (answer := cache.get(key)) is not None]
