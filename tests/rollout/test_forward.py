"""Both kinds of forward against the plain model, at every open position, while rows come and go."""

import pytest
import torch
from exact import assert_exact
from naive import read
from tiny import FAMILIES, MASK, family_name, plain_copy, tiny_student

from forkleft.rollout.forward import CachedForward, CanvasForward, Row

PROMPTS = [[5, 9, 2], [7, 1, 3, 3, 8]]
WRITTEN = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22]
COLUMNS, BUDGET = 24, 12


def row_at(family, number, offset):
    """A row that writes the segment of the response position at `offset`."""
    prompt = PROMPTS[number]
    row = Row(number, prompt, len(prompt) + BUDGET)
    start, end = family.segment(len(prompt) + offset, len(prompt))
    if family.attention == "full":
        start, end = 0, row.end
    # The first segment may begin within the prompt.
    row.segment_start, row.segment_end = start, min(end, row.end)
    return row


def ids_of(row):
    """Prompt, what is written before the segment, and masks behind it."""
    written = WRITTEN[: max(0, row.segment_start - len(row.prompt))]
    ids = [*row.prompt, *written]
    return ids + [MASK] * (row.end - len(ids))


def assert_equals_plain(student, model, forward, rows):
    ids_RL = torch.full((len(rows), COLUMNS), MASK)
    for place, row in enumerate(rows):
        ids_RL[place, : row.end] = torch.tensor(ids_of(row))
    open_positions = [
        (k, position)
        for k, row in enumerate(rows)
        for position in range(max(row.segment_start, len(row.prompt)), row.segment_end)
    ]
    place_U, position_U = (torch.tensor(column) for column in zip(*open_positions, strict=True))
    with torch.no_grad():
        found_UV = student.logits(forward.hidden(rows, ids_RL, place_U, position_U)).log_softmax(-1)
        for (k, position), found_V in zip(open_positions, found_UV, strict=True):
            row = rows[k]
            # Behind the segment nothing is seen by block attention; full attention sees the whole budget.
            end = row.end if student.family.attention == "full" else row.segment_end
            assert_exact(found_V, read(model, student.family, ids_of(row)[:end], len(row.prompt), position))


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.attention == "block"], ids=family_name)
def test_cached_forwards_equal_the_plain_model(family):
    student = tiny_student(family, dtype=torch.float64)
    model, forward = plain_copy(student), CachedForward(student, 2, COLUMNS)
    for number in range(2):
        forward.enter(number, row_at(family, number, 0))
    # Both in their first segment, then one ahead of the other, then both further on: keys come from earlier calls.
    for offsets in ((0, 0), (4, 0), (8, 4)):
        assert_equals_plain(student, model, forward, [row_at(family, k, offset) for k, offset in enumerate(offsets)])
    # The first ends; the second takes its place with its keys, and a new row enters behind it.
    forward.leave(0, 1)
    forward.enter(1, row_at(family, 0, 0))
    assert_equals_plain(student, model, forward, [row_at(family, 1, 8), row_at(family, 0, 0)])


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.attention == "full"], ids=family_name)
def test_a_whole_canvas_equals_the_plain_model(family):
    student = tiny_student(family, dtype=torch.float64)
    model, forward = plain_copy(student), CanvasForward(student)
    for number in range(2):
        forward.enter(number, row_at(family, number, 0))
    assert_equals_plain(student, model, forward, [row_at(family, number, 0) for number in range(2)])
