import pytest
import torch
from exact import assert_exact

from forkleft.objective.losses import contrast, mixture, qualifying_pairs, ranking_loss, selected_mean


def random(seed, size=12):
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def naive_rank(confidence, D, mu, delta):
    terms = []
    for i in range(len(D)):
        for j in range(len(D)):
            if D[i] > D[j] + mu:
                terms.append(max(0.0, confidence[i] - confidence[j] + delta))
    return sum(terms) / len(terms) if terms else 0.0


def test_mean_of_nothing_is_zero():
    assert selected_mean(torch.tensor([1.0, 2.0, 6.0])).item() == 3
    assert selected_mean(torch.zeros(0)).item() == 0


def test_contrast_is_the_fixed_positive_part():
    live = torch.tensor([1.0, 3.0], requires_grad=True)
    found = contrast(torch.tensor([2.0, 2.0]), live)
    assert found.tolist() == [1.0, 0.0]
    assert not found.requires_grad


@pytest.mark.parametrize("mu", [0.0, 0.1, 1.0, 100.0])
def test_ranking_equals_a_double_loop(mu):
    for seed in range(20):
        confidence, D = random(seed), random(seed + 100).clamp(min=0)
        found = ranking_loss(confidence, qualifying_pairs(D, mu), 0.1)
        assert found.item() == pytest.approx(naive_rank(confidence.tolist(), D.tolist(), mu, 0.1), abs=1e-12)


def test_ranking_by_hand():
    """Pairs (1,0), (1,2) and (2,0) qualify, with the hinges −1+2+0.1, −1+0.5+0.1 < 0 and −0.5+2+0.1."""
    confidence = torch.tensor([-2.0, -1.0, -0.5], dtype=torch.float64, requires_grad=True)
    loss = ranking_loss(confidence, qualifying_pairs(torch.tensor([0.0, 0.5, 0.25]), 0.2), 0.1)
    assert loss.item() == pytest.approx((1.1 + 0.0 + 1.6) / 3, abs=1e-12)
    loss.backward()
    assert confidence.grad.tolist() == pytest.approx([-2 / 3, 1 / 3, 1 / 3], abs=1e-12)


def test_ranking_does_not_feel_a_constant():
    """Neither in D nor in ℓ; a pair at exactly μ does not qualify."""
    confidence, D = random(0), random(1).clamp(min=0)
    one = ranking_loss(confidence, qualifying_pairs(D, 0.125), 0.1)
    two = ranking_loss(confidence + 3, qualifying_pairs(D + 4.0, 0.125), 0.1)
    assert one.item() == pytest.approx(two.item(), abs=1e-12)
    assert not qualifying_pairs(torch.tensor([0.25, 0.125]), 0.125).any()


@pytest.mark.parametrize("size", [0, 1, 5])
def test_no_pairs_no_loss_no_gradient(size):
    confidence = random(0, size).requires_grad_()
    loss = ranking_loss(confidence, qualifying_pairs(torch.ones(size), 0.1), 0.1)
    assert loss.item() == 0
    loss.backward()
    assert confidence.grad.abs().sum() == 0


def test_mixture():
    kl, nll = random(0), random(1)
    assert torch.equal(mixture(kl, nll, 0.0), nll)
    assert torch.equal(mixture(kl, nll, 1.0), kl)
    assert_exact(mixture(kl, nll, 0.25), kl / 4 + 3 * nll / 4)
