"""Who writes a student's responses in training: `generate`, or an engine in its place."""

from collections.abc import Sequence
from typing import Protocol

from forkleft.rollout.orders import Order
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.student import Student


class Writer(Protocol):
    """Something that is called as `generate` is.

    It gets the student as it is at this update, so that an engine with weights of its own can take them over, and
    returns one `Trajectory` for each prompt, in their order. Tokens are ids of the student, cut behind the first stop
    id. For the method they must be committed in the given order, and for a run that resumes byte for byte depend on
    weights, prompt, `seed` and question id alone. With several processes each calls its own writer at the same time.
    """

    def __call__(
        self,
        student: Student,
        prompts: Sequence[Sequence[int]],
        *,
        order: Order,
        passes: int | None,
        max_new_tokens: int,
        seed: int,
        ids: Sequence[str],
        batch_size: int,
    ) -> list[Trajectory]:
        """The responses to the prompts, whose questions have these ids."""
