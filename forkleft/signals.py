"""SIGINT (Ctrl-C) and SIGTERM (a scheduler, `kill`): the first asks to end, and a second ends the process at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What shells add to the number of a signal for the exit code of what it ended.
_ENDED = 128


class EndedBySignal(KeyboardInterrupt):
    """The process was asked to end, and has no more to do than to leave."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def leave(number: int) -> NoReturn:
    """Raise EndedBySignal, for `at_first_signal`."""
    raise EndedBySignal(number)


def exit_code(number: int) -> int:
    """The exit code of a process that a signal has ended: 130 for SIGINT, 143 for SIGTERM."""
    return _ENDED + number


@contextmanager
def at_first_signal(act: Callable[[int], None]) -> Iterator[None]:
    """Within the block, call `act` with the number of the first SIGINT or SIGTERM. A second ends the process at once.

    A signal that the process was started to ignore, as by `nohup`, stays ignored. In another thread than the main one,
    which gets no signals, the block only runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            # Nothing is cleaned up: all files are whole or known not to be.
            os._exit(exit_code(number))
        asked = True
        act(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # None: what handles it is not Python's, and could not be put back.
    heard = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in heard:
            signal.signal(number, before[number])
