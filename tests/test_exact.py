import pytest
import torch
from tiny import ARCHITECTURES, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode


class Dtypes(TorchDispatchMode):
    """Which floating types come up among all results."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        out = function(*arguments, **settings or {})
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.seen.add(tensor.dtype)
        return out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float64_is_float64_throughout(architecture):
    """If Transformers begins to compute something else in float32, the oracles must know."""
    model = tiny_model(architecture, dtype=torch.float64)
    with Dtypes() as dtypes:
        model(torch.tensor([[1, 2, 3]])).logits.sum().backward()
    assert dtypes.seen == {torch.float64}
