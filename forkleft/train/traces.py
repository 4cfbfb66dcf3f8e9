"""Traces: how the responses of an update were written, and what both models predict at the supervised positions.

One JSON object for each question, for viewing later.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from forkleft.objective.readouts import prefix_hidden
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.students.student import Student
from forkleft.teacher import Teacher
from forkleft.train.collect import Collected

# How many alternatives of each model are kept at a position.
ALTERNATIVES = 5


@torch.no_grad()
def traces(
    student: Student,
    teacher: Teacher,
    collected: Collected,
    settings: ObjectiveSettings,
    sizes: Sequence[int],
    *,
    step: int,
) -> list[dict[str, Any]]:
    """A row for each question of a batch.

    sizes: how many questions of the batch are read in each forward of the student.
    """
    readings = iter(collected.lessons)
    parts: list[torch.Tensor] = []
    for size in sizes:
        chosen = [lesson.reading for lesson in islice(readings, size)]
        geometry, attention = settings.geometry, settings.attention
        hidden_SD = prefix_hidden(student, chosen, budget=settings.budget, geometry=geometry, attention=attention)
        parts += hidden_SD.split([len(reading.positions) for reading in chosen])
    return [
        {"step": step} | _question(student, collected, k) | _positions(student, teacher, collected.lessons[k], part_SD)
        for k, part_SD in enumerate(parts)
    ]


def _question(student: Student, collected: Collected, k: int) -> dict[str, Any]:
    """The question, the answers of both models and of the reference, and the verdicts."""
    tokenizer, lesson, trajectory = student.text_tokenizer, collected.lessons[k], collected.trajectories[k]
    answer, reference = collected.answers[k], lesson.reference
    return {
        "id": lesson.id,
        "route": str(lesson.route),
        "prompt": tokenizer.decode(list(lesson.prompt)),
        "expected": collected.examples[k].answer,
        "judged": lesson.judged,
        "student_right": lesson.student_right,
        "student_extracted": collected.judgements[k].extracted,
        "teacher_right": lesson.teacher_right,
        "teacher_extracted": collected.teacher_judgements[k].extracted,
        "teacher_answer": answer.text,
        "teacher_stopped": answer.stopped,
        "reference": None if reference is None else tokenizer.decode(list(reference)),
        "reference_cut": lesson.reference_is_cut(student.vocabulary.stop_ids),
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
    if lesson.teacher_hidden_SE is not None and lesson.taught == (lesson.response, lesson.selected):
        logits_SV = teacher.head_logits(lesson.teacher_hidden_SE).float()
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
