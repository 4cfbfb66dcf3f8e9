"""One update: the loss L(θ) of a batch of lessons, and what happened to each (paper alg. `method`).

    lessons = [plan(id, prompt, response, settings, stop_ids, ..., seed=seed, update=update) for each question]
    # if a lesson is `taught`, ask the teacher: replace(lesson, teacher_hidden_SE=its hidden states there)
    loss, outcomes = update_loss(student, lessons, settings, batch_size=len(lessons), teacher_weight_VE=its head)

Responses, verdicts, positions and teacher targets are fixed. The gradient passes only through the student's readouts.

Shapes: S rows that are read, of which the first K have a teacher; Q retained questions, V words, E the width of the
teacher.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from forkleft.errors import ForkLeftError
from forkleft.objective.forks import WatchFork, fork_of
from forkleft.objective.head import HeadRows, TeacherRows, head_rows
from forkleft.objective.losses import contrast, mixture, qualifying_pairs, ranking_loss, selected_mean
from forkleft.objective.readouts import View, all_mask_hidden, prefix_hidden, target_masked_hidden
from forkleft.objective.routes import Route
from forkleft.objective.supervision import Lesson, ObjectiveSettings, Term
from forkleft.prompts import Reading
from forkleft.students.student import Student


@dataclass(frozen=True)
class Outcome:
    """What happened to one question: floats, and tuples with one entry for each selected position.

    judged: there was a verdict on both answers. tokens: of the response; stopped: it ended with a stop id; empty: it
    stopped before it said anything; reference_cut: the reference does not end with a stop id, because it was too long.
    content, rank: the losses, before the division by the batch; pairs: how many pairs qualified. contrast: D;
    confidence: ℓ; mask_entropy and left_entropy: of the all-mask and the prefix readout; nll: −log s_i(c_i), even if it
    is not the loss. kl, teacher_entropy: where a teacher was asked, in `mix` at the reference's positions; eos_kl: the
    kl at EOS. For an excluded question, the losses and all fields after them stay empty.
    """

    id: str
    route: Route
    retained: bool
    judged: bool
    student_right: bool
    teacher_right: bool
    tokens: int
    stopped: bool
    empty: bool
    reference_cut: bool
    content: float = 0.0
    rank: float = 0.0
    pairs: int = 0
    positions: tuple[int, ...] = ()
    contrast: tuple[float, ...] = ()
    confidence: tuple[float, ...] = ()
    mask_entropy: tuple[float, ...] = ()
    left_entropy: tuple[float, ...] = ()
    nll: tuple[float, ...] = ()
    kl: tuple[float, ...] = ()
    teacher_entropy: tuple[float, ...] = ()
    eos_kl: float | None = None
    reference_positions: tuple[int, ...] = ()
    reference_nll: tuple[float, ...] = ()


def update_loss(
    student: Student,
    lessons: Sequence[Lesson],
    settings: ObjectiveSettings,
    *,
    batch_size: int,
    teacher_weight_VE: torch.Tensor | None = None,
    watch: WatchFork | None = None,
) -> tuple[torch.Tensor, list[Outcome]]:
    """L(θ) = (1/|B|) Σ over retained questions of [content + λ·rank] (paper eq. `total`); the outcome of each lesson.

    batch_size: |B|, the questions of the whole update, over all processes and accumulation steps, excluded ones
    included. teacher_weight_VE: the teacher's output head, for lessons that are taught. watch: called with the fork of
    this batch, if a teacher was asked on a student's response.

    If no question is retained here, the loss is 0 with a gradient of zeros, so that this process still takes part with
    the others. The caller, who knows all processes, decides whether there is an update at all. With block attention the
    number of forwards does not depend on the lessons.

    Raises ForkLeftError naming question and route for lengths that disagree, ids outside 𝒱, a teacher that gives no
    distribution, and a loss that is not finite.
    """
    if batch_size < len(lessons):
        raise ForkLeftError(f"the batch has {len(lessons)} lessons here, but batch_size says {batch_size} in all")
    kept = [lesson for lesson in lessons if lesson.retained]
    parts = [_parts(lesson, settings) for lesson in kept]
    unique = dict.fromkeys(passage for part in parts for passage in part.values())
    passages = sorted(unique, key=lambda passage: passage.taught is None)
    hidden_SD = _hidden(student, passages, settings)
    mask_entropy_S = _mask_entropy(student, [part["left"] for part in parts], settings)
    # Only now: a teacher on a server reads while the student does.
    hidden = {lesson: hidden_SE for lesson in kept if (hidden_SE := _teacher_hidden(lesson)) is not None}
    taught = [(p.reading, hidden[p.taught]) for p in passages if p.taught in hidden]
    teacher = _teacher_rows(taught, teacher_weight_VE)
    rows = _head_rows(student, passages, hidden_SD, settings, teacher)
    places = dict(zip(passages, _slices([len(passage.targets) for passage in passages]), strict=True))
    mask_places = list(_slices([len(lesson.selected) for lesson in kept]))

    # The sum over no rows connects a batch without rows to the model.
    contents, ranks, none = [], [], rows.nll_S[:0].sum()
    for lesson, part, mask_place in zip(kept, parts, mask_places, strict=True):
        found = {name: _at(rows, places[passage]) for name, passage in part.items()}
        contrast_S = contrast(mask_entropy_S[mask_place], found["left"].entropy_S)
        pairs_SS = qualifying_pairs(contrast_S, settings.mu)
        contents.append(sum((selected_mean(_losses(term, found, settings)) for term in lesson.terms), start=none))
        ranks.append(ranking_loss(found["left"].confidence_S, pairs_SS, settings.delta))
    content_Q, rank_Q = (torch.stack(losses) if losses else rows.nll_S[:0] for losses in (contents, ranks))
    loss_Q = content_Q + settings.rank_weight * rank_Q

    # Recorded numbers leave the device all at once: for them the host waits once, whatever the number of questions.
    *columns, mask_entropy_S, contents_Q, ranks_Q, losses_Q = _on_cpu(
        [*_columns(rows), mask_entropy_S, content_Q, rank_Q, loss_Q]
    )
    rows = HeadRows(*columns)
    _check_teacher([reading for reading, _ in taught], rows)
    _check_finite(kept, losses_Q.tolist())
    if watch is not None and settings.supervision != "mix" and teacher is not None:
        readings = [reading for reading, _ in taught]
        watch(fork_of(student, readings, rows.entropy_S, hidden_SD, teacher.hidden_KE, teacher.weight_VE))
    numbers = zip(kept, parts, mask_places, contents_Q.tolist(), ranks_Q.tolist(), strict=True)
    outcomes = {lesson: _unread(lesson, student.vocabulary.stop_ids) for lesson in lessons}
    for lesson, part, mask_place, content, rank in numbers:
        found = {name: _at(rows, places[passage]) for name, passage in part.items()}
        read = _read(lesson, found, mask_entropy_S[mask_place], settings)
        outcomes[lesson] = replace(outcomes[lesson], content=content, rank=rank, **read)
    return none + loss_Q.sum() / batch_size, list(outcomes.values())


@dataclass(frozen=True, eq=False)
class _Passage:
    """Rows that are read together: one continuation of a lesson under one view.

    taught: the lesson whose teacher is asked about them, if one is.
    """

    reading: Reading
    view: View
    taught: Lesson | None = None

    @property
    def targets(self) -> list[int]:
        return [self.reading.response[i] for i in self.reading.positions]


def _parts(lesson: Lesson, settings: ObjectiveSettings) -> dict[str, _Passage]:
    """What is read for a lesson: `left` always, for the ranking; `taught` and `reference` where the terms need it."""
    own, reference = lesson.reading, lesson.reference_reading
    parts = {"left": _Passage(own, "prefix")}
    if "teacher" in lesson.terms:
        parts["taught"] = _Passage(own, settings.view, lesson)
        if settings.view == "prefix":
            parts["left"] = parts["taught"]
    if reference is not None:
        parts["reference"] = _Passage(reference, "prefix")
        if "mixture" in lesson.terms:
            parts["taught"] = parts["reference"] = _Passage(reference, "prefix", lesson)
    return parts


def _teacher_hidden(lesson: Lesson) -> torch.Tensor | None:
    """The teacher's hidden states for a lesson, which are waited for; None if no teacher is needed."""
    hidden_SE = lesson.awaited_hidden()
    expected = 0 if lesson.taught is None else len(lesson.taught[1])
    rows = 0 if hidden_SE is None else len(hidden_SE)
    if rows != expected:
        raise ForkLeftError(
            f"question {lesson.name}: {expected} positions are taught, but there are hidden states of the teacher "
            f"for {rows}; ask the teacher at lesson.taught"
        )
    return hidden_SE


def _teacher_rows(
    taught: Sequence[tuple[Reading, torch.Tensor]], teacher_weight_VE: torch.Tensor | None
) -> TeacherRows | None:
    """The teacher's hidden states of all passages that it is asked about, and its head; None if there are none."""
    width = None if teacher_weight_VE is None else teacher_weight_VE.shape[1]
    for reading, hidden_SE in taught:
        if width != hidden_SE.shape[1]:
            raise ForkLeftError(
                f"question {reading.id}: the teacher's hidden states have width {hidden_SE.shape[1]}, its output head "
                f"has {width}; pass the head of the same model"
            )
    if not taught or teacher_weight_VE is None:
        return None
    return TeacherRows(
        torch.cat([hidden_SE for _, hidden_SE in taught]).to(teacher_weight_VE.device), teacher_weight_VE
    )


def _losses(term: Term, found: dict[str, HeadRows], settings: ObjectiveSettings) -> torch.Tensor:
    """The loss of one term at each of its selected positions (the cases of paper eq. `branchloss`)."""
    if term == "own":
        return found["left"].nll_S
    if term == "teacher":
        return found["taught"].kl_K
    if term == "reference":
        return found["reference"].nll_S
    return mixture(found["taught"].kl_K, found["taught"].nll_S, settings.alpha)


def _hidden(student: Student, passages: list[_Passage], settings: ObjectiveSettings) -> torch.Tensor:
    """`hidden_SD` of all rows in the order of the passages: one forward for each view that the settings need."""
    hidden: dict[_Passage, torch.Tensor] = {}
    ties = []
    for view in dict.fromkeys(("prefix", settings.view)):
        chosen = [passage for passage in passages if passage.view == view]
        readings = [passage.reading for passage in chosen]
        budget, geometry = settings.budget, settings.geometry
        if view == "prefix":
            hidden_SD = prefix_hidden(student, readings, budget=budget, geometry=geometry, attention=settings.attention)
        else:
            hidden_SD = target_masked_hidden(student, readings, budget=budget, geometry=geometry)
        # No rows: they connect the loss to this forward even if no passage is read in it.
        ties.append(hidden_SD[:0])
        hidden |= zip(chosen, hidden_SD.split([len(reading.positions) for reading in readings]), strict=True)
    return torch.cat([*ties, *(hidden[passage] for passage in passages)])


def _head_rows(
    student: Student,
    passages: list[_Passage],
    hidden_SD: torch.Tensor,
    settings: ObjectiveSettings,
    teacher: TeacherRows | None,
) -> HeadRows:
    """The head once, on all rows."""
    vocabulary = student.vocabulary
    return head_rows(
        hidden_SD,
        student.head_weight,
        torch.tensor([target for passage in passages for target in passage.targets], dtype=torch.long),
        student.excluded_V,
        teacher=teacher,
        merged_ids=tuple(vocabulary.valid.intersection(vocabulary.stop_ids)) if settings.merge_stops else (),
    )


def _check_teacher(taught: list[Reading], rows: HeadRows) -> None:
    broken = [k for k, entropy in enumerate(rows.teacher_entropy_K.tolist()) if not math.isfinite(entropy)]
    if broken:
        places = [(reading.id, i) for reading in taught for i in reading.positions]
        name, position = places[broken[0]]
        raise ForkLeftError(
            f"question {name}: the teacher's distribution at position {position} does not sum to one (it is not "
            "finite); are its weights damaged, or its precision too low?"
        )


def _check_finite(lessons: list[Lesson], losses: list[float]) -> None:
    for lesson, loss in zip(lessons, losses, strict=True):
        if not math.isfinite(loss):
            raise ForkLeftError(
                f"question {lesson.name}: the loss is {loss}; are the weights damaged, or the precision too low?"
            )


@torch.no_grad()
def _mask_entropy(student: Student, passages: list[_Passage], settings: ObjectiveSettings) -> torch.Tensor:
    """H_mask at the selected positions of the responses (paper eq. `coupling`)."""
    hidden_SD = all_mask_hidden(student, [passage.reading for passage in passages], budget=settings.budget)
    targets = torch.tensor([target for passage in passages for target in passage.targets], dtype=torch.long)
    return head_rows(hidden_SD, student.head_weight, targets, student.excluded_V).entropy_S


def _slices(sizes: Sequence[int]) -> Iterator[slice]:
    end = 0
    for size in sizes:
        end += size
        yield slice(end - size, end)


def _at(rows: HeadRows, place: slice) -> HeadRows:
    """Some of the rows. Rows with a teacher come first, so the same slice fits the teacher's numbers, or is empty."""
    return HeadRows(*(column[place] for column in _columns(rows)))


def _on_cpu(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of vectors of one precision, in one transfer."""
    together = torch.cat([vector.detach() for vector in vectors]).cpu()
    return list(together.split([len(vector) for vector in vectors]))


def _columns(rows: HeadRows) -> list[torch.Tensor]:
    return [getattr(rows, field.name) for field in fields(rows)]


def _unread(lesson: Lesson, stop_ids: Sequence[int]) -> Outcome:
    """The outcome of a question without readouts, which is all there is for an excluded one."""
    stopped = bool(lesson.response) and lesson.response[-1] in stop_ids
    return Outcome(
        id=lesson.id,
        route=lesson.route,
        retained=lesson.retained,
        judged=lesson.judged,
        student_right=lesson.student_right,
        teacher_right=lesson.teacher_right,
        tokens=len(lesson.response),
        stopped=stopped,
        empty=stopped and lesson.text is not None and not lesson.text.strip(),
        reference_cut=lesson.reference_is_cut(stop_ids),
    )


def _read(
    lesson: Lesson, found: dict[str, HeadRows], mask_entropy_S: torch.Tensor, settings: ObjectiveSettings
) -> dict[str, Any]:
    """The numbers of an `Outcome` that come from readouts, except the losses."""
    left, taught, reference = found["left"], found.get("taught"), found.get("reference")
    contrast_S = contrast(mask_entropy_S, left.entropy_S)
    kl = () if taught is None else tuple(taught.kl_K.tolist())
    at_eos = False
    if lesson.taught is not None:
        continuation, positions = lesson.taught
        # The last position is selected only if it is an EOS.
        at_eos = positions[-1] == len(continuation) - 1
    return {
        "pairs": int(qualifying_pairs(contrast_S, settings.mu).sum()),
        "positions": tuple(lesson.selected),
        "contrast": tuple(contrast_S.tolist()),
        "confidence": tuple(left.confidence_S.tolist()),
        "mask_entropy": tuple(mask_entropy_S.tolist()),
        "left_entropy": tuple(left.entropy_S.tolist()),
        "nll": tuple(left.nll_S.tolist()),
        "kl": kl,
        "teacher_entropy": () if taught is None else tuple(taught.teacher_entropy_K.tolist()),
        "eos_kl": kl[-1] if at_eos else None,
        "reference_positions": tuple(lesson.reference_selected),
        "reference_nll": () if reference is None else tuple(reference.nll_S.tolist()),
    }
