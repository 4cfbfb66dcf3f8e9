"""The showcase: a few fixed questions, answered before the first update and after the last, for people to look at.

Each is written in two orders, which differ in nothing else: most uncertain first, as in training, and most confident
first, as in use. It draws no random numbers and changes no weights, so that a run learns the same without it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from forkleft.rollout import Trajectory, generate
from forkleft.students.student import Student
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example
from forkleft.train.traces import written
from forkleft.verify import Verifier

ORDERS = ("high_entropy", "confidence")


def showcase_examples(count: int, held_out: Any, trained_on: Sequence[Example]) -> list[Example]:
    """The first `count` held-out questions (of the first set, if there are several), else training questions."""
    if isinstance(held_out, Mapping):
        held_out = next(iter(held_out.values()), None)
    return list(held_out or trained_on)[:count]


def write_in_orders(student: Student, examples: Sequence[Example], config: ForkLeftConfig) -> list[list[Trajectory]]:
    """The student's responses to the examples, in each of `ORDERS`."""
    return [
        generate(
            student,
            [example.prompt for example in examples],
            order=order,
            passes=config.passes,
            max_new_tokens=config.max_new_tokens,
            ids=[example.id for example in examples],
            batch_size=config.rollout_batch_size,
        )
        for order in ORDERS
    ]


def showcase_rows(
    student: Student,
    verifier: Verifier,
    examples: Sequence[Example],
    in_orders: Sequence[Sequence[Trajectory]],
    *,
    step: int,
) -> list[dict[str, Any]]:
    """A row for each question and order, in the format of traces. in_orders: what `write_in_orders` gave."""
    rows = []
    for order, trajectories in zip(ORDERS, in_orders, strict=True):
        texts = [trajectory.text or "" for trajectory in trajectories]
        expected, ids = [example.answer for example in examples], [example.id for example in examples]
        judgements = verifier.judgements(texts, expected, ids=ids)
        for example, trajectory, judgement in zip(examples, trajectories, judgements, strict=True):
            row = {
                "step": step,
                "order": order,
                "id": example.id,
                "prompt": student.text_tokenizer.decode(list(example.prompt)),
                "expected": example.answer,
                "student_right": judgement.correct,
                "student_extracted": judgement.extracted,
            }
            rows.append(row | written(student, example.prompt, trajectory))
    return rows
