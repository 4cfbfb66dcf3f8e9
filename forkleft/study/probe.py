"""The probe: what a student knows from the left alone, what the right context adds, and when it decides.

Two diagnostics, neither of which trains anything.

- *Views* (the paper's static probe): at the positions of reference solutions, the prediction when only that position
  is hidden (`target_masked`, which sees both sides) is compared with the one from the prefix. Where they disagree,
  which one is right?
- *Forks*: in the student's own responses, a position is a fork if the prefix leaves it open: its entropy there is
  high. The order of writing decides in which pass a fork is written, and how open it still is then: tokens to its right
  that were written before may have settled it.

Shapes: S positions that are read, of which C at a time; V words, D the width of the student.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from forkleft.errors import ForkLeftError
from forkleft.objective.fork_entropy import FORK_ENTROPY
from forkleft.objective.head import head_rows
from forkleft.objective.readouts import Geometry, prefix_hidden, target_masked_hidden
from forkleft.prompts import Reading
from forkleft.rollout import Trajectory
from forkleft.students.student import Student

# Rows of logits that exist at a time.
_ROWS = 256


@dataclass(frozen=True)
class Views:
    """Counts over the probed positions, and mean entropies in nats. The last three counts are of disagreements."""

    positions: int
    target_masked_right: int
    prefix_right: int
    disagreements: int
    target_masked_only: int
    prefix_only: int
    neither: int
    target_masked_entropy: float
    prefix_entropy: float


@dataclass(frozen=True)
class Forks:
    """When the forks of some responses were decided. Means are over forks, and None if there are none.

    place: where in the response, from 0 (begin) to 1 (end); commit: in which pass of its block, from 0 (first) to 1
    (last); entropy: at commit; prefix_entropy: from the prefix alone; settled: the share of forks whose entropy at
    commit was less than half of that, because the tokens to their right had decided them.
    """

    responses: int
    tokens: int
    forks: int
    place: float | None
    commit: float | None
    entropy: float | None
    prefix_entropy: float | None
    settled: float | None


@torch.no_grad()
def probe_views(
    student: Student, readings: Sequence[Reading], *, budget: int, geometry: Geometry, batch_size: int = 16
) -> Views:
    """Compare both views at the positions of the readings. Raises ForkLeftError if there are none."""
    counts = torch.zeros(6, dtype=torch.long)
    entropies, positions = torch.zeros(2, dtype=torch.float64), 0
    for chosen in _batches(readings, batch_size):
        targets_S = torch.tensor([reading.response[i] for reading in chosen for i in reading.positions])
        (both_S, both_entropy_S), (left_S, left_entropy_S) = (
            _predictions(student, view(student, chosen, budget=budget, geometry=geometry))
            for view in (target_masked_hidden, prefix_hidden)
        )
        both_right, left_right, differ = both_S == targets_S, left_S == targets_S, both_S != left_S
        neither = differ & ~both_right & ~left_right
        columns = (both_right, left_right, differ, both_right & differ, left_right & differ, neither)
        counts += torch.stack([column.sum() for column in columns])
        entropies += torch.stack([both_entropy_S.sum(), left_entropy_S.sum()])
        positions += len(targets_S)
    if not positions:
        raise ForkLeftError("there is no position to probe; give questions with solutions")
    return Views(positions, *counts.tolist(), *(entropies / positions).tolist())


@torch.no_grad()
def probe_forks(
    student: Student,
    prompts: Sequence[Sequence[int]],
    trajectories: Sequence[Trajectory],
    *,
    passes: int,
    budget: int,
    geometry: Geometry,
    fork_entropy: float = FORK_ENTROPY,
    batch_size: int = 16,
) -> Forks:
    """When the forks of responses were decided. passes: how many passes a block of the responses took."""
    readings = [
        Reading(f"response {k}", prompt, trajectory.tokens, range(len(trajectory.tokens)))
        for k, (prompt, trajectory) in enumerate(zip(prompts, trajectories, strict=True))
    ]
    prefix_entropy: list[float] = []
    for chosen in _batches(readings, batch_size):
        hidden_SD = prefix_hidden(student, chosen, budget=budget, geometry=geometry)
        targets_S = torch.tensor([token for reading in chosen for token in reading.response], dtype=torch.long)
        prefix_entropy += head_rows(hidden_SD, student.head_weight, targets_S, student.excluded_V).entropy_S.tolist()
    rows = [
        (place / max(1, len(written.tokens) - 1), (written.commit_pass[place] - 1) / max(1, passes - 1), entropy)
        for written in trajectories
        for place, entropy in enumerate(written.entropy)
    ]
    forks = [(*row, left) for row, left in zip(rows, prefix_entropy, strict=True) if left >= fork_entropy]
    if not forks:
        return Forks(len(trajectories), len(rows), 0, None, None, None, None, None)
    place, commit, entropy, left = (sum(column) / len(forks) for column in zip(*forks, strict=True))
    settled = sum(fork[2] < fork[3] / 2 for fork in forks) / len(forks)
    return Forks(len(trajectories), len(rows), len(forks), place, commit, entropy, left, settled)


def _batches(readings: Sequence[Reading], size: int) -> list[Sequence[Reading]]:
    return [readings[start : start + size] for start in range(0, len(readings), size)]


def _predictions(student: Student, hidden_SD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The likeliest word at each row, and the entropy; a few rows at a time, since a vocabulary may be large."""
    words, entropies = [], []
    for rows_CD in hidden_SD.split(_ROWS):
        logp_CV = student.logits(rows_CD).log_softmax(-1)
        words.append(logp_CV.argmax(-1).cpu())
        # Words outside 𝒱 have log 0, and no share in the sum.
        entropies.append(-(logp_CV.exp() * logp_CV.masked_fill(logp_CV.isinf(), 0.0)).sum(-1).double().cpu())
    return torch.cat(words), torch.cat(entropies)
