"""Agreement: how near a student's predictions are to a teacher's, after the same text.

At positions of reference solutions both models predict the next token from the prompt and the solution so far (the
readout that training compares, `objective/readouts.py`). Two numbers: KL(t ‖ s) over 𝒱, and how often both find the
same token likeliest. Positions of one solution are not independent, so intervals draw whole questions.

Shapes: S positions that are read, of which C at a time; V words, E the width of the teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import Estimate, clustered_mean, clustered_number
from forkleft.objective.readouts import Geometry, prefix_hidden
from forkleft.prompts import Reading
from forkleft.students.student import Student
from forkleft.teacher import Teacher

# Rows of logits that exist at a time.
_ROWS = 256


@dataclass(frozen=True)
class Agreement:
    """One entry for each position, in order: the question's id, KL in nats, whether both have the same top token."""

    ids: list[str]
    kl: list[float]
    same: list[bool]

    @property
    def mean_kl(self) -> Estimate:
        """With a 95% interval over questions."""
        return clustered_number(self.kl, self.ids)

    @property
    def share_same(self) -> Estimate:
        """With a 95% interval over questions."""
        return clustered_mean([float(same) for same in self.same], self.ids)


@torch.no_grad()
def agreement(
    student: Student,
    teacher: Teacher,
    readings: Sequence[Reading],
    teacher_prompts: Sequence[Sequence[int]],
    *,
    budget: int,
    geometry: Geometry = "truncated",
    batch_size: int = 16,
) -> Agreement:
    """Compare both models at the positions of the readings.

    student: over the vocabulary that it shares with the teacher. teacher_prompts: the same prompts by its tokenizer.
    Raises ForkLeftError if there are no positions.
    """
    found = Agreement([], [], [])
    for start in range(0, len(readings), batch_size):
        chosen = readings[start : start + batch_size]
        hidden_SD = prefix_hidden(student, chosen, budget=budget, geometry=geometry)
        prompted = zip(chosen, teacher_prompts[start : start + batch_size], strict=True)
        asked = [Reading(reading.id, prompt, reading.response, reading.positions) for reading, prompt in prompted]
        hidden_SE = torch.cat(teacher.hidden(asked))
        found.ids.extend(reading.id for reading in chosen for _ in reading.positions)
        for own_CD, other_CE in zip(hidden_SD.split(_ROWS), hidden_SE.split(_ROWS), strict=True):
            logp_CV = student.logits(own_CD)[:, : len(student.excluded_V)].log_softmax(-1)
            logt_CV = teacher.head_logits(other_CE)[:, : len(student.excluded_V)].to(logp_CV)
            excluded_V = student.excluded_V.to(logp_CV.device)
            logt_CV = logt_CV.masked_fill(excluded_V, float("-inf")).log_softmax(-1)
            difference_CV = (logt_CV - logp_CV).masked_fill(excluded_V, 0.0)
            found.kl.extend((logt_CV.exp() * difference_CV).sum(-1).tolist())
            found.same.extend((logt_CV.argmax(-1) == logp_CV.argmax(-1)).tolist())
    if not found.ids:
        raise ForkLeftError("there is no position to compare at; give questions with solutions")
    return found
