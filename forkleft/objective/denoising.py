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

import torch
from torch.nn.functional import cross_entropy

from forkleft.errors import ForkLeftError
from forkleft.students.attention import PackedLayout, Replica, Stream
from forkleft.students.student import Student


@dataclass(frozen=True)
class Sample:
    """A prompt and the response to it, which ends with a stop id."""

    prompt: Sequence[int]
    response: Sequence[int]


def denoising_loss(
    student: Student, samples: Sequence[Sample], *, budget: int, generator: torch.Generator
) -> torch.Tensor:
    """The mean cross-entropy at the hidden positions; gradients flow. `generator` decides what is hidden.

    Raises ForkLeftError for a response that is empty, exceeds the budget or does not end with a stop id.
    """
    streams, wanted, targets = [], [], []
    for sample in samples:
        sequence = _filled(student, sample, budget)
        make = _full_stream if student.family.attention == "full" else _block_stream
        stream, reads, positions = make(student, sequence, len(sample.prompt), generator)
        streams.append(stream)
        wanted.append(reads)
        targets += [sequence[position] for position in positions]
    layout = PackedLayout(streams, student.device)
    rows = [layout.token(q, *place) for q, reads in enumerate(wanted) for place in reads]
    hidden_ND = student.hidden(layout.ids_N, layout.positions_N, layout)
    logits_MV = student.logits(hidden_ND[torch.tensor(rows, device=hidden_ND.device)])
    return cross_entropy(logits_MV, torch.tensor(targets, device=logits_MV.device))


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
) -> tuple[Stream, list[tuple[int | None, int]], list[int]]:
    """Clean stream and noisy blocks, where to read (replica or None for clean, offset), and the hidden positions."""
    family = student.family
    replicas: list[Replica] = []
    reads: list[tuple[int | None, int]] = []
    positions: list[int] = []
    begin = prompt
    while begin < len(sequence):
        start, end = family.segment(begin, prompt)
        end = min(end, len(sequence))
        ids = sequence[start:end]
        for position in _hidden(begin, end, generator):
            ids[position - start] = student.vocabulary.mask_id
            positions.append(position)
            # A shifted head predicts a block's first token from the clean token before it.
            source = position - family.shift
            reads.append((None, source) if source < start else (len(replicas), source - start))
        replicas.append(Replica(ids, start, family.block_of(begin, prompt)))
        begin = end
    clean = sequence[: max(prompt, replicas[-1].start)]
    blocks = [family.block_of(position, prompt) for position in range(len(clean))]
    return Stream(clean, blocks, replicas), reads, positions


def _full_stream(
    student: Student, sequence: list[int], prompt: int, generator: torch.Generator
) -> tuple[Stream, list[tuple[int | None, int]], list[int]]:
    """As `_block_stream`, for a model in which everything sees everything."""
    positions = _hidden(prompt, len(sequence), generator)
    ids = list(sequence)
    for position in positions:
        ids[position] = student.vocabulary.mask_id
    reads: list[tuple[int | None, int]] = [(None, position - student.family.shift) for position in positions]
    return Stream(ids, [0] * len(ids)), reads, positions


def _hidden(begin: int, end: int, generator: torch.Generator) -> list[int]:
    """Positions hidden at a ratio that is itself uniform in [0, 1]; at least one."""
    draws = torch.rand(end - begin + 2, generator=generator, dtype=torch.float64).tolist()
    ratio, other, *draws = draws
    hidden = [begin + k for k, draw in enumerate(draws) if draw < ratio]
    return hidden or [begin + int(other * (end - begin))]
