"""Readouts: what the student predicts at chosen positions of a continuation y, under a chosen view.

- prefix (paper eq. `left`): s_i = p_θ(· | P, y_<i), target and suffix hidden, native attention.
- target-masked (the B view): only position i of the completed continuation is hidden.
- all-mask (paper eq. `coupling`): the whole continuation is hidden.

The first two have two geometries: `truncated` (the default: what is known and, for a prefix, one mask query) and
`canvas` (then masks to the end of the block, as the student sees them while it decodes; for full attention to the end
of the response budget).

A same-position head is read at the masked target; a shifted head one position before it, without a mask query.

With block attention, one forward reads many positions of many questions exactly (`students/attention.py`). With full
attention every token depends on every other, so each position needs its own sequence.

The functions return hidden states. The output head turns only these rows into distributions. Positions
are 0-based in the continuation (the paper counts from 1).

Shapes: S positions read in all, question by question; the hidden states are `(S, width)`.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch

from forkleft.errors import ForkLeftError, check_choice
from forkleft.prompts import Reading
from forkleft.students.attention import PackedLayout, Replica, Stream
from forkleft.students.family import Family
from forkleft.students.student import Student

Geometry = Literal["truncated", "canvas"]
View = Literal["prefix", "target_masked"]
ReadAttention = Literal["native", "full"]

# Tokens in one forward of a student with full attention, where each position is a sequence of its own.
_SEQUENCE_TOKENS = 32_768


def check_reading(geometry: str, attention: str = "native") -> None:
    """Raise ForkLeftError for an unknown geometry or attention of the readouts."""
    check_choice("geometry", geometry, get_args(Geometry))
    check_choice("attention", attention, get_args(ReadAttention))


def prefix_hidden(
    student: Student,
    readings: Sequence[Reading],
    *,
    budget: int,
    geometry: Geometry = "truncated",
    attention: ReadAttention = "native",
) -> torch.Tensor:
    """Hidden states of s_i = p_θ(· | P, y_<i) (paper eq. `left`); gradients flow.

    budget: the response budget, which bounds the canvas. attention: `native`, or `full` to read a block-causal student
    with full attention. Raises ForkLeftError, naming the question, for positions or ids that cannot be read.
    """
    check_reading(geometry, attention)
    return _read(student, readings, "prefix", geometry, budget, full=attention == "full")


def target_masked_hidden(
    student: Student, readings: Sequence[Reading], *, budget: int, geometry: Geometry = "truncated"
) -> torch.Tensor:
    """Hidden states of the B view: the completed continuation with only position i masked, native attention.

    Arguments and errors as of `prefix_hidden`.
    """
    check_reading(geometry)
    return _read(student, readings, "target_masked", geometry, budget, full=False)


@torch.no_grad()
def all_mask_hidden(student: Student, readings: Sequence[Reading], *, budget: int) -> torch.Tensor:
    """Hidden states of p^mask_θ,i: the prompt and masks for the whole response budget; no gradient.

    With block-causal attention the canvas ends with the last block that is read; later blocks would change nothing.
    """
    family, mask = student.family, student.vocabulary.mask_id
    streams, wanted = [], []
    for reading in readings:
        _check(student, reading, budget)
        if not reading.positions:
            continue
        start, end = len(reading.prompt), len(reading.prompt) + budget
        if family.attention == "block":
            end = min(end, family.segment(start + max(reading.positions), start)[1])
        blocks = [family.block_of(position, start) for position in range(end)]
        streams.append(Stream([*reading.prompt, *[mask] * (end - start)], blocks))
        wanted.append([start + i - family.shift for i in reading.positions])
    if not streams:
        return _nothing(student)
    layout = PackedLayout(streams, student.device)
    rows = [first + row for first, rows in zip(layout.clean_index, wanted, strict=True) for row in rows]
    return _checked(_hidden_rows(student, layout, rows), readings)


def _read(
    student: Student, readings: Sequence[Reading], view: View, geometry: Geometry, budget: int, *, full: bool
) -> torch.Tensor:
    for reading in readings:
        _check(student, reading, budget)
    readings = [reading for reading in readings if reading.positions]
    if not readings:
        return _nothing(student)
    if full or student.family.attention == "full":
        return _read_sequences(student, readings, view, geometry, budget)
    streams = [_packed_stream(student, reading, view, geometry, budget) for reading in readings]
    layout = PackedLayout([stream for stream, _ in streams], student.device)
    rows = [layout.token(q, *place) for q, (_, wanted) in enumerate(streams) for place in wanted]
    return _checked(_hidden_rows(student, layout, rows), readings)


def _packed_stream(
    student: Student, reading: Reading, view: View, geometry: Geometry, budget: int
) -> tuple[Stream, list[tuple[int | None, int]]]:
    """The clean stream and replicas of one question, and where to read: (replica or None for clean, offset)."""
    family, mask = student.family, student.vocabulary.mask_id
    clean = [*reading.prompt, *reading.response]
    prompt = len(reading.prompt)
    replicas: list[Replica] = []
    wanted: list[tuple[int | None, int]] = []
    needed = prompt
    for i in reading.positions:
        target = prompt + i
        start, end = family.segment(target, prompt)
        offset = target - start
        needed = max(needed, start)
        if family.shift and offset == 0:
            wanted.append((None, target - 1))
            continue
        ids = _seen(family, clean[start:end], offset, view, mask)
        if geometry == "canvas":
            ids += [mask] * (min(end, prompt + budget) - start - len(ids))
        wanted.append((len(replicas), offset - family.shift))
        replicas.append(Replica(ids, start, family.block_of(target, prompt)))
    # Replicas see the blocks before their own, so the clean stream can end where the last of their blocks begins.
    clean = clean[:needed]
    return Stream(clean, [family.block_of(position, prompt) for position in range(needed)], replicas), wanted


def _seen(family: Family, ids: Sequence[int], target: int, view: View, mask: int) -> list[int]:
    """The tokens that are known under a view, and the mask at the target; a prefix under a shifted head needs none."""
    if view == "target_masked":
        return [*ids[:target], mask, *ids[target + 1 :]]
    return [*ids[:target], *[mask] * (1 - family.shift)]


def _read_sequences(
    student: Student, readings: Sequence[Reading], view: View, geometry: Geometry, budget: int
) -> torch.Tensor:
    """One sequence with full attention for each position; in a forward, as many as `_SEQUENCE_TOKENS` allow."""
    mask, shift = student.vocabulary.mask_id, student.family.shift
    sequences, wanted = [], []
    for reading in readings:
        prompt = len(reading.prompt)
        for i in reading.positions:
            ids = _seen(student.family, [*reading.prompt, *reading.response], prompt + i, view, mask)
            if geometry == "canvas":
                ids += [mask] * (prompt + budget - len(ids))
            sequences.append(Stream(ids, [0] * len(ids)))
            wanted.append(prompt + i - shift)
    size = max(1, _SEQUENCE_TOKENS // max(len(sequence.ids) for sequence in sequences))
    parts = []
    for start in range(0, len(sequences), size):
        chosen = slice(start, start + size)
        layout = PackedLayout(sequences[chosen], student.device)
        rows = [first + row for first, row in zip(layout.clean_index, wanted[chosen], strict=True)]
        parts.append(_hidden_rows(student, layout, rows))
    return _checked(torch.cat(parts), readings)


def _hidden_rows(student: Student, layout: PackedLayout, rows: list[int]) -> torch.Tensor:
    """The wanted rows of a forward."""
    return student.hidden(layout.ids_N, layout.positions_N, layout, layout.read(rows))


def _checked(hidden_SD: torch.Tensor, readings: Sequence[Reading]) -> torch.Tensor:
    """The rows, which belong to the positions of the readings in order. Raises ForkLeftError if one is not finite.

    For this the host waits for the device once in a readout.
    """
    if not (finite_S := hidden_SD.detach().isfinite().all(dim=-1)).all():
        names = [reading.id for reading in readings for _ in reading.positions]
        raise ForkLeftError(
            f"question {names[int(finite_S.logical_not().nonzero()[0])]}: the student's readout is not finite; "
            "are the weights damaged, or the precision too low?"
        )
    return hidden_SD


def _nothing(student: Student) -> torch.Tensor:
    """No rows, from a forward of one token: a process with nothing to read must still take part with the others."""
    layout = PackedLayout([Stream([student.vocabulary.mask_id], [0])], student.device)
    return _hidden_rows(student, layout, [0])[:0]


def _check(student: Student, reading: Reading, budget: int) -> None:
    what = f"question {reading.id}"
    student.check_prompt(reading.prompt, budget, what)
    student.vocabulary.check(reading.response, f"{what}: the response", student.tokenizer)
    if len(reading.response) > budget:
        raise ForkLeftError(f"{what}: a response of {len(reading.response)} tokens exceeds the budget of {budget}")
    if bad := [i for i in reading.positions if not 0 <= i < len(reading.response)]:
        raise ForkLeftError(
            f"{what}: positions {bad[:5]} are outside the response, which has {len(reading.response)} tokens"
        )
