"""From the host to a device, without waiting for it."""

from typing import Any

import torch


def on_device(numbers: Any, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of numbers (nested lists, as for `torch.tensor`) on a device.

    `torch.tensor(…, device=…)` would wait until a GPU has done all work before the copy. This copy only queues behind
    it. The numbers may be dropped at once: CUDA has taken them when the call returns.
    """
    return torch.tensor(numbers, dtype=dtype).to(device, non_blocking=True)
