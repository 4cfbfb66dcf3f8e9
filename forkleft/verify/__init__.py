"""Whether a written answer is right: one interface for training and evaluation."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from forkleft.errors import ForkLeftError
from forkleft.verify.choice import choice_answer
from forkleft.verify.lab import lab_answer
from forkleft.verify.pool import shared_pool

_LOG = logging.getLogger(__name__)

Kind = Literal["math", "opdlm", "choice", "lab"]
KINDS: tuple[str, ...] = Kind.__args__
# What is judged in worker processes.
MATHEMATICAL = ("math", "opdlm")
LETTERS = "ABCD"


@dataclass(frozen=True)
class Judgement:
    """What the verifier says of a response.

    extracted: the final answer found in it, None if there is none. judged: False if there is no verdict, since the
    comparison went beyond its bounds; then it is not `correct` either.
    """

    correct: bool
    extracted: str | None
    judged: bool = True


def verify(response: str, answer: str, kind: Kind = "math", *, letters: str = LETTERS) -> bool:
    """Whether the final answer written in `response` equals `answer`. A response without one is wrong.

    `math` compares values (0.5 is 1/2), in worker processes with bounds of time and memory: an answer that cannot be
    compared within them is wrong. `opdlm` does so as OPDLM's scorer does, for the paper's figures. `choice` compares
    the letter chosen among `letters`. `lab` is for the lab's chains. `docs/evaluation.md` tells the details.
    """
    return verify_batch([response], [answer], kind, letters=letters)[0]


def verify_batch(
    responses: Sequence[str], answers: Sequence[str], kind: Kind = "math", *, letters: str = LETTERS
) -> list[bool]:
    """`verify` for many responses, in their order. How many have no verdict, and count as wrong, is logged."""
    judgements = judge_batch(responses, answers, kind, letters=letters)
    if lost := sum(not one.judged for one in judgements):
        _LOG.warning(
            "no verdict on %d of %d responses within the verifier's bounds; they count as wrong", lost, len(judgements)
        )
    return [one.correct for one in judgements]


def judge_batch(
    responses: Sequence[str], answers: Sequence[str], kind: Kind = "math", *, letters: str = LETTERS
) -> list[Judgement]:
    """The verdict on each response together with the answer found in it, in their order.

    An item's judgement depends on nothing but the item. Raises ForkLeftError for an unknown kind, for unequal numbers
    of responses and answers, and for an expected choice that is not among `letters`.
    """
    check_kind(kind, letters)
    if len(responses) != len(answers):
        raise ForkLeftError(f"expected an answer for each response, found {len(responses)} and {len(answers)}")
    if kind in MATHEMATICAL:
        requests = [(kind, response, answer) for response, answer in zip(responses, answers, strict=True)]
        return [Judgement(*reply) for reply in shared_pool().judge(requests)]
    for answer in answers:
        if kind == "choice" and (len(answer) != 1 or answer not in letters):
            raise ForkLeftError(
                f"expected one of the letters {letters} as the right choice, found {answer!r:.40}; "
                "name the offered letters with letters=…"
            )
    found = [extract(response, kind, letters=letters) for response in responses]
    return [Judgement(one is not None and one == answer, one) for one, answer in zip(found, answers, strict=True)]


def extract(response: str, kind: Kind = "math", *, letters: str = LETTERS) -> str | None:
    """The final answer written in `response`, or None if there is none."""
    check_kind(kind, letters)
    if kind in MATHEMATICAL:
        return shared_pool().judge([(kind, response, None)])[0][1]
    return choice_answer(response, letters) if kind == "choice" else lab_answer(response)


def check_kind(kind: str, letters: str = LETTERS) -> None:
    """Raise ForkLeftError for a kind that does not exist, and for letters that cannot be offered."""
    if kind not in KINDS:
        raise ForkLeftError(f"unknown verifier kind {kind!r}; there are {', '.join(KINDS)}")
    if not re.fullmatch("[A-Z]+", letters):
        raise ForkLeftError(f"expected capital letters of the offered choices, found {letters!r:.40}")
