"""A simulated accelerator: where placement and waits are tested on a machine that has none.

A tensor of the device `sim:0` is computed on the CPU, but tells its device as a GPU's tensor would, and operations
treat it as CUDA does:

- Operations on tensors of both devices are refused. Exceptions, as on CUDA: numbers (tensors without dimensions) of the
  CPU, copies, and index tensors of the CPU into a tensor of the device.
- Generators of the CPU cannot draw on the device.
- What makes the host wait for the device is counted (`Simulation.waits`): reading a number (`item`, `bool`, `tolist`),
  shapes that depend on values (`nonzero`, boolean indices, `unique`, …), and copies in either direction, unless one to
  the device is `non_blocking`. `torch.tensor(…, device=…)` and indices from the CPU are such copies.

What it cannot show: speed, kernels, streams, memory, compiled code, and more than one device.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten

_COPIES = {aten._to_copy.default, aten.copy_.default}
_INDEXED = {aten.index.Tensor, aten._unsafe_index.Tensor}
_INDEX_PUT = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# Their results, or the shapes of them, depend on values that only the device knows.
_READ = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
    aten.bincount.default,
    aten.repeat_interleave.Tensor,
}


class _Backend(_DummyBackendModule):
    def is_available(self) -> bool:
        """Nobody who looks for an accelerator finds this one: it is only where a test puts tensors on it."""
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("sim", backend_module=_Backend())
SIM = torch.device("sim", 0)


class SimulatedTensor(torch.Tensor):
    """A tensor of `sim:0`; `held` has its numbers."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "SimulatedTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=SIM,
        )
        made.held = held.detach()
        return made

    def __repr__(self) -> str:
        return f"SimulatedTensor({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func}: a tensor of the simulated device is used outside of `Simulation`")


class Simulation(TorchDispatchMode):
    """While it is entered there is a device `sim:0`. waits: what made the host wait, each with its place in the code.

    Modules and tensors get there with `.to(SIM)`; `held` of a tensor is its copy on the CPU, which counts for nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __enter__(self) -> "Simulation":
        # These make tensors of numbers, or numbers of tensors, behind the dispatcher's back.
        self._tensor = torch.tensor
        torch.tensor = self._make
        SimulatedTensor.tolist = lambda tensor: self._list(tensor)
        SimulatedTensor.new_tensor = lambda tensor, data, *, dtype=None: self._make(
            data, dtype=dtype or tensor.dtype, device=SIM
        )
        SimulatedTensor.__getitem__ = lambda tensor, index: torch.Tensor.__getitem__(tensor, self._tensors(index))
        SimulatedTensor.__setitem__ = lambda tensor, index, value: torch.Tensor.__setitem__(
            tensor, self._tensors(index), value
        )
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.tensor = self._tensor
        for name in ("tolist", "new_tensor", "__getitem__", "__setitem__"):
            delattr(SimulatedTensor, name)

    def counted(self) -> Counter[str]:
        """How often each operation made the host wait, for messages of tests."""
        return Counter(self.waits)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        leaves = list(_leaves([*args, *kwargs.values()]))
        ours = [x for x in leaves if isinstance(x, SimulatedTensor)]
        theirs = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, SimulatedTensor)]
        wanted = kwargs.get("device")
        on_device = bool(ours) if wanted is None else torch.device(wanted).type == "sim"
        if not ours and not on_device:
            return func(*args, **kwargs)
        if ours:
            self._check_devices(func, args, theirs)
        if on_device and any(isinstance(x, torch.Generator) for x in leaves):
            raise RuntimeError(f"{func}: expected a 'sim' device type for generator but found 'cpu'")
        self._count(func, args, kwargs, ours, theirs, on_device)
        if func is aten._fused_sdp_choice.default:
            return 0  # "math": the kernels of the CPU cannot be chosen for another device
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        kwargs.pop("pin_memory", None)
        out = func(*_each(_held, args), **{name: _each(_held, value) for name, value in kwargs.items()})
        if func is aten.copy_.default:
            return args[0]
        if not on_device:
            return out
        out = _each(_on_device, out)
        return return_and_correct_aliasing(func, args, kwargs, out) if ours and _aliases(func) else out

    def _check_devices(self, func: Any, args: Any, theirs: list[torch.Tensor]) -> None:
        mixed = [tuple(x.shape) for x in theirs if x.dim() > 0]
        if func in _COPIES or not mixed:
            return
        if func in _INDEXED | _INDEX_PUT:
            if not isinstance(args[0], SimulatedTensor):
                raise RuntimeError(f"{func}: indices are on sim:0, the indexed tensor is on cpu")
            value = args[2] if func in _INDEX_PUT else None
            if value is None or isinstance(value, SimulatedTensor) or value.dim() == 0:
                return
        raise RuntimeError(
            f"{func}: expected all tensors to be on the same device, found sim:0, and cpu with shapes {mixed}"
        )

    def _count(self, func: Any, args: Any, kwargs: Any, ours: list, theirs: list, on_device: bool) -> None:
        if func is aten._to_copy.default:
            to, away = on_device and not ours, bool(ours) and not on_device
            if away or (to and not kwargs.get("non_blocking", False)):
                self._wait(func)
        elif func is aten.copy_.default:
            to, away = (len(ours) == 1 and isinstance(x, SimulatedTensor) for x in args[:2])
            blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if away or (to and blocking):
                self._wait(func)
        elif func in _INDEXED | _INDEX_PUT:
            for index in args[1]:
                if index is None:
                    continue
                if not isinstance(index, SimulatedTensor) and index.dim() > 0:
                    self._wait(f"{func} with an index of the CPU")
                if index.dtype in (torch.bool, torch.uint8):
                    self._wait(f"{func} with a boolean index")
        elif func in _READ and ours:
            self._wait(func)

    def _wait(self, what: Any) -> None:
        frame = sys._getframe()
        while frame.f_back is not None and "/forkleft/" not in frame.f_code.co_filename:
            frame = frame.f_back
        self.waits.append(f"{what} ({frame.f_code.co_filename.rpartition('/forkleft/')[2]}:{frame.f_lineno})")

    def _make(self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
        if device is None or torch.device(device).type != "sim":
            return self._tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)
        return self._tensor(data, dtype=dtype).to(SIM).requires_grad_(requires_grad)

    def _list(self, tensor: SimulatedTensor) -> Any:
        self._wait("tolist")
        return tensor.held.tolist()

    def _tensors(self, index: Any) -> Any:
        """An index in which lists are tensors of the CPU."""
        parts = index if isinstance(index, tuple) else (index,)
        lists = (list, range)
        made = tuple(self._tensor(part, dtype=torch.long) if isinstance(part, lists) else part for part in parts)
        return made if isinstance(index, tuple) else made[0]


def _leaves(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _leaves(value)
        else:
            yield value


def _each(change: Callable[[Any], Any], value: Any) -> Any:
    """PyTorch's own `tree_map` does the same for all kinds of containers, and would take most of the time."""
    if isinstance(value, (list, tuple)):
        return type(value)([_each(change, one) for one in value])
    return change(value)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, SimulatedTensor) else value


def _on_device(value: Any) -> Any:
    return SimulatedTensor(value) if type(value) is torch.Tensor else value


@cache
def _aliases(func: Any) -> bool:
    """Whether a result is an argument, or a view of one."""
    return any(returned.alias_info is not None for returned in func._schema.returns)
