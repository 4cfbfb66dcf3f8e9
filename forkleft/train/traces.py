"""Traces: how the responses of an update came about, and what both models would have said at the supervised positions.

One JSON object for each question, for viewing later.
"""

from typing import Any

import torch

from forkleft.objective.readouts import Reading, prefix_hidden
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.rollout import Trajectory
from forkleft.students.student import Student
from forkleft.teacher import Teacher
from forkleft.train.collect import Collected, Verified

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
    questions = zip(collected.lessons, collected.trajectories, collected.verified, collected.cut, strict=True)
    return [
        {"step": step} | _question(student, *question) | _positions(student, teacher, question[0], part_SD)
        for question, part_SD in zip(questions, parts, strict=True)
    ]


def _question(
    student: Student, lesson: Lesson, trajectory: Trajectory, verified: Verified, cut: bool
) -> dict[str, Any]:
    """What was asked, what both models and the reference answer, and how that was judged."""
    tokenizer, question = student.tokenizer, lesson.question
    return {
        "id": question.id,
        "route": str(lesson.route),
        "prompt": tokenizer.decode(question.prompt),
        "expected": verified.expected,
        "student_right": question.student_right,
        "student_extracted": verified.extracted,
        "teacher_right": question.teacher_right,
        "teacher_extracted": verified.teacher_extracted,
        "teacher_answer": verified.teacher_answer.text,
        "teacher_stopped": verified.teacher_answer.stopped,
        "reference": None if question.reference is None else tokenizer.decode(question.reference),
        "reference_cut": cut,
        "tokens": [tokenizer.decode([i]) for i in trajectory.tokens],
        "commit_pass": trajectory.commit_pass,
        "entropy": trajectory.entropy,
        "confidence": trajectory.confidence,
        "stopped": trajectory.stopped,
    }


def _positions(student: Student, teacher: Teacher, lesson: Lesson, hidden_SD: torch.Tensor) -> dict[str, Any]:
    """The supervised positions, and what both models would have written there."""
    tokenizer = student.tokenizer
    row = {
        "positions": lesson.selected,
        "student_alternatives": _alternatives(student.logits(hidden_SD), tokenizer),
        "teacher_alternatives": None,
    }
    if lesson.teacher_hidden_SE is not None and lesson.taught == (lesson.question.response, lesson.selected):
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
