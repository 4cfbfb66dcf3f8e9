"""Whether a written answer is right: one interface for training and evaluation."""

from collections.abc import Callable, Sequence
from typing import Literal

from forkleft.errors import ForkLeftError
from forkleft.verify.lab import lab_answer

Kind = Literal["lab"]

_EXTRACTORS: dict[str, Callable[[str], str | None]] = {"lab": lab_answer}


def verify(response: str, answer: str, kind: Kind) -> bool:
    """Whether the final answer written in `response` equals `answer`. A response without one is wrong."""
    return verify_batch([response], [answer], kind)[0]


def verify_batch(responses: Sequence[str], answers: Sequence[str], kind: Kind) -> list[bool]:
    """`verify` for many responses, in their order."""
    if len(responses) != len(answers):
        raise ForkLeftError(f"expected an answer for each response, found {len(responses)} and {len(answers)}")
    found = [extract(response, kind) for response in responses]
    return [one is not None and one == answer for one, answer in zip(found, answers, strict=True)]


def extract(response: str, kind: Kind) -> str | None:
    """The final answer written in `response`, or None if there is none."""
    if kind not in _EXTRACTORS:
        raise ForkLeftError(f"unknown verifier kind {kind!r}; there are {', '.join(_EXTRACTORS)}")
    return _EXTRACTORS[kind](response)
