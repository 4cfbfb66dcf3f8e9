"""Who writes a student's responses in training: `generate`, or an engine in its place."""

from collections.abc import Sequence
from typing import Protocol

from forkleft.rollout.orders import Order
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.student import Student


class Writer(Protocol):
    """Something that can be called like `generate`.

    It gets the student as it is at this update, so that an engine with its own copy of the weights can update them. It
    returns one `Trajectory` for each prompt, in their order. Tokens are ids of the student, cut after the first stop
    id. The method needs them committed in the given order. For a run that resumes byte for byte they must depend only
    on weights, prompt, `seed` and question id. With several processes, each calls its own writer at the same time.
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
        """The responses to the prompts. ids: of their questions."""
