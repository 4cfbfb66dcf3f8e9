"""What a wrapped model (DDP, FSDP2) needs: calls within its forward, and whole weights while it writes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule


def answer_calls(model: torch.nn.Module) -> None:
    """Make `model(forkleft_call=f)` run f within the module's forward; any other call works as before.

    DDP synchronises gradients, and FSDP gathers parameters, only around the forward of the module that they wrap.
    """
    # A method, not a closure: a copy of the model then calls the copy.
    model.forward = MethodType(_answering, model)


def _answering(
    self: torch.nn.Module, *arguments: Any, forkleft_call: Callable[[], Any] | None = None, **settings: Any
) -> Any:
    return type(self).forward(self, *arguments, **settings) if forkleft_call is None else forkleft_call()


@contextmanager
def gathered(model: torch.nn.Module, *, reshard: bool = True) -> Iterator[None]:
    """Keep all parameters of a model under FSDP2 whole within the block. Does nothing to any other model.

    Processes write responses of different lengths, so they need different numbers of forwards. But FSDP gathers weights
    in every forward together with all other processes: they would wait for each other for ever. Gathering once is also
    much faster. reshard: the option given to `fully_shard`, which is restored.
    """
    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            # The outermost part never reshards after its forward, because its backward follows at once.
            part.set_reshard_after_forward(reshard and part is not model, recurse=False)
            part.reshard()
