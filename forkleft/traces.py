"""Traces: how the responses of an update came about, and what both models would have said at the supervised positions.

One JSON object for each question, for viewing later.
"""

from typing import Any

import torch

from forkleft.collection import Collected
from forkleft.objective.lessons import Lesson, ObjectiveSettings
from forkleft.objective.readouts import Reading, prefix_hidden
from forkleft.rollout import Trajectory
from forkleft.students.student import Student
from forkleft.teacher import Teacher

# How many alternatives of each model are kept at a position.
ALTERNATIVES = 5


@torch.no_grad()
def traces(
    student: Student, teacher: Teacher, collected: Collected, settings: ObjectiveSettings, *, step: int
) -> list[dict[str, Any]]:
    """A row for each question of a batch. One forward of the student."""
    readings = [
        Reading(one.name, one.question.prompt, one.question.response, one.selected) for one in collected.lessons
    ]
    options = {"geometry": settings.geometry, "attention": settings.attention}
    hidden_SD = prefix_hidden(student, readings, budget=settings.budget, **options)
    parts = hidden_SD.split([len(one.selected) for one in collected.lessons])
    return [
        _row(student, teacher, lesson, trajectory, part_SD, step)
        for lesson, trajectory, part_SD in zip(collected.lessons, collected.trajectories, parts, strict=True)
    ]


def _row(
    student: Student, teacher: Teacher, lesson: Lesson, trajectory: Trajectory, hidden_SD: torch.Tensor, step: int
) -> dict[str, Any]:
    tokenizer, question = student.tokenizer, lesson.question
    row = {
        "step": step,
        "id": question.id,
        "route": str(lesson.route),
        "student_right": question.student_right,
        "teacher_right": question.teacher_right,
        "prompt": tokenizer.decode(question.prompt),
        "tokens": [tokenizer.decode([i]) for i in trajectory.tokens],
        "commit_pass": trajectory.commit_pass,
        "entropy": trajectory.entropy,
        "confidence": trajectory.confidence,
        "stopped": trajectory.stopped,
        "positions": lesson.selected,
        "student_alternatives": _alternatives(student.logits(hidden_SD), tokenizer),
        "teacher_alternatives": None,
    }
    if lesson.teacher_hidden_SE is not None and lesson.taught == (question.response, lesson.selected):
        weight_VE = teacher.head_weight
        logits_SV = (lesson.teacher_hidden_SE.to(weight_VE.device, weight_VE.dtype) @ weight_VE.T).float()
        excluded = student.excluded_V.nonzero().flatten().to(logits_SV.device)
        logits_SV = logits_SV[:, : len(student.excluded_V)].index_fill(1, excluded, float("-inf"))
        row["teacher_alternatives"] = _alternatives(logits_SV, tokenizer)
    return row


def _alternatives(logits_SV: torch.Tensor, tokenizer: Any) -> list[list[tuple[str, float]]]:
    """The likeliest tokens of each row with their probabilities."""
    top = logits_SV.softmax(dim=-1).topk(ALTERNATIVES, dim=-1)
    return [
        [(tokenizer.decode([i]), round(p, 4)) for i, p in zip(ids, values, strict=True)]
        for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
