"""Decodings by name: how a student writes outside of training.

    write(student, prompts, decoding_of(student.family, "native"), max_new_tokens=2048)

`static` is the paper's confident-first rule (eq. `inference`) with a fixed number of positions a pass: one, unless a
number of passes is said. `native` is what the family's authors show (`students/families.py`, `docs/models.md`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from forkleft.errors import ForkLeftError, check_choice
from forkleft.rollout.sampler import generate
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.families import RECORDS, Decoding, with_block_size
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
    """The decoding of a name, with what else the user says in place of its own.

    Raises ForkLeftError for an unknown name, and for the native decoding of a family that has no record.
    """
    check_decoding(name)
    found = Decoding()
    if name == "native":
        record = RECORDS.get(family.name or "")
        if record is None:
            raise ForkLeftError(
                f"the native decoding is known of the families {', '.join(RECORDS)}, and this student is of none of "
                "them; say its family, or decode it as static, with passes and threshold of your own"
            )
        found = record.decoding
        # Whoever loaded it with windows of another size wants those.
        if family.block_size != record.family.block_size:
            found = replace(found, whole_budget=False)
    said: dict[str, Any] = {"order": order, "passes": passes, "threshold": threshold}
    return replace(found, **{name: value for name, value in said.items() if value is not None})


def write(
    student: Student, prompts: Sequence[Sequence[int]], decoding: Decoding, *, max_new_tokens: int, **settings: Any
) -> list[Trajectory]:
    """`generate` as a decoding says; settings are the others of `generate`."""
    if decoding.whole_budget:
        family = with_block_size(student.family, max_new_tokens)
        student = Student(student.model, family, student.vocabulary, student.tokenizer, student.origin)
    return generate(
        student,
        prompts,
        max_new_tokens=max_new_tokens,
        order=decoding.order,
        passes=decoding.passes,
        threshold=decoding.threshold,
        **settings,
    )
