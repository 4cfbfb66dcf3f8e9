import math

import pytest
import torch
from tiny import FAMILIES, STOP, family_name, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective.readouts import prefix_hidden, target_masked_hidden
from forkleft.prompts import Reading
from forkleft.rollout import Trajectory, generate
from forkleft.study.probe import Forks, probe_forks, probe_views

BUDGET = 12
READINGS = [
    Reading("a", [5, 9, 2], [7, 3, 1, 30, 12, 11, STOP], range(7)),
    Reading("b", [7, 1], [1, 2, 3, STOP], range(4)),
    Reading("c", [4, 4, 6], [9, 9, 2, 20, 21], [1, 3]),
]


def naive_views(student, geometry):
    """One position after the other."""
    rows = []
    for reading in READINGS:
        for i in reading.positions:
            alone = [Reading(reading.id, reading.prompt, reading.response, [i])]
            both, left = (
                student.logits(hidden).softmax(-1)[0].tolist()
                for hidden in (
                    target_masked_hidden(student, alone, budget=BUDGET, geometry=geometry),
                    prefix_hidden(student, alone, budget=BUDGET, geometry=geometry),
                )
            )
            words = [max(range(len(p)), key=p.__getitem__) for p in (both, left)]
            entropy = [-sum(x * math.log(x) for x in p if x > 0) for p in (both, left)]
            rows.append((*words, reading.response[i], *entropy))
    return rows


@pytest.mark.parametrize("geometry", ["truncated", "canvas"])
@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3]], ids=family_name)
def test_views_are_counted_as_one_by_one(family, geometry):
    student = tiny_student(family, dtype=torch.float64, seed=2)
    with torch.no_grad():
        rows = naive_views(student, geometry)
    found = probe_views(student, READINGS, budget=BUDGET, geometry=geometry, batch_size=2)
    assert found.positions == len(rows) == 13
    assert found.target_masked_right == sum(both == y for both, _, y, *_ in rows)
    assert found.prefix_right == sum(left == y for _, left, y, *_ in rows)
    assert found.disagreements == sum(both != left for both, left, *_ in rows)
    assert found.target_masked_only == sum(both == y != left for both, left, y, *_ in rows)
    assert found.prefix_only == sum(left == y != both for both, left, y, *_ in rows)
    assert found.neither == found.disagreements - found.target_masked_only - found.prefix_only
    assert found.target_masked_entropy == pytest.approx(sum(row[3] for row in rows) / 13, abs=1e-12)
    assert found.prefix_entropy == pytest.approx(sum(row[4] for row in rows) / 13, abs=1e-12)


def test_nothing_to_probe_is_said():
    with pytest.raises(ForkLeftError, match="no position to probe"):
        probe_views(tiny_student(FAMILIES[0]), [], budget=BUDGET, geometry="canvas")


def test_forks_of_a_response_that_is_known():
    """Every position is a fork, and what was noted at commit is taken as it is."""
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    written = Trajectory([7, 3, 1], None, [3, 1, 2], [0.1, 9.0, 0.2], [0.5] * 3, False, 3)
    found = probe_forks(student, [[5, 9]], [written], passes=3, budget=BUDGET, geometry="canvas", fork_entropy=0.0)
    assert (found.responses, found.tokens, found.forks) == (1, 3, 3)
    assert found.place == pytest.approx(0.5)
    assert found.commit == pytest.approx(0.5)
    assert found.entropy == pytest.approx(3.1)
    # A tiny model knows nothing: its entropy is near log V everywhere, of which 0.1 and 0.2 are less than half.
    assert found.settled == pytest.approx(2 / 3)


def test_forks_are_the_positions_that_the_prefix_leaves_open():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    prompts = [reading.prompt for reading in READINGS]
    written = generate(student, prompts, order="high_entropy", max_new_tokens=BUDGET)
    entropies = []
    for prompt, trajectory in zip(prompts, written, strict=True):
        for i in range(len(trajectory.tokens)):
            hidden = prefix_hidden(student, [Reading("x", prompt, trajectory.tokens, [i])], budget=BUDGET)
            p = student.logits(hidden).softmax(-1)[0]
            entropies.append(-(p[p > 0] * p[p > 0].log()).sum().item())
    middle = sorted(entropies)[len(entropies) // 2]
    settings = {"passes": 4, "budget": BUDGET, "geometry": "truncated"}
    found = probe_forks(student, prompts, written, fork_entropy=middle - 1e-9, **settings)
    assert found.forks == sum(entropy >= middle - 1e-9 for entropy in entropies)
    none = probe_forks(student, prompts, written, fork_entropy=100.0, **settings)
    assert none == Forks(len(written), found.tokens, 0, None, None, None, None, None)
