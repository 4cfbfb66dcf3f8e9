"""The losses of one question, from numbers at its selected positions.

Shapes: S selected positions of one question.
"""

import torch


def selected_mean(loss_S: torch.Tensor) -> torch.Tensor:
    """A_S(f): the mean over the selected positions, 0 if none is selected (paper eq. `selected-mean`)."""
    return loss_S.sum() / max(1, len(loss_S))


def mixture(kl_S: torch.Tensor, nll_S: torch.Tensor, alpha: float) -> torch.Tensor:
    """α KL(t‖p) + (1−α)(−log p_y): pulls p towards αt + (1−α)e_y (paper eq. `mixgradient`)."""
    return alpha * kl_S + (1 - alpha) * nll_S


def contrast(mask_entropy_S: torch.Tensor, left_entropy_S: torch.Tensor) -> torch.Tensor:
    """D = stopgrad([H_mask − H_left]₊): how much the prefix tells about a position (paper eq. `coupling`)."""
    return (mask_entropy_S - left_entropy_S).detach().clamp(min=0)


def qualifying_pairs(contrast_S: torch.Tensor, mu: float) -> torch.Tensor:
    """`pairs_SS[i, j]`: whether D_i > D_j + μ (the set 𝒫_q of paper eq. `rank`)."""
    return contrast_S[:, None] > contrast_S[None, :] + mu


def ranking_loss(confidence_S: torch.Tensor, pairs_SS: torch.Tensor, delta: float) -> torch.Tensor:
    """The mean of [ℓ_i − ℓ_j + δ]₊ over the qualifying pairs, 0 without any (paper eq. `rank`).

    Where the prefix tells more, the student should be less confident. The gradient passes through ℓ only.
    """
    hinge_SS = (confidence_S[:, None] - confidence_S[None, :] + delta).relu()
    return (hinge_SS * pairs_SS).sum() / pairs_SS.sum().clamp(min=1)
