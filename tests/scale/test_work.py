"""Counts of work against the tokens, rows and pairs that rollouts and readouts really compute."""

from dataclasses import astuple, replace

import pytest
import torch
from scales import SMALL, endless_student
from tiny import FAMILIES, family_name, tiny_student

from forkleft.objective import readouts
from forkleft.objective.positions import select_positions
from forkleft.objective.routes import Route
from forkleft.prompts import Reading as Read
from forkleft.rollout import generate
from forkleft.scale import work
from forkleft.scale.work import Question, Reading, Work
from forkleft.students.attention import may_attend

PROMPT, LENGTH = 6, 10
SUB_BLOCKS = replace(FAMILIES[3], block_size=4, sub_block=2)


def naive_pairs(family, prompt, positions):
    """Keys in blocks up to the query's own, in a sequence that ends with the last position."""
    blocks = [family.block_of(position, prompt) for position in range(max(positions) + 1)]
    return sum(sum(block <= blocks[position] for block in blocks) for position in positions)


@pytest.mark.parametrize("passes", [1, 3, 32])
@pytest.mark.parametrize("family", [*FAMILIES, SUB_BLOCKS], ids=family_name)
def test_a_rollout(monkeypatch, family, passes):
    student, seen = endless_student(family), []
    hidden, logits = student.hidden, student.logits

    def noted(ids_N, positions_N, layout, rows_S):
        seen.append(positions_N.tolist())
        return hidden(ids_N, positions_N, layout, rows_S)

    rows = []
    monkeypatch.setattr(student, "hidden", noted)
    monkeypatch.setattr(student, "logits", lambda hidden_UW: rows.append(len(hidden_UW)) or logits(hidden_UW))
    (written,) = generate(student, [[1] * PROMPT], max_new_tokens=LENGTH, passes=passes, order="high_entropy")
    assert len(written.tokens) == LENGTH
    counted = list(work.forwards(family, Question(PROMPT, LENGTH, LENGTH), passes))
    expected = [
        Work(len(positions), naive_pairs(family, PROMPT, positions), read, len(positions) - read)
        for positions, read in zip(seen, rows, strict=True)
    ]
    assert counted == expected


def packed(monkeypatch, family, view, geometry, attention, positions, budget):
    """The tokens and pairs of the layouts of a readout, from the rule of attention itself."""
    student, found = tiny_student(family), []

    def noted(student, layout, rows):
        tokens = layout._tokens
        seen = may_attend(tuple(x[:, None] for x in tokens), tuple(x[None, :] for x in tokens))
        found.append(Work(len(layout.ids_N), int(seen.sum()), len(rows), len(layout.ids_N) - len(rows)))
        return torch.zeros(len(rows), 1)

    monkeypatch.setattr(readouts, "_hidden_rows", noted)
    reading = Read("q", [1] * PROMPT, [2] * LENGTH, positions)
    if view == "prefix":
        readouts.prefix_hidden(student, [reading], budget=budget, geometry=geometry, attention=attention)
    elif view == "target_masked":
        readouts.target_masked_hidden(student, [reading], budget=budget, geometry=geometry)
    else:
        readouts.all_mask_hidden(student, [reading], budget=budget)
    return sum(found, start=Work())


@pytest.mark.parametrize("budget", [LENGTH, LENGTH + 5])
@pytest.mark.parametrize(
    ("view", "geometry", "attention"),
    [
        ("prefix", "truncated", "native"),
        ("prefix", "canvas", "native"),
        ("prefix", "truncated", "full"),
        ("target_masked", "truncated", "native"),
        ("target_masked", "canvas", "native"),
        ("all_mask", "truncated", "native"),
    ],
)
@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_a_readout_of_all_positions(monkeypatch, family, view, geometry, attention, budget):
    """With ρ = 1 every candidate is read, so that the expectation is what happens."""
    found = packed(monkeypatch, family, view, geometry, attention, list(range(LENGTH - 1)), budget)
    question, reading = Question(PROMPT, LENGTH, budget), Reading(1.0, geometry=geometry, attention=attention)
    if view == "all_mask":
        assert work.probe(family, question, reading) == found
    else:
        counted = work.readout(family, question, reading, view)
        assert astuple(counted) == pytest.approx(astuple(found))


def test_readouts_of_drawn_positions_are_as_expected():
    family, length = FAMILIES[0], 40
    question, reading = Question(PROMPT, length, length), Reading(0.25)
    expected = work.readout(family, question, reading)
    total = Work()
    for draw in range(300):
        drawn = {"ends_with_eos": False, "rho": 0.25, "seed": draw, "update": 0, "question": "q", "stream": "response"}
        positions = select_positions(length, **drawn)
        total += _packed_by_hand(positions)
    mean = total * (1 / 300)
    assert expected.rows == mean.rows
    assert expected.tokens == pytest.approx(mean.tokens, rel=0.05)
    assert expected.pairs == pytest.approx(mean.pairs, rel=0.1)


def _packed_by_hand(positions):
    """The packed readout in the words of the design: the clean stream, and for each position its block up to it."""
    last = (max(positions) // 4) * 4
    clean = PROMPT + last
    pairs = PROMPT**2 + sum(4 * (PROMPT + start + 4) for start in range(0, last, 4))
    replicas = [i % 4 + 1 for i in positions]
    pairs += sum(own * (PROMPT + i + 1) for own, i in zip(replicas, positions, strict=True))
    return Work(clean + sum(replicas), pairs, len(positions))


def test_the_teacher_reads_up_to_the_last_taught_position():
    done = work.teacher(Question(6, 101, 101), 1.0)
    assert (done.tokens, done.rows) == (105, 100)
    assert done.pairs == 105 * 106 / 2
    assert work.teacher(Question(6, 1, 8), 0.25) == Work()


@pytest.mark.parametrize(
    ("route", "supervision", "view", "expected"),
    [
        (Route.CE, "routed", "target_masked", ["prefix"]),
        (Route.LEFTOPD, "routed", "prefix", ["prefix"]),
        (Route.LEFTOPD, "routed", "target_masked", ["prefix", "target_masked"]),
        (Route.GOLD, "routed", "prefix", ["prefix", "prefix"]),
        (Route.EXCLUDE, "routed", "prefix", []),
        (Route.EXCLUDE, "sft+opd", "prefix", ["prefix", "prefix"]),
        (Route.CE, "opd", "prefix", ["prefix"]),
    ],
)
def test_what_a_route_reads(route, supervision, view, expected):
    assert work.views_of(route, supervision, view) == expected


def test_work_in_flops():
    done = Work(tokens=10, pairs=30, rows=2, unread=8)
    products = 2 * 10 * SMALL.linear - 2 * 8 * 3 * SMALL.width * SMALL.inner
    assert done.layer_flops(SMALL) == products + 4 * 30 * SMALL.layers * SMALL.queries
    assert done.flops(SMALL) == done.layer_flops(SMALL) + 2 * 2 * SMALL.words * SMALL.width
