"""Stock models in float64 throughout, and the two ways in which tests compare numbers.

Transformers computes norms, rotary angles and routers in float32, whatever the weights are in. Between two ways to the
same number that leaves 1e-7 or more, and how much depends on the processor. While tests run, these modules compute in
float64 wherever what they are given is float64, so that only the last digits differ; in other precisions they are as
they were. Oracles compare in float64 (`assert_exact`). Where a lower precision is itself the subject, the bound is the
error that the plain way makes in that precision (`assert_no_worse`).
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch.nn.functional import linear
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

_PREFIXES = {
    modeling_llama: "Llama",
    modeling_qwen2: "Qwen2",
    modeling_qwen3: "Qwen3",
    modeling_qwen3_moe: "Qwen3Moe",
}


def _norm(self, hidden):
    return self.weight * hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def _angles(self, hidden, position_ids):
    half = position_ids[..., None] * self.inv_freq.double()
    angles = torch.cat((half, half), dim=-1)
    return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling


def _route(self, hidden):
    logits = linear(hidden.reshape(-1, self.hidden_dim), self.weight)
    weights, experts = logits.softmax(-1).topk(self.top_k, dim=-1)
    if self.norm_topk_prob:
        weights = weights / weights.sum(-1, keepdim=True)
    return logits, weights, experts


def _experts(self, *arguments):
    """One expert after the other: the grouped kernel knows no float64."""
    return _STOCK_EXPERTS.__wrapped__(self, *arguments)


_STOCK_EXPERTS = modeling_qwen3_moe.Qwen3MoeExperts.forward


def float64_throughout() -> None:
    """From here on, in this process: `conftest.py` does it for all tests, programs that tests start for themselves."""
    for module, prefix in _PREFIXES.items():
        parts = {"RMSNorm": _norm, "RotaryEmbedding": _angles, "TopKRouter": _route, "Experts": _experts}
        for name, forward in parts.items():
            if kind := getattr(module, prefix + name, None):
                kind.forward = _where_float64(forward, kind.forward)


def _where_float64(exact: Callable, stock: Callable) -> Callable:
    @wraps(stock)
    def forward(self, hidden, *arguments, **settings):
        return (exact if hidden.dtype is torch.float64 else stock)(self, hidden, *arguments, **settings)

    return forward


def assert_exact(found: torch.Tensor, expected: torch.Tensor, what: object = "", tolerance: float = 1e-12) -> None:
    """Equal but for the last digits of float64, relative to the largest number where that is above 1."""
    assert found.dtype is expected.dtype is torch.float64
    assert found.shape == expected.shape, what
    assert torch.equal(found.isinf(), expected.isinf()), what
    assert _apart(found, expected) <= tolerance * max(1.0, _largest(expected)), what


def assert_no_worse(
    ours: torch.Tensor,
    plain: torch.Tensor,
    exact: torch.Tensor,
    what: object = "",
    *,
    dtype: torch.dtype | None = None,
    multiple: float = 4.0,
) -> None:
    """In a lower precision: our largest error is at most a small multiple of the plain way's, or a few last digits.

    dtype: what both were computed in, if not what our numbers are in. A single number would be no measure of an error.
    """
    assert exact.dtype is torch.float64
    assert ours.shape == plain.shape == exact.shape, what
    floor = 4 * torch.finfo(dtype or ours.dtype).eps * max(1.0, _largest(exact))
    assert _apart(ours, exact) <= multiple * _apart(plain, exact) + floor, what


def _apart(one: torch.Tensor, two: torch.Tensor) -> float:
    same = one == two  # infinities
    return (one.detach().double() - two.detach()).abs().masked_fill(same, 0.0).max().item() if one.numel() else 0.0


def _largest(values: torch.Tensor) -> float:
    finite = values.detach()[values.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0
