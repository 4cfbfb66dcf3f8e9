"""Checks of values in `config.json`."""

from collections.abc import Mapping
from typing import Any

from forkleft.errors import ForkLeftError


def expect(fields: Mapping[str, Any], name: str, values: tuple[Any, ...], *, required: bool) -> None:
    """Raise ForkLeftError if the value of a field is not one of those that ForkLeft can compute."""
    if (name in fields or required) and (found := fields.get(name)) not in values:
        expected = " or ".join(repr(value) for value in values)
        raise ForkLeftError(
            f"config.json has {name} = {found!r}, which ForkLeft does not compute (expected {expected}); the "
            "checkpoint would be read wrongly, so it is refused"
        )


def is_number(value: Any) -> bool:
    """Whether a value is a number. True and False are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def senseless(name: str, found: Any, expected: str) -> ForkLeftError:
    """The error for a value that makes no sense."""
    return ForkLeftError(f"config.json has {name} = {found!r}, expected {expected}; is the file damaged?")
