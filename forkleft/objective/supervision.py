"""Supervision: how each question is taught.

A `Lesson` is a question with its route and all its random draws, fixed before an update begins.

Besides the routes of the paper there are the objectives of its shared subset, which treat all questions alike: `opd`
(KL on the student's own prefixes), `sft` (cross-entropy on the reference), `sft+opd` (their sum). A fourth, `mix`, puts
the mixture of both targets (paper eq. `mixgradient`) under the reference's prefixes.

Shapes: S selected positions, E the width of the teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from forkleft.errors import ForkLeftError, check_choice
from forkleft.objective.positions import check_rho, select_positions
from forkleft.objective.readouts import Geometry, ReadAttention, View, check_reading
from forkleft.objective.routes import Route, route_of
from forkleft.prompts import Reading
from forkleft.teacher.local import Hidden

Supervision = Literal["routed", "opd", "sft", "sft+opd", "mix"]
# The terms of a content loss: cross-entropy on the student's own tokens, KL to the teacher on the student's
# prefixes, cross-entropy on the reference, or the mixture on the reference.
Term = Literal["own", "teacher", "reference", "mixture"]

_ROUTE_TERMS: dict[Route, tuple[Term, ...]] = {
    Route.CE: ("own",),
    Route.LEFTOPD: ("teacher",),
    Route.GOLD: ("reference",),
    Route.EXCLUDE: (),
}
_SUBSET_TERMS: dict[Supervision, tuple[Term, ...]] = {
    "opd": ("teacher",),
    "sft": ("reference",),
    "sft+opd": ("reference", "teacher"),
    "mix": ("mixture",),
}
_REFERENCE_TERMS = {"reference", "mixture"}


@dataclass(frozen=True)
class ObjectiveSettings:
    """The constants of the method, and the variants that the paper compares.

    budget: the response budget, which bounds masks and canvases. view: how the student is read against the teacher on
    its own response; `target_masked` is the paper's B view and changes only this. geometry: of both views;
    attention: of the prefix readout (`objective/readouts.py`). merge_stops: count the stop ids as one event in the KL,
    for models with different EOS tokens. alpha: the teacher's weight in `mix`.
    """

    budget: int
    rho: float = 0.25
    mu: float = 0.1
    delta: float = 0.1
    rank_weight: float = 0.1
    supervision: Supervision = "routed"
    view: View = "prefix"
    geometry: Geometry = "truncated"
    attention: ReadAttention = "native"
    merge_stops: bool = False
    alpha: float = 0.5

    def __post_init__(self) -> None:
        check_rho(self.rho)
        if self.budget < 1:
            raise ForkLeftError(f"budget must be at least 1 token, found {self.budget}")
        check_choice("supervision", self.supervision, get_args(Supervision))
        check_choice("view", self.view, get_args(View))
        check_reading(self.geometry, self.attention)
        if not 0 <= self.alpha <= 1:
            raise ForkLeftError(f"alpha is the teacher's weight in mix: expected 0 to 1, found {self.alpha}")
        for name in ("mu", "delta", "rank_weight"):
            if not getattr(self, name) >= 0:
                raise ForkLeftError(f"{name} must not be negative, found {getattr(self, name)}")


@dataclass(frozen=True, eq=False)
class Lesson:
    """A question, what was written and judged, and all its random draws: everything that is fixed in an update.

    prompt, response: P and c as ids of the student. reference: g as ids, with a stop id at its end if that fitted.
    text: the response as text, if it is known. judged: False if the verifier had no verdict on one of the two answers,
    which then counts as wrong. selected, reference_selected: S_c and S_g. teacher_hidden_SE: the teacher's hidden
    states at `taught`, once it was asked, or a call that waits for them.
    """

    id: str
    prompt: Sequence[int]
    response: Sequence[int]
    reference: Sequence[int] | None
    text: str | None
    judged: bool
    student_right: bool
    teacher_right: bool
    route: Route
    retained: bool
    terms: tuple[Term, ...]
    selected: list[int]
    reference_selected: list[int]
    teacher_hidden_SE: Hidden | None = None

    @property
    def name(self) -> str:
        """Question and route, for errors."""
        return f"{self.id} ({self.route})"

    @property
    def reading(self) -> Reading:
        """Where the student is read on its own response."""
        return Reading(self.name, self.prompt, self.response, self.selected)

    @property
    def reference_reading(self) -> Reading | None:
        """Where the student is read on the reference; None if the lesson does not need that."""
        if self.reference is None or not _REFERENCE_TERMS & set(self.terms):
            return None
        return Reading(f"{self.name}, reference", self.prompt, self.reference, self.reference_selected)

    def reference_is_cut(self, stop_ids: Sequence[int]) -> bool:
        """Whether there is a reference that does not end with a stop id, because it was too long."""
        return bool(self.reference and self.reference[-1] not in stop_ids)

    def awaited_hidden(self) -> torch.Tensor | None:
        """The teacher's hidden states, once they are here; None if it was not asked."""
        hidden_SE = self.teacher_hidden_SE
        return hidden_SE() if callable(hidden_SE) else hidden_SE

    @property
    def taught(self) -> tuple[Sequence[int], list[int]] | None:
        """The continuation, and the positions in it, where t_i is needed; None if no teacher is needed."""
        if "teacher" in self.terms and self.selected:
            return self.response, self.selected
        if "mixture" in self.terms and self.reference is not None and self.reference_selected:
            return self.reference, self.reference_selected
        return None


def terms_of(route: Route, supervision: Supervision) -> tuple[Term, ...]:
    """The terms of a question's content loss; a reference that is missing may take some away."""
    return _ROUTE_TERMS[route] if supervision == "routed" else _SUBSET_TERMS[supervision]


def plan(
    id: str,
    prompt: Sequence[int],
    response: Sequence[int],
    settings: ObjectiveSettings,
    stop_ids: Sequence[int],
    *,
    student_right: bool,
    teacher_right: bool,
    reference: Sequence[int] | None = None,
    text: str | None = None,
    judged: bool = True,
    seed: int,
    update: int,
) -> Lesson:
    """Route a question and draw its positions (paper eq. `fork` and `position-sampling`).

    Raises ForkLeftError if a stop id is before the end of response or reference, or if the objective needs a
    reference that is missing.
    """
    route = route_of(student_right, teacher_right)
    routed = settings.supervision == "routed"
    terms = terms_of(route, settings.supervision)
    if reference is None and _REFERENCE_TERMS & set(terms):
        if not routed:
            raise ForkLeftError(
                f"question {id} ({route}): {settings.supervision} needs a reference, found none; "
                "give a solution, or the teacher's answer in its place"
            )
        terms = ()

    def draw(ids: Sequence[int], stream: str) -> list[int]:
        early = [k for k, i in enumerate(ids[:-1]) if i in stop_ids]
        if early:
            raise ForkLeftError(
                f"question {id} ({route}): the {stream} has {len(ids)} tokens, but a stop id already at "
                f"position {early[0]}; cut it there"
            )
        ends = bool(ids) and ids[-1] in stop_ids
        return select_positions(
            len(ids), ends_with_eos=ends, rho=settings.rho, seed=seed, update=update, question=id, stream=stream
        )

    retained = not routed or route is not Route.EXCLUDE
    reads_reference = reference is not None and bool(_REFERENCE_TERMS & set(terms))
    return Lesson(
        id=id,
        prompt=prompt,
        response=response,
        reference=reference,
        text=text,
        judged=judged,
        student_right=student_right,
        teacher_right=teacher_right,
        route=route,
        retained=retained,
        terms=terms,
        selected=draw(response, "response") if retained else [],
        reference_selected=draw(reference, "reference") if reads_reference and reference is not None else [],
    )
