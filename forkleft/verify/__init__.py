"""Whether a written answer is right: one function for training and evaluation."""

from typing import Literal

from forkleft.errors import ForkLeftError
from forkleft.verify.lab import lab_answer

Kind = Literal["lab"]

_EXTRACTORS = {"lab": lab_answer}


def verify(response: str, answer: str, kind: Kind) -> bool:
    """Whether the final answer written in `response` equals `answer`. A response without one is wrong."""
    if kind not in _EXTRACTORS:
        raise ForkLeftError(f"unknown verifier kind {kind!r}; there are {', '.join(_EXTRACTORS)}")
    return _EXTRACTORS[kind](response) == answer
