"""Errors for mistakes of the user, so that the command line can tell them from bugs of ours; and common checks."""

import difflib
from collections.abc import Iterable
from typing import Any


class ForkLeftError(ValueError):
    """Bad input. The message says what was expected, what was found, and what to do."""


class AutoregressiveError(ForkLeftError):
    """A diffusion model was expected, and an autoregressive one found."""


class DiffusionError(ForkLeftError):
    """An autoregressive model was expected, and a diffusion model found."""


class CannotSaveError(ForkLeftError):
    """A checkpoint, or the model, cannot be written."""


class NotFiniteError(ForkLeftError):
    """The gradient of an update is not finite, in all processes of a run alike."""


class ToldError(ForkLeftError):
    """A mistake that the main process has found, and tells, in the other processes of a run."""


class StoppedError(ForkLeftError):
    """A signal has ended a run after update `step`, of which there is a checkpoint unless it is 0.

    number: of the signal.
    """

    def __init__(self, text: str, *, step: int, number: int) -> None:
        super().__init__(text)
        self.step, self.number = step, number


def check_choice(name: str, value: Any, known: Iterable[str]) -> None:
    """Raise ForkLeftError, naming the option, if its value is not one of the known ones."""
    known = tuple(known)
    if value not in known:
        raise ForkLeftError(f"{name} must be one of {', '.join(known)}, found {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raise ForkLeftError, naming the option, if its value is not a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ForkLeftError(f"{name} must be a whole number of at least 1, found {value!r}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that an unknown one is most like, if one is near."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean NAME?` with the nearest of the known names; empty if none is near."""
    near = nearest(name, known)
    return "" if near is None else f"; did you mean {near}?"
