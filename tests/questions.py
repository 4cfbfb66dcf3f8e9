"""Questions after rollout and verification, as the naive update and the package's `plan` take them."""

from collections.abc import Sequence
from dataclasses import dataclass

from forkleft.objective import supervision
from forkleft.objective.supervision import Lesson, ObjectiveSettings


@dataclass(frozen=True)
class Question:
    id: str
    prompt: Sequence[int]
    response: Sequence[int]
    student_right: bool
    teacher_right: bool
    reference: Sequence[int] | None = None


def plan(question: Question, settings: ObjectiveSettings, stop_ids: Sequence[int], *, seed: int, update: int) -> Lesson:
    return supervision.plan(settings=settings, stop_ids=stop_ids, seed=seed, update=update, **vars(question))
