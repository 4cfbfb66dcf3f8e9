"""Masked denoising: the objective that makes a diffusion model of a causal one, before any distillation.

Each block of a response is hidden in part, at a ratio drawn anew for every block, and the model predicts what is hidden
from the rest of the block and the clean blocks before it. Clean stream and noisy blocks are packed into one forward as
in the readouts: a noisy block is a replica. A fully attending model has one sequence for each sample instead, hidden
at one ratio.

Samples are filled up with the stop id to the end of the block (full attention: of the response budget), because that
is where decoding goes on to: the model learns what stands behind the end of a response.

Shapes: M hidden positions of all samples, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import cross_entropy

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError
from forkleft.students.attention import PackedLayout, Replica, Stream
from forkleft.students.student import Student

Weighting = Literal["positions", "ratio"]


@dataclass(frozen=True)
class Sample:
    """A prompt and the response to it, which ends with a stop id."""

    prompt: Sequence[int]
    response: Sequence[int]


def denoising_loss(
    student: Student,
    samples: Sequence[Sample],
    *,
    budget: int,
    generator: torch.Generator,
    weighting: Weighting = "positions",
) -> torch.Tensor:
    """The mean cross-entropy at the hidden positions; gradients flow. `generator` decides what is hidden.

    weighting: `positions`: all hidden positions count the same, so that blocks of which much is hidden weigh most.
    `ratio`: each counts 1/t, where t is the share of its block that is hidden, as in the likelihood bound of masked
    diffusion; a block then counts by its length, whatever is hidden. t is the share that came out, not the one that was
    drawn: the same on average, without weights that have no bound.
    Raises ForkLeftError for a response that is empty, exceeds the budget or does not end with a stop id.
    """
    streams, wanted, targets, weights = [], [], [], []
    for sample in samples:
        sequence = _filled(student, sample, budget)
        make = _full_stream if student.family.attention == "full" else _block_stream
        stream, reads, hidden = make(student, sequence, len(sample.prompt), generator)
        streams.append(stream)
        wanted.append(reads)
        targets += [sequence[position] for position, _ in hidden]
        weights += [1 / share for _, share in hidden]
    layout = PackedLayout(streams, student.device)
    rows = [layout.token(q, *place) for q, reads in enumerate(wanted) for place in reads]
    hidden_ND = student.hidden(layout.ids_N, layout.positions_N, layout)
    logits_MV = student.logits(hidden_ND[on_device(rows, hidden_ND.device)])
    losses_M = cross_entropy(logits_MV, on_device(targets, logits_MV.device), reduction="none")
    if weighting == "positions":
        return losses_M.mean()
    weights_M = on_device(weights, losses_M.device, losses_M.dtype)
    return (weights_M * losses_M).sum() / weights_M.sum()


def _filled(student: Student, sample: Sample, budget: int) -> list[int]:
    if not sample.response or sample.response[-1] not in student.vocabulary.stop_ids:
        raise ForkLeftError("a sample's response must end with a stop id, so that the model learns to stop")
    if len(sample.response) > budget:
        raise ForkLeftError(f"a response of {len(sample.response)} tokens exceeds the budget of {budget}")
    sequence = [*sample.prompt, *sample.response]
    end = len(sample.prompt) + budget
    if student.family.attention == "block":
        end = min(end, student.family.segment(len(sequence) - 1, len(sample.prompt))[1])
    return sequence + [sample.response[-1]] * (end - len(sequence))


def _block_stream(
    student: Student, sequence: list[int], prompt: int, generator: torch.Generator
) -> tuple[Stream, list[tuple[int | None, int]], list[tuple[int, float]]]:
    """Clean stream and noisy blocks, where to read (replica or None for clean, offset), and the hidden positions.

    With each hidden position comes the share of its block that is hidden.
    """
    family = student.family
    replicas: list[Replica] = []
    reads: list[tuple[int | None, int]] = []
    hidden: list[tuple[int, float]] = []
    begin = prompt
    while begin < len(sequence):
        start, end = family.segment(begin, prompt)
        end = min(end, len(sequence))
        ids = sequence[start:end]
        positions = _hidden(begin, end, generator)
        for position in positions:
            ids[position - start] = student.vocabulary.mask_id
            hidden.append((position, len(positions) / (end - begin)))
            # A shifted head predicts a block's first token from the clean token before it.
            source = position - family.shift
            reads.append((None, source) if source < start else (len(replicas), source - start))
        replicas.append(Replica(ids, start, family.block_of(begin, prompt)))
        begin = end
    clean = sequence[: max(prompt, replicas[-1].start)]
    blocks = [family.block_of(position, prompt) for position in range(len(clean))]
    return Stream(clean, blocks, replicas), reads, hidden


def _full_stream(
    student: Student, sequence: list[int], prompt: int, generator: torch.Generator
) -> tuple[Stream, list[tuple[int | None, int]], list[tuple[int, float]]]:
    """As `_block_stream`, for a model in which everything sees everything."""
    positions = _hidden(prompt, len(sequence), generator)
    ids = list(sequence)
    for position in positions:
        ids[position] = student.vocabulary.mask_id
    reads: list[tuple[int | None, int]] = [(None, position - student.family.shift) for position in positions]
    share = len(positions) / (len(sequence) - prompt)
    return Stream(ids, [0] * len(ids)), reads, [(position, share) for position in positions]


def _hidden(begin: int, end: int, generator: torch.Generator) -> list[int]:
    """Positions hidden at a ratio that is itself uniform in [0, 1]; at least one."""
    draws = torch.rand(end - begin + 2, generator=generator, dtype=torch.float64).tolist()
    ratio, other, *draws = draws
    hidden = [begin + k for k, draw in enumerate(draws) if draw < ratio]
    return hidden or [begin + int(other * (end - begin))]
