import math

import pytest
import torch
from exact import assert_exact, assert_no_worse

from forkleft.errors import ForkLeftError
from forkleft.rollout.orders import (
    ORDERS,
    Predictions,
    choose,
    commits_this_pass,
    priority,
    sample,
    summarise,
)


@pytest.mark.parametrize("masks", range(1, 40))
def test_schedule(masks):
    """Σ k_r = |M|, never 0 while masks remain, for pass budgets below and above |M|."""
    for passes in range(1, 50):
        left, used = masks, 0
        for r in range(1, passes + 1):
            if left == 0:
                break
            count = commits_this_pass(left, passes, r)
            assert 1 <= count <= left
            left, used = left - count, used + 1
        assert left == 0
        assert used == min(passes, masks)  # a smaller budget is used up, a larger one commits one token a pass


def test_eight_positions_in_three_passes():
    """The ceiling of the paper; dLLM and OPDLM round instead, to 3, 2, 3 (docs/models.md)."""
    left, taken = 8, []
    for r in (1, 2, 3):
        taken.append(commits_this_pass(left, 3, r))
        left -= taken[-1]
    assert taken == [3, 3, 2]


def test_the_random_order_needs_noise():
    number_U = torch.zeros(3)
    with pytest.raises(ForkLeftError, match="the random order needs noise_U, found None"):
        priority("random", Predictions(number_U, number_U, number_U))


def test_choose_takes_the_highest_and_the_lowest_position_at_a_tie():
    priority = torch.tensor([[1.0, 3.0, 3.0, 3.0, 9.0], [0.0, 0.0, 0.0, 0.0, 0.0], [-2.0, -1.0, -3.0, -1.0, 0.0]])
    unresolved = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 0, 1, 1], [1, 1, 1, 1, 0]], dtype=torch.bool)
    chosen = choose(priority.masked_fill(~unresolved, -math.inf), torch.tensor([2, 2, 3]))
    assert chosen.int().tolist() == [[0, 1, 1, 0, 0], [0, 1, 0, 1, 0], [1, 1, 0, 1, 0]]


def test_orders():
    prediction = Predictions(
        entropy_U=torch.tensor([0.5, 0.1, 0.9]),
        confidence_U=torch.tensor([0.6, 0.7, 0.65]),
        offset_U=torch.tensor([2, 5, 1]),
        noise_U=torch.tensor([0.3, 0.2, 0.1]),
    )
    first = {name: int(order(prediction).argmax()) for name, order in ORDERS.items()}
    assert first == {"high_entropy": 2, "low_entropy": 1, "confidence": 1, "left_to_right": 2, "random": 0}


def test_maximum_probability_is_not_minimum_entropy():
    peaked_with_tail = torch.tensor([0.55] + [0.45 / 30] * 30).log()
    two_way = torch.tensor([0.5, 0.5] + [0.0] * 29).log()
    entropy, confidence, _ = summarise(torch.stack([peaked_with_tail, two_way]))
    assert confidence[0] > confidence[1]
    assert entropy[0] > entropy[1]


def plain_summary(logits):
    """Entropy and confidence, term by term."""
    p = logits.softmax(-1)
    return torch.where(p > 0, -p * p.log(), 0.0).sum(-1), p.max(-1).values


# Short rows, and rows that are cut into runs of words: all of them whole, or with a shorter one at the end.
@pytest.mark.parametrize("words", [30, 2048, 1500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_summary(dtype, words):
    generator = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(50, words, generator=generator, dtype=dtype)
    logits[:, 7:9] = -math.inf
    logits[3, 1:] = -math.inf  # one token alone: entropy 0
    logits[4, -1] = logits[5, 0] = 100.0  # the last word and the first are the likeliest
    kept = logits.clone()
    *found, tokens = summarise(logits)
    assert found[0].min() >= 0
    for ours, plain, exact in zip(found, plain_summary(kept), plain_summary(kept.double()), strict=True):
        if dtype is torch.float64:
            assert_exact(ours, exact)
        else:
            assert_no_worse(ours, plain, exact)
    assert tokens.tolist() == kept.argmax(-1).tolist()
    assert (tokens[3], tokens[4], tokens[5]) == (0, words - 1, 0)


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("words", [30, 2048, 1500])
def test_the_first_of_equally_likely_tokens_is_taken(words, rows):
    """In a whole row; and where many rows are cut into runs of words, within a run and over several."""
    for places in ((3, 9), (2, words - 1), (words - 2, words - 1), (0, 1)):
        logits = torch.zeros(rows, words)
        logits[:, list(places)] = 1.0
        assert summarise(logits)[2].tolist() == [places[0]] * rows


def test_sample_follows_the_distribution():
    """The share of evenly spread draws that hit a token is its probability."""
    logits = torch.tensor([0.0, 1.0, -1.0, -math.inf, 2.0])
    draws = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    for temperature, top_p in ((1.0, 1.0), (0.5, 1.0), (1.0, 0.8), (2.0, 0.5), (1.0, 1e-9)):
        p = (logits / temperature).softmax(-1).tolist()
        kept, mass = {}, 0.0
        for token in sorted(range(5), key=lambda u, p=p: -p[u]):
            if kept and mass >= top_p:
                break
            kept[token] = p[token]
            mass += p[token]
        expected = [kept.get(token, 0.0) / mass for token in range(5)]
        tokens = sample(logits.double().expand(10_000, 5), draws, temperature, top_p)
        found = torch.bincount(tokens, minlength=5) / 10_000
        assert found.tolist() == pytest.approx(expected, abs=2e-4)


def test_sample_stays_inside_at_the_very_end():
    logits = torch.tensor([[0.0, 0.0, -math.inf]])
    almost_one = torch.tensor([math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert sample(logits, almost_one, 1.0, 1.0).item() in (0, 1)
