"""`torch.compile` for a student: each decoder layer, up to our attention and behind it.

Norms, projections, rotary embedding and feed-forward network of a layer become a few kernels; attention, whose layout
changes from forward to forward, stays as it is. The layers stay the stock ones, in place: names of weights, adapters
and checkpoints do not change. All layers share what was compiled, and lengths are symbols, so that nothing is compiled
again for another batch.
"""

import os
import shutil
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.students.student import Student

_COMPILERS = ("g++", "c++", "clang++")


def compile_layers(student: Student, *, backend: str = "inductor", mode: str | None = None) -> None:
    """Let the decoder layers be compiled when they are first called, for readouts and for rollouts.

    backend, mode: as for `torch.compile`. Raises ForkLeftError if the student is on a CPU and there is no C++ compiler.
    """
    if student.device.type == "cpu" and backend == "inductor" and _compiler() is None:
        raise ForkLeftError(
            f"torch_compile needs a C++ compiler on a CPU, found none of {', '.join(_COMPILERS)}; install one, or "
            "leave torch_compile off"
        )
    layers: Any = student.model.base_model.layers
    for layer in layers:
        layer.compile(backend=backend, mode=mode, dynamic=True)


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))), None)
