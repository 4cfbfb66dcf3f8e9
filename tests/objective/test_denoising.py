import pytest
import torch
from exact import assert_exact
from naive import naive_causal_loss, naive_denoising_loss
from tiny import FAMILIES, STOP, family_name, plain_copy, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import (
    WHOLE_RANGE,
    Sample,
    _hidden,
    causal,
    draw,
    packed_tokens,
    prediction_loss,
)
from forkleft.randomness import keyed_generator
from forkleft.students import Family

BUDGET = 14
EXAMPLES = [
    Sample([5, 9, 2], [7, 3, 1, 30, 12, 11, STOP]),
    Sample([7, 1, 3, 3, 8, 30, 2, 11], [1, 2, 3, STOP]),
    Sample([6], [STOP]),
    Sample([3, 1, 4, 1, 5], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, STOP]),
]
# Text that goes on has no budget, and is filled up only if it stops.
TEXTS = [Sample([5], [7, 3, 1, 30, 12, 11, 4, 2, 9]), Sample([8], [1, 2, 3, 4, 5, STOP]), Sample([2], [6])]


def generators(seed, examples):
    return [keyed_generator(seed, row) for row in range(len(examples))]


def tasks_of(student, examples, seed, budget=BUDGET, **settings):
    drawn = zip(examples, generators(seed, examples), strict=True)
    return [draw(student, example, generator, budget=budget, **settings) for example, generator in drawn]


def mean_loss(student, tasks):
    return prediction_loss(student, tasks, {tasks[0].kind: 1 / sum(task.weight for task in tasks)})[0]


def assert_same_gradients(student, model, found, expected):
    assert_exact(found, expected)
    found.backward()
    expected.backward()
    for (name, one), two in zip(student.model.named_parameters(), model.parameters(), strict=True):
        assert_exact(one.grad, two.grad, name)


@pytest.mark.parametrize("weighting", ["uniform", "1/t"])
@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_loss_and_gradients_equal_one_forward_a_block(family, weighting):
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    for seed, (examples, budget) in enumerate([(EXAMPLES, BUDGET), (EXAMPLES, BUDGET), (TEXTS, None)]):
        student.model.zero_grad()
        model.zero_grad()
        shares = (0.2, 0.7) if seed == 1 else WHOLE_RANGE
        tasks = tasks_of(student, examples, seed, budget, weighting=weighting, shares=shares)
        expected = naive_denoising_loss(model, family, examples, generators(seed, examples), weighting, budget, shares)
        assert_same_gradients(student, model, mean_loss(student, tasks), expected)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_denoising_with_next_tokens_beside_it_equals_both_alone(family):
    """In one forward, with weights of their own; attention of the causal stream is causal in every family."""
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    tasks = [*tasks_of(student, EXAMPLES, 4), *map(causal, EXAMPLES)]
    hidden = sum(task.weight for task in tasks if task.kind == "denoising")
    tokens = sum(len(example.response) for example in EXAMPLES)
    found, sums = prediction_loss(student, tasks, {"denoising": 1 / hidden, "causal": 0.3 / tokens})
    one = naive_denoising_loss(model, family, EXAMPLES, generators(4, EXAMPLES), "uniform", BUDGET, WHOLE_RANGE)
    two = naive_causal_loss(model, EXAMPLES)
    assert_exact(torch.tensor(sums["denoising"] / hidden, dtype=torch.float64), one.detach())
    assert_exact(torch.tensor(sums["causal"] / tokens, dtype=torch.float64), two.detach())
    assert_same_gradients(student, model, found, one + 0.3 * two)


def test_parts_of_a_batch_add_up_to_it():
    student = tiny_student(FAMILIES[0], dtype=torch.float64)
    tasks = tasks_of(student, EXAMPLES, 1, weighting="1/t")
    scale = {"denoising": 1 / sum(task.weight for task in tasks)}
    parts = [prediction_loss(student, part, scale)[0] for part in (tasks[:1], tasks[1:], [])]
    assert_exact(sum(parts), mean_loss(student, tasks))
    parts[-1].backward()
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in student.model.parameters())


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_tokens_of_a_forward_are_known_before_it(family):
    student = tiny_student(family)
    for examples, budget in ((EXAMPLES, BUDGET), (TEXTS, None)):
        for example, task in zip(examples, tasks_of(student, examples, 2, budget), strict=True):
            found = len(task.stream.ids) + sum(len(replica.ids) for replica in task.stream.replicas)
            assert packed_tokens(student, example, budget) == found


def test_the_share_of_hidden_positions_is_uniform():
    """Over many blocks every count of hidden positions comes up about equally often (none becomes one)."""
    counts = torch.zeros(9)
    generator = keyed_generator("ratio")
    for _ in range(4000):
        counts[len(_hidden(0, 8, generator, WHOLE_RANGE))] += 1
    expected = torch.tensor([0, 2, 1, 1, 1, 1, 1, 1, 1]) * 4000 / 9
    assert ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 24.3  # chi-square, 7 degrees of freedom, p = 0.001


def test_the_range_of_shares_holds():
    generator = keyed_generator("range")
    counts = [len(_hidden(0, 1000, generator, (0.4, 0.6))) for _ in range(50)]
    assert 330 < min(counts) < 460 and 540 < max(counts) < 670
    assert _hidden(0, 8, generator, (1.0, 1.0)) == list(range(8))
    assert len(_hidden(0, 8, generator, (0.0, 0.0))) == 1


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Sample([1], [], "7"), "row 7: the response is empty"),
        (Sample([], [1, STOP], "7"), "row 7: the prompt is empty"),
        (Sample([1], [1, 2], "7"), "row 7: a response must end with a stop id"),
        (Sample([1], [1] * 14 + [STOP], "7"), "row 7: a response of 15 tokens exceeds the budget of 14"),
    ],
)
def test_bad_samples(sample, message):
    with pytest.raises(ForkLeftError, match=message):
        draw(tiny_student(Family("block", 4)), sample, keyed_generator(0), budget=BUDGET)


def test_a_loss_that_is_not_finite_names_its_row():
    student = tiny_student(FAMILIES[0])
    with torch.no_grad():
        student.model.lm_head.weight.fill_(float("nan"))
    tasks = [draw(student, Sample([1], [2, STOP], "abc"), keyed_generator(0), budget=BUDGET)]
    with pytest.raises(ForkLeftError, match="row abc: the loss is nan"):
        prediction_loss(student, tasks, {"denoising": 1.0})
