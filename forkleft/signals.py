"""SIGINT (Ctrl-C) and SIGTERM (a scheduler, `kill`): the first asks to end, and a second ends the process at once."""

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


class _Hearing:
    """Of a block of `at_first_signal`: whether a signal has come that may end what is under way; and what that is."""

    def __init__(self) -> None:
        self.number = 0
        self.may_end = False
        self.under_way = False


# The blocks that are open, the innermost last. Handlers of signals belong to the process, and so does this.
_HEARINGS: list[_Hearing] = []


@contextmanager
def at_first_signal(act: Callable[[int], object]) -> Iterator[None]:
    """Within the block, call `act` with the number of the first SIGINT or SIGTERM. A second ends the process at once.

    If `act` returns True, what is under way in `ended_by_signal` need not come to its end. A signal that the process
    was started to ignore, as by `nohup`, stays ignored. In another thread than the main one, which gets no signals, the
    block only runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    hearing = _Hearing()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    # None: what handles it is not Python's, and could not be put back.
    heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def hear(number: int, frame: FrameType | None) -> None:
        # From here on the system ends the process: Python would not hear a signal in a call that hangs. Nothing is
        # cleaned up then: all files are whole or known not to be.
        for other in heard:
            signal.signal(other, signal.SIG_DFL)
        hearing.number, hearing.may_end = number, act(number) is True
        if hearing.under_way:
            end_if_asked()

    _HEARINGS.append(hearing)
    for number in heard:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in heard.items():
            signal.signal(number, handler)
        _HEARINGS.remove(hearing)


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """A block that waits, or only measures: a signal ends it with EndedBySignal, if `act` of `at_first_signal` says so.

    One that has come before does not: what is nearly done may come to its end. `end_if_asked` looks for it.
    """
    if threading.current_thread() is not threading.main_thread() or not _HEARINGS:
        yield
        return
    hearing = _HEARINGS[-1]
    before, hearing.under_way = hearing.under_way, True
    try:
        yield
    finally:
        hearing.under_way = before


def end_if_asked() -> None:
    """Raise EndedBySignal if a signal has come, and what is under way may end."""
    if _HEARINGS and _HEARINGS[-1].may_end and threading.current_thread() is threading.main_thread():
        leave(_HEARINGS[-1].number)
