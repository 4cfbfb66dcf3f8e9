"""Decodings by name: how a student writes outside of training.

    decode(student, prompts, decoding_of(student.family, "native"), max_new_tokens=2048)

`static` is the paper's confident-first rule (eq. `inference`) with a fixed number of positions a pass: one, unless
`passes` is given. `native` is what the family's authors show (`students/families.py`, `docs/models.md`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forkleft.errors import ForkLeftError, check_choice
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.families import KNOWN_FAMILIES, Decoding, with_block_size
from forkleft.students.family import Family
from forkleft.students.student import Student

DECODINGS = ("static", "native")


def check_decoding(name: str, option: str = "decoding") -> None:
    """Raise ForkLeftError, naming the option, if there is no decoding of that name."""
    check_choice(option, name, DECODINGS)


def decoding_of(
    family: Family,
    name: str,
    *,
    order: str | None = None,
    passes: int | None = None,
    threshold: float | None = None,
) -> Decoding:
    """The decoding of this name, with the user's order, passes and threshold in place of its own.

    Raises ForkLeftError for an unknown name, and for the native decoding of a family that is not known by name.
    """
    check_decoding(name)
    found = Decoding()
    if name == "native":
        known = KNOWN_FAMILIES.get(family.name or "")
        if known is None:
            raise ForkLeftError(
                f"the native decoding is known of the families {', '.join(KNOWN_FAMILIES)}, and this student is of "
                "none of them; say its family, or decode it as static, with passes and threshold of your own"
            )
        found = known.decoding
        # A student that was loaded with another window size is written in those windows.
        if family.block_size != known.family.block_size:
            found = replace(found, whole_budget=False)
    said: dict[str, Any] = {"order": order, "passes": passes, "threshold": threshold}
    return replace(found, **{name: value for name, value in said.items() if value is not None})


def decode(
    student: Student, prompts: Sequence[Sequence[int]], decoding: Decoding, *, max_new_tokens: int, **settings: Any
) -> list[Trajectory]:
    """`generate` with the options of a decoding; settings are the other options of `generate`."""
    if decoding.whole_budget:
        family = with_block_size(student.family, max_new_tokens)
        student = student.but(family=family)
    return generate(
        student,
        prompts,
        max_new_tokens=max_new_tokens,
        order=decoding.order,
        passes=decoding.passes,
        threshold=decoding.threshold,
        **settings,
    )
