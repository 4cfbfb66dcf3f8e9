"""Masked denoising: the objective that makes a diffusion model of a causal one, before any distillation.

Each block of a response is hidden in part, at a share drawn anew for every block, and the model predicts what is hidden
from the rest of the block and the clean blocks before it. Clean stream and noisy blocks are packed into one forward as
in the readouts: a noisy block is a replica. A fully attending model has one sequence for each sample instead, hidden
at one share. Next-token prediction, which may come before denoising or beside it, is one more stream of the same
forward, in which every token is a block of its own: that is causal attention.

Samples with a response budget are filled up with the stop id to the end of the block (full attention: of the budget),
because that is where decoding goes on to: the model learns what stands behind the end of a response. A block ends
with the model's context, if that comes first.

    tasks = [draw(student, sample, generator, budget=64) for sample in samples]
    loss, sums = prediction_loss(student, tasks, {"denoising": 1 / sum(task.weight for task in tasks)})

Shapes: M predicted tokens of all tasks.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError
from forkleft.objective.head import head_rows
from forkleft.students.attention import PackedLayout, Replica, Stream
from forkleft.students.student import Student

Weighting = Literal["uniform", "1/t"]
Kind = Literal["denoising", "causal"]
WHOLE_RANGE = (0.0, 1.0)


@dataclass(frozen=True)
class Sample:
    """A text to learn. prompt: its beginning, which is given, never predicted; response: the rest. id: for errors."""

    prompt: Sequence[int]
    response: Sequence[int]
    id: str = ""


@dataclass(frozen=True)
class Task:
    """What is predicted of a sample: tokens for a forward, and where in it which target is read with which weight.

    reads: replica, or None for the clean stream, and offset.
    """

    id: str
    kind: Kind
    stream: Stream
    reads: Sequence[tuple[int | None, int]]
    targets: Sequence[int]
    weights: Sequence[float]

    @property
    def weight(self) -> float:
        """The sum of the weights, by which a mean is divided."""
        return sum(self.weights)


def draw(
    student: Student,
    sample: Sample,
    generator: torch.Generator,
    *,
    budget: int | None = None,
    shares: tuple[float, float] = WHOLE_RANGE,
    weighting: Weighting = "uniform",
) -> Task:
    """Hide a part of every block of a sample. `generator` decides which.

    budget: of the response, which then must end with a stop id and is filled up with it; None for text that goes on.
    shares: the share of a block that is hidden is uniform between these two; at least one position is hidden.
    weighting: `uniform`: all hidden positions count the same, so that blocks of which much is hidden weigh most. `1/t`:
    each counts 1/t, where t is the share of its block that is hidden, as in the likelihood bound of masked diffusion; a
    block then counts by its length, whatever is hidden. t is the share that came out, not the one that was drawn: the
    same on average, without weights that have no bound.
    Raises ForkLeftError for a sample without prompt or response, for a response that exceeds the budget or does not
    end with a stop id, and for more tokens than the model's context has.
    """
    sequence = _filled(student, sample, budget)
    if len(sequence) > student.context:
        raise ForkLeftError(
            f"row {sample.id}: {len(sequence)} tokens, with what fills up its response, exceed the model's context of "
            f"{student.context}; shorten it, or the budget"
        )
    make = _full_stream if student.family.attention == "full" else _block_stream
    stream, reads, hidden = make(student, sequence, len(sample.prompt), generator, shares)
    targets = [sequence[position] for position, _ in hidden]
    return Task(
        sample.id,
        "denoising",
        stream,
        reads,
        targets,
        [1.0 if weighting == "uniform" else 1 / share for _, share in hidden],
    )


def causal(sample: Sample) -> Task:
    """Every token of the response, predicted from all before it, as an autoregressive model does."""
    _check(sample)
    ids = [*sample.prompt, *sample.response][:-1]
    first = len(sample.prompt) - 1
    reads: list[tuple[int | None, int]] = [(None, position) for position in range(first, len(ids))]
    return Task(
        sample.id, "causal", Stream(ids, range(len(ids))), reads, list(sample.response), [1.0] * len(sample.response)
    )


def fed_tokens(student: Student, sample: Sample, budget: int | None) -> int:
    """How long the sequence is that the model sees of a sample: with what fills up its response."""
    return len(_filled(student, sample, budget))


def packed_tokens(student: Student, sample: Sample, budget: int | None) -> int:
    """How many tokens a forward has for a sample: its clean stream and its noisy blocks."""
    prompt, length = len(sample.prompt), fed_tokens(student, sample, budget)
    family = student.family
    if family.attention == "full":
        return length
    return max(prompt, family.segment(length - 1, prompt)[0]) + length - family.segment(prompt, prompt)[0]


def prediction_loss(
    student: Student, tasks: Sequence[Task], scales: Mapping[Kind, float]
) -> tuple[torch.Tensor, dict[Kind, float]]:
    """Σ over the tasks of scale · weight · cross-entropy, in one forward, and the sums before they are scaled.

    scales: by the kind of the task. With the reciprocal of all weights the loss is a mean; where a batch is divided
    among processes or accumulation steps, those of the whole batch make the parts add up to it. Gradients flow. Without
    any task the loss is 0 with a gradient of zeros, so that this process still takes part with the others.
    Raises ForkLeftError, naming the sample, for a loss that is not finite.
    """
    # One token, so that there is a forward.
    layout = PackedLayout(
        [task.stream for task in tasks] or [Stream([student.vocabulary.mask_id], [0])], student.device
    )
    rows = [layout.token(q, *place) for q, task in enumerate(tasks) for place in task.reads]
    hidden_MD = student.hidden(layout.ids_N, layout.positions_N, layout, layout.read(rows or [0]))[: len(rows)]
    targets_M = torch.tensor([target for task in tasks for target in task.targets], dtype=torch.long)
    nll_M = head_rows(hidden_MD, student.head_weight, targets_M, student.excluded_V).nll_S
    weights_M = on_device([weight for task in tasks for weight in task.weights], nll_M.device, nll_M.dtype)
    if not tasks:
        return nll_M.sum(), {}
    sizes = [len(task.targets) for task in tasks]
    sums_Q = torch.stack([part.sum() for part in (weights_M * nll_M).split(sizes)])
    scales_Q = on_device([scales[task.kind] for task in tasks], sums_Q.device, sums_Q.dtype)
    loss = (sums_Q * scales_Q).sum()
    sums: dict[Kind, float] = {}
    # They leave the device all at once.
    for task, total in zip(tasks, sums_Q.tolist(), strict=True):
        sums[task.kind] = sums.get(task.kind, 0.0) + total
        if not math.isfinite(total):
            raise ForkLeftError(
                f"row {task.id}: the loss is {total}; are the weights damaged, or the precision too low?"
            )
    return loss, sums


def _check(sample: Sample) -> None:
    for name in ("prompt", "response"):
        if not len(getattr(sample, name)):
            raise ForkLeftError(f"row {sample.id}: the {name} is empty; it needs at least one token")


def _filled(student: Student, sample: Sample, budget: int | None) -> list[int]:
    _check(sample)
    sequence = [*sample.prompt, *sample.response]
    stops = sample.response[-1] in student.vocabulary.stop_ids
    end = len(sequence)
    if budget is not None:
        if not stops:
            raise ForkLeftError(
                f"row {sample.id}: a response must end with a stop id, so that the model learns to stop"
            )
        if len(sample.response) > budget:
            raise ForkLeftError(
                f"row {sample.id}: a response of {len(sample.response)} tokens exceeds the budget of {budget}"
            )
        end = len(sample.prompt) + budget
    if student.family.attention == "block" and stops:
        block_end = min(student.family.segment(len(sequence) - 1, len(sample.prompt))[1], student.context)
        end = block_end if budget is None else min(end, block_end)
    return sequence + [sample.response[-1]] * (end - len(sequence))


def _block_stream(
    student: Student, sequence: list[int], prompt: int, generator: torch.Generator, shares: tuple[float, float]
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
        positions = _hidden(begin, end, generator, shares)
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
    student: Student, sequence: list[int], prompt: int, generator: torch.Generator, shares: tuple[float, float]
) -> tuple[Stream, list[tuple[int | None, int]], list[tuple[int, float]]]:
    """As `_block_stream`, for a model in which everything sees everything."""
    positions = _hidden(prompt, len(sequence), generator, shares)
    ids = list(sequence)
    for position in positions:
        ids[position] = student.vocabulary.mask_id
    reads: list[tuple[int | None, int]] = [(None, position - student.family.shift) for position in positions]
    share = len(positions) / (len(sequence) - prompt)
    return Stream(ids, [0] * len(ids)), reads, [(position, share) for position in positions]


def _hidden(begin: int, end: int, generator: torch.Generator, shares: tuple[float, float]) -> list[int]:
    """Positions hidden at a share that is itself uniform between the two given; at least one."""
    draws = torch.rand(end - begin + 2, generator=generator, dtype=torch.float64).tolist()
    ratio, other, *draws = draws
    ratio = shares[0] + (shares[1] - shares[0]) * ratio
    hidden = [begin + k for k, draw in enumerate(draws) if draw < ratio]
    return hidden or [begin + int(other * (end - begin))]
