"""How a run that is asked to end does so: after the update that it works on, with a checkpoint."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from signal import Signals

import torch
from accelerate import Accelerator

from forkleft.signals import at_first_signal


class StopRequest:
    """Whether SIGINT or SIGTERM has come while `heard`."""

    def __init__(self) -> None:
        self._number = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take note of a signal within the block, instead of ending there. A second one ends the process at once."""
        with at_first_signal(self._note):
            yield

    def agreed(self, accelerator: Accelerator) -> int:
        """The signal that this process or another of the run got, 0 if none did: the same number in all of them.

        All processes must call it at the same update, and stop there together: signals do not reach them together.
        """
        if accelerator.num_processes == 1:
            return self._number
        mine = torch.tensor([self._number], device=accelerator.device)
        return int(accelerator.gather(mine).max())

    def _note(self, number: int) -> None:
        self._number = number
        if int(os.environ.get("RANK", 0)) == 0:
            # Not `print`: the signal may have come in the middle of one.
            text = f"{Signals(number).name}: ends after this update, with a checkpoint; a second signal ends it at once"
            os.write(2, f"\nforkleft: {text}\n".encode())
