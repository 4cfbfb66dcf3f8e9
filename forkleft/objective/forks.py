"""The fork of an update, for people to read: where the student was least sure, and what both models say there.

It costs one row of each head, next to the thousands that the update needs.

Shapes: K rows with a teacher, S rows in all, V words, D and E the widths of student and teacher.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from forkleft.prompts import Reading
from forkleft.students.student import Student

# How many tokens before the fork are kept, to show where it is.
_BEFORE = 8


@dataclass(frozen=True)
class Fork:
    """A position of a response. Tokens are ids, each with its probability.

    question: its name and route. position: from 0. before: the tokens that lead to it. written: the token that the
    student committed there. student: its two likeliest tokens under the prefix; teacher: its likeliest one.
    """

    question: str
    position: int
    before: tuple[int, ...]
    written: int
    student: tuple[tuple[int, float], tuple[int, float]]
    teacher: tuple[int, float]


# Takes the fork of an update.
WatchFork = Callable[[Fork], None]


@torch.no_grad()
def fork_of(
    student: Student,
    readings: list[Reading],
    entropy_S: torch.Tensor,
    hidden_SD: torch.Tensor,
    teacher_hidden_KE: torch.Tensor,
    teacher_weight_VE: torch.Tensor,
) -> Fork:
    """The fork among the rows that have a teacher, which come first and belong to the readings' positions in turn."""
    row = int(entropy_S[: len(teacher_hidden_KE)].argmax())
    reading, position = [(reading, i) for reading in readings for i in reading.positions][row]
    best = _likeliest(hidden_SD[row], student.head_weight, student.excluded_V)
    return Fork(
        question=reading.id,
        position=position,
        before=tuple(reading.response[max(0, position - _BEFORE) : position]),
        written=reading.response[position],
        student=(best[0], best[1]),
        teacher=_likeliest(teacher_hidden_KE[row], teacher_weight_VE, student.excluded_V)[0],
    )


def _likeliest(hidden_D: torch.Tensor, weight_VD: torch.Tensor, excluded_V: torch.Tensor) -> list[tuple[int, float]]:
    """The two likeliest tokens of a row, each with its probability."""
    logits_V = weight_VD[: len(excluded_V)] @ hidden_D.to(weight_VD.device, weight_VD.dtype)
    excluded_V = excluded_V.to(logits_V.device, non_blocking=True)
    best = logits_V.float().masked_fill(excluded_V, float("-inf")).softmax(dim=-1).topk(2)
    # Together, so that the host waits for the device once. Ids are far below what float32 holds exactly.
    ids, probabilities = torch.stack([best.indices.float(), best.values]).tolist()
    return [(int(token), probability) for token, probability in zip(ids, probabilities, strict=True)]
