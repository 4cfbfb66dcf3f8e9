import pytest
import torch
from exact import assert_exact
from naive import plain_logits, segment_bounds
from tiny import FAMILIES, MASK, STOP, family_name, plain_copy, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Sample, _hidden, denoising_loss
from forkleft.randomness import keyed_generator
from forkleft.students import Family

BUDGET = 14
EXAMPLES = [
    Sample([5, 9, 2], [7, 3, 1, 30, 12, 11, STOP]),
    Sample([7, 1, 3, 3, 8, 30, 2, 11], [1, 2, 3, STOP]),
    Sample([6], [STOP]),
    Sample([3, 1, 4, 1, 5], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, STOP]),
]


def hide(first, last, generator):
    """The rule in words: a ratio, a spare draw, then one draw for each position; never nothing."""
    ratio = torch.rand(last - first + 2, generator=generator, dtype=torch.float64).tolist()
    hidden = [first + k for k, draw in enumerate(ratio[2:]) if draw < ratio[0]]
    return hidden or [first + int(ratio[1] * (last - first))]


def naive_loss(model, family, examples, generator, weighting="positions"):
    """One forward for each block: everything before it clean, the block in part hidden, nothing after it."""
    losses, means, lengths = [], [], []
    for example in examples:
        prompt, end = len(example.prompt), len(example.prompt) + BUDGET
        sequence = [*example.prompt, *example.response]
        stop = segment_bounds(family, len(sequence) - 1, prompt, end)[1] if family.attention == "block" else end
        sequence += [STOP] * (stop - len(sequence))
        begin = prompt
        while begin < len(sequence):
            last = segment_bounds(family, begin, prompt, end)[1] if family.attention == "block" else end
            hidden = hide(begin, last, generator)
            noisy = [MASK if position in hidden else sequence[position] for position in range(last)]
            logits = plain_logits(model, family, noisy, prompt)
            for position in hidden:
                source = position if family.head == "same" else position - 1
                losses.append(-logits[source].log_softmax(-1)[sequence[position]])
            means.append(torch.stack(losses[-len(hidden) :]).mean())
            lengths.append(last - begin)
            begin = last
    if weighting == "positions":
        return torch.stack(losses).mean()
    # 1/t at each hidden position makes of a block its mean loss times its length.
    return sum(mean * length for mean, length in zip(means, lengths, strict=True)) / sum(lengths)


@pytest.mark.parametrize("weighting", ["positions", "ratio"])
@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_loss_and_gradients_equal_one_forward_a_block(family, weighting):
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    for seed in range(3):
        student.model.zero_grad()
        model.zero_grad()
        generators = [keyed_generator(seed), keyed_generator(seed)]
        found = denoising_loss(student, EXAMPLES, budget=BUDGET, generator=generators[0], weighting=weighting)
        expected = naive_loss(model, family, EXAMPLES, generators[1], weighting)
        assert_exact(found, expected)
        found.backward()
        expected.backward()
        for (name, one), two in zip(student.model.named_parameters(), model.parameters(), strict=True):
            assert_exact(one.grad, two.grad, name)


def test_the_ratio_of_hidden_positions_is_uniform():
    """Over many blocks every count of hidden positions comes up about equally often (none becomes one)."""
    counts = torch.zeros(9)
    generator = keyed_generator("ratio")
    for _ in range(4000):
        counts[len(_hidden(0, 8, generator))] += 1
    expected = torch.tensor([0, 2, 1, 1, 1, 1, 1, 1, 1]) * 4000 / 9
    assert ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 24.3  # chi-square, 7 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([], "must end with a stop id"),
        ([1, 2], "must end with a stop id"),
        ([1] * 14 + [STOP], "15 tokens exceeds the"),
    ],
)
def test_bad_examples(response, message):
    with pytest.raises(ForkLeftError, match=message):
        denoising_loss(
            tiny_student(Family("block", 4)), [Sample([1], response)], budget=BUDGET, generator=keyed_generator(0)
        )
