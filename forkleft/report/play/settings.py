"""What the page asks for: a question, and how to write the answer to it."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.rollout.decoding import check_decoding
from forkleft.rollout.orders import check_order, check_writing

# Larger numbers are not exact in a browser.
_LARGEST_SEED = 2**53 - 1


@dataclass(frozen=True)
class Settings:
    """A question and how it is answered.

    decoding, order, passes, threshold: as `decoding_of` takes them; None is the decoding's own. expected: the right
    answer; empty if nobody says. verifier: the name of the one that compares.
    """

    question: str
    max_new_tokens: int
    verifier: str
    decoding: str = "static"
    order: str | None = None
    passes: int | None = None
    threshold: float | None = None
    temperature: float = 0.0
    seed: int = 0
    expected: str = ""


def read_settings(said: Any, verifiers: Sequence[str]) -> Settings:
    """The settings in a request. verifiers: the names that it may choose from.

    Raises ForkLeftError for anything that is missing, unknown, of another kind, or impossible.
    """
    if not isinstance(said, Mapping):
        raise ForkLeftError(f"expected the settings as a JSON object, found {said!r:.40}")
    known = {field.name: field for field in fields(Settings)}
    if unknown := sorted(said.keys() - known.keys()):
        raise ForkLeftError(f"unknown setting {unknown[0]!r:.40}; there are {', '.join(known)}")
    if missing := [name for name, field in known.items() if field.default is MISSING and name not in said]:
        raise ForkLeftError(f"the settings lack {', '.join(missing)}")
    for name in ("question", "verifier", "expected", "decoding"):
        if not isinstance(said.get(name, ""), str):
            raise ForkLeftError(f"{name} must be a text, found {said[name]!r:.40}")
    for name in ("threshold", "temperature"):
        value = said.get(name, 0.0)
        optional = name == "threshold" and value is None
        if not optional and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ForkLeftError(f"{name} must be a number, found {value!r:.40}")
    settings = Settings(**said)
    if not settings.question.strip():
        raise ForkLeftError("the question is empty; type one")
    check_count("max_new_tokens", settings.max_new_tokens)
    check_choice("verifier", settings.verifier, verifiers)
    check_decoding(settings.decoding)
    if settings.order is not None:
        check_order(settings.order)
    check_writing(passes=settings.passes, threshold=settings.threshold, temperature=settings.temperature)
    seed = settings.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= _LARGEST_SEED:
        raise ForkLeftError(f"seed must be a whole number from 0 to {_LARGEST_SEED}, found {seed!r:.40}")
    return settings
