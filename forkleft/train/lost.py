"""What a process says when another process of its run is gone, instead of a page of traceback."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed

from forkleft.errors import ForkLeftError
from forkleft.train import checkpoints

# Gloo raises a bare error, known only by its text.
_GLOO = re.compile(r"gloo.*(connection|read error|write error|timed out|peer)", re.IGNORECASE | re.DOTALL)


@contextmanager
def named_lost_processes(output: Path) -> Iterator[None]:
    """Turn the error of a collective that has lost a process into a ForkLeftError that says how the run goes on.

    output: the folder of the run. On NCCL the watchdog ends a process before Python sees an error; torchrun says so.
    """
    try:
        yield
    except RuntimeError as error:
        if not is_lost(error):
            raise
        found = reversed(checkpoints.steps(output).values())
        last = next((folder.name for folder in found if checkpoints.fault(folder, digests=False) is None), None)
        again = (
            f"resume from {last} (--resume_from_checkpoint true), on as many processes as before, or on others that "
            "divide the questions of an update"
            if last
            else "start again; there is no checkpoint yet"
        )
        raise ForkLeftError(
            f"another process of this run has ended, or did not answer in time ({str(error).splitlines()[0]:.200}). "
            f"Its own log says why. Then {again}"
        ) from error


def is_lost(error: BaseException) -> bool:
    """Whether an error is that of a collective whose other side is gone, or is silent for too long."""
    return isinstance(error, torch.distributed.DistError) or bool(_GLOO.search(str(error)))
