"""Traces: how the responses of an update were written, and what both models predict at the supervised positions.

One JSON object for each question, for viewing later.
"""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch

from forkleft.objective.readouts import prefix_hidden
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.objective.update import Outcome, update_loss
from forkleft.rollout import Trajectory
from forkleft.students.family import Family
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
    lessons = iter(collected.lessons)
    parts: list[torch.Tensor] = []
    outcomes: list[Outcome] = []
    for size in sizes:
        chosen = list(islice(lessons, size))
        geometry, attention = settings.geometry, settings.attention
        readings = [lesson.reading for lesson in chosen]
        hidden_SD = prefix_hidden(student, readings, budget=settings.budget, geometry=geometry, attention=attention)
        parts += hidden_SD.split([len(reading.positions) for reading in readings])
        # The numbers of the loss itself, so that a trace cannot say anything else than what was learned from.
        head = teacher.head_weight
        outcomes += update_loss(student, chosen, settings, batch_size=len(chosen), teacher_weight_VE=head)[1]
    return [
        {"step": step}
        | _question(student, collected, k)
        | _positions(student, teacher, collected.lessons[k], part_SD)
        | _numbers(collected.lessons[k], outcome)
        for k, (part_SD, outcome) in enumerate(zip(parts, outcomes, strict=True))
    ]


def written(student: Student, prompt: Sequence[int], trajectory: Trajectory) -> dict[str, Any]:
    """How a response was written: its tokens, and the pass, entropy and confidence of each when it was committed.

    block_starts: the positions where a block, whose passes are counted from 1 again, begins.
    """
    tokenizer = student.text_tokenizer
    return {
        "tokens": [tokenizer.decode([i]) for i in trajectory.tokens],
        "commit_pass": trajectory.commit_pass,
        "block_starts": _block_starts(student.family, len(prompt), len(trajectory.tokens)),
        "entropy": trajectory.entropy,
        "confidence": trajectory.confidence,
        "stopped": trajectory.stopped,
    }


def _block_starts(family: Family, prompt: int, tokens: int) -> list[int]:
    starts, position = [], 0
    while position < tokens:
        starts.append(position)
        position = family.window(prompt + position, prompt)[1] - prompt
    return starts


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
    } | written(student, lesson.prompt, trajectory)


def _positions(student: Student, teacher: Teacher, lesson: Lesson, hidden_SD: torch.Tensor) -> dict[str, Any]:
    """The supervised positions, and what both models would have written there."""
    tokenizer = student.tokenizer
    row = {
        "positions": lesson.selected,
        "student_alternatives": _alternatives(student.logits(hidden_SD), tokenizer),
        "teacher_alternatives": None,
    }
    hidden_SE = lesson.awaited_hidden()
    if hidden_SE is not None and _taught_on_response(lesson):
        logits_SV = teacher.head_logits(hidden_SE).float()
        excluded = student.excluded_V.nonzero().flatten().to(logits_SV.device)
        logits_SV = logits_SV[:, : len(student.excluded_V)].index_fill(1, excluded, float("-inf"))
        row["teacher_alternatives"] = _alternatives(logits_SV, tokenizer)
    return row


def _numbers(lesson: Lesson, outcome: Outcome) -> dict[str, Any]:
    """What the loss knows of each supervised position.

    kl: KL(t_i ‖ s_i), None where no teacher was asked on the response. contrast: D_i, by how much the prefix lowers the
    entropy (mask_entropy: before, left_entropy: after). left_confidence: max s_i, whose logarithm is ℓ_i.
    """
    return {
        "kl": list(outcome.kl) if _taught_on_response(lesson) else None,
        "contrast": list(outcome.contrast),
        "mask_entropy": list(outcome.mask_entropy),
        "left_entropy": list(outcome.left_entropy),
        "left_confidence": [math.exp(value) for value in outcome.confidence],
    }


def _taught_on_response(lesson: Lesson) -> bool:
    """Whether the teacher is asked at the supervised positions of the response, and not of the reference."""
    return lesson.taught == (lesson.response, lesson.selected)


def _alternatives(logits_SV: torch.Tensor, tokenizer: Any) -> list[list[tuple[str, float]]]:
    """The likeliest tokens of each row with their probabilities."""
    top = logits_SV.softmax(dim=-1).topk(ALTERNATIVES, dim=-1)
    return [
        [(tokenizer.decode([i]), round(p, 4)) for i, p in zip(ids, values, strict=True)]
        for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
    ]
