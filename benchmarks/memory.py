"""Memory that PyTorch holds, counted operation by operation: exact, on any machine, and without a GPU."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations make within the block, as long as somebody holds them.

    peak: the most that was alive at any time. What exists before the block, such as weights, does not count.
    """

    def __init__(self, *before: torch.Tensor) -> None:
        super().__init__()
        self._known: set[int] = {tensor.untyped_storage()._cdata for tensor in before}
        self._before = before
        self.alive = self.peak = 0

    def __torch_dispatch__(self, function, types, arguments=(), settings=None):
        given = tree_leaves((arguments, settings))
        old = {tensor.untyped_storage()._cdata for tensor in given if isinstance(tensor, torch.Tensor)}
        result = function(*arguments, **settings or {})
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), old)
        return result

    def _note(self, storage: torch.UntypedStorage, old: set[int]) -> None:
        key = storage._cdata
        if key in self._known or key in old:
            return
        self._known.add(key)
        size = storage.nbytes()
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.alive -= size
