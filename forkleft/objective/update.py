"""One update: the loss L(θ) of a batch of lessons, and a record of it (paper alg. `method`).

    lessons = [plan(question, settings, stop_ids, seed=seed, update=update) for question in batch]
    # where a lesson is `taught`, ask the teacher: replace(lesson, teacher_hidden_SE=its hidden states there)
    loss, records = update_loss(student, lessons, settings, batch_size=len(batch), teacher_weight_VE=its head)

Responses, verdicts, positions and teacher targets are fixed; the gradient passes through the live student readouts.

Shapes: S rows that are read, V words, E the width of the teacher.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from forkleft.errors import ForkLeftError
from forkleft.objective.head import HeadRows, TeacherRows, head_rows
from forkleft.objective.lessons import Lesson, ObjectiveSettings, Term
from forkleft.objective.losses import contrast, mixture, qualifying_pairs, ranking_loss, selected_mean
from forkleft.objective.readouts import Reading, View, all_mask_hidden, prefix_hidden, target_masked_hidden
from forkleft.objective.routes import Route
from forkleft.students.student import Student


@dataclass(frozen=True)
class Record:
    """What happened to one question: floats and lists with one entry for each selected position.

    content, rank: its losses, before the division by the batch; pairs: how many pairs qualified. contrast: D;
    confidence: ℓ; mask_entropy and left_entropy: of the all-mask and the prefix readout; nll: −log s_i(c_i), also where
    it is no loss. kl, teacher_entropy: where a teacher was asked; eos_kl: of these, the one at EOS. All but the route
    stay empty for a question that was excluded.
    """

    id: str
    route: Route
    retained: bool
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
) -> tuple[torch.Tensor, list[Record]]:
    """L(θ) = (1/|B|) Σ over retained questions of [content + λ·rank] (paper eq. `total`), and a record of each lesson.

    batch_size: |B|, the questions of the whole update, over all processes and accumulation steps, excluded ones
    included. teacher_weight_VE: the teacher's output head, for lessons that are taught. If nothing is retained the loss
    is a 0 without gradient. Raises ForkLeftError naming question and route for lengths that disagree, ids outside 𝒱, a
    teacher that gives no distribution, and a loss that is not finite.
    """
    if batch_size < len(lessons):
        raise ForkLeftError(f"the batch has {len(lessons)} lessons here, but batch_size says {batch_size} in all")
    kept = [lesson for lesson in lessons if lesson.retained]
    parts = [_parts(lesson, settings) for lesson in kept]
    rows = _read(student, [passage for one in parts for passage in one.values()], settings, teacher_weight_VE)
    results = [{name: rows[passage] for name, passage in one.items()} for one in parts]
    mask_entropies = _mask_entropies(student, [one["left"].reading for one in parts], settings)

    losses, records = [], {}
    for lesson, found, mask_entropy_S in zip(kept, results, mask_entropies, strict=True):
        left = found["left"]
        contrast_S = contrast(mask_entropy_S, left.entropy_S)
        pairs_SS = qualifying_pairs(contrast_S, settings.mu)
        content = left.nll_S.new_zeros(())
        for term in lesson.terms:
            content = content + selected_mean(_term_losses(term, found, settings))
        rank = ranking_loss(left.confidence_S, pairs_SS, settings.delta)
        losses.append(content + settings.rank_weight * rank)
        records[id(lesson)] = _record(lesson, found, content, rank, int(pairs_SS.sum()), contrast_S, mask_entropy_S)
    for lesson, loss in zip(kept, losses, strict=True):
        if not loss.isfinite():
            raise ForkLeftError(
                f"question {lesson.name}: the loss is {loss.item()}; are the weights damaged, or the precision too low?"
            )
    total = torch.stack(losses).sum() / batch_size if losses else torch.zeros((), device=student.device)
    excluded = [Record(lesson.question.id, lesson.route, retained=False) for lesson in lessons]
    return total, [records.get(id(lesson), none) for lesson, none in zip(lessons, excluded, strict=True)]


@dataclass(frozen=True, eq=False)
class _Passage:
    """Rows that are read together: one continuation of a lesson under one view, with a teacher or without."""

    reading: Reading
    view: View
    teacher_hidden_SE: torch.Tensor | None = None

    @property
    def targets(self) -> list[int]:
        return [self.reading.response[i] for i in self.reading.positions]


def _parts(lesson: Lesson, settings: ObjectiveSettings) -> dict[str, _Passage]:
    """What is read for a lesson: `left` always, for the ranking; `taught` and `reference` where the terms need it."""
    question, teacher_hidden_SE = lesson.question, lesson.teacher_hidden_SE
    if lesson.taught is not None:
        expected = len(lesson.taught[1])
        rows = 0 if teacher_hidden_SE is None else len(teacher_hidden_SE)
        if rows != expected:
            raise ForkLeftError(
                f"question {lesson.name}: {expected} positions are taught, but there are hidden states of the teacher "
                f"for {rows}; ask the teacher at lesson.taught"
            )
    own = Reading(lesson.name, question.prompt, question.response, lesson.selected)
    parts = {"left": _Passage(own, "prefix")}
    if "teacher" in lesson.terms:
        parts["taught"] = _Passage(own, settings.view, teacher_hidden_SE)
        if settings.view == "prefix":
            parts["left"] = parts["taught"]
    if lesson.reads_reference:
        name = f"{lesson.name}, reference"
        reading = Reading(name, question.prompt, question.reference, lesson.reference_selected)
        parts["reference"] = _Passage(reading, "prefix", teacher_hidden_SE if "mixture" in lesson.terms else None)
        if "mixture" in lesson.terms:
            parts["taught"] = parts["reference"]
    return parts


def _term_losses(term: Term, found: dict[str, HeadRows], settings: ObjectiveSettings) -> torch.Tensor:
    """The loss of one term at each of its selected positions (the cases of paper eq. `branchloss`)."""
    if term == "own":
        return found["left"].nll_S
    if term == "teacher":
        return found["taught"].kl_S
    if term == "reference":
        return found["reference"].nll_S
    return mixture(found["reference"].kl_S, found["reference"].nll_S, settings.alpha)


def _read(
    student: Student,
    passages: Sequence[_Passage],
    settings: ObjectiveSettings,
    teacher_weight_VE: torch.Tensor | None,
) -> dict[_Passage, HeadRows]:
    """Two forwards at most (one for each view), then the head on all rows without a teacher, and on those with one."""
    passages = list(dict.fromkeys(passages))
    hidden = {}
    for view in View.__args__:
        chosen = [passage for passage in passages if passage.view == view]
        readings = [passage.reading for passage in chosen]
        if view == "prefix":
            options = {"geometry": settings.geometry, "attention": settings.attention}
            hidden_SD = prefix_hidden(student, readings, budget=settings.budget, **options)
        else:
            hidden_SD = target_masked_hidden(student, readings, budget=settings.budget)
        hidden |= zip(chosen, hidden_SD.split([len(reading.positions) for reading in readings]), strict=True)

    stop_ids = student.vocabulary.stop_ids
    merged_ids = tuple(i for i in stop_ids if i in student.vocabulary.valid) if settings.merge_stops else ()
    found = {}
    for taught in (False, True):
        chosen = [passage for passage in passages if (passage.teacher_hidden_SE is not None) == taught]
        if not chosen:
            continue
        teacher = None
        if taught:
            if teacher_weight_VE is None:
                raise ForkLeftError(f"question {chosen[0].reading.id}: the teacher's output head is missing")
            teacher_hidden_SE = torch.cat([passage.teacher_hidden_SE for passage in chosen])
            teacher = TeacherRows(teacher_hidden_SE.to(student.device), teacher_weight_VE)
        rows = head_rows(
            torch.cat([hidden[passage] for passage in chosen]),
            student.head_weight,
            torch.tensor([target for passage in chosen for target in passage.targets], dtype=torch.long),
            student.excluded_V,
            teacher=teacher,
            merged_ids=merged_ids,
        )
        if taught:
            _check_teacher(chosen, rows)
        found |= zip(chosen, _split(rows, [len(passage.targets) for passage in chosen]), strict=True)
    return found


def _check_teacher(passages: Sequence[_Passage], rows: HeadRows) -> None:
    broken_S = rows.teacher_entropy_S.isfinite().logical_not()
    if not broken_S.any():
        return
    places = [(passage.reading.id, i) for passage in passages for i in passage.reading.positions]
    name, position = places[int(broken_S.nonzero()[0])]
    raise ForkLeftError(
        f"question {name}: the teacher's distribution at position {position} does not sum to one (it is not finite); "
        "are its weights damaged, or its precision too low?"
    )


def _split(rows: HeadRows, sizes: list[int]) -> list[HeadRows]:
    columns = []
    for field in fields(HeadRows):
        column_S = getattr(rows, field.name)
        columns.append([None] * len(sizes) if column_S is None else column_S.split(sizes))
    return [HeadRows(*one) for one in zip(*columns, strict=True)]


@torch.no_grad()
def _mask_entropies(student: Student, readings: list[Reading], settings: ObjectiveSettings) -> Sequence[torch.Tensor]:
    """H_mask at the selected positions of each reading."""
    if not readings:
        return []
    hidden_SD = all_mask_hidden(student, readings, budget=settings.budget)
    targets = [reading.response[i] for reading in readings for i in reading.positions]
    rows = head_rows(hidden_SD, student.head_weight, torch.tensor(targets, dtype=torch.long), student.excluded_V)
    return rows.entropy_S.split([len(reading.positions) for reading in readings])


def _record(
    lesson: Lesson,
    found: dict[str, HeadRows],
    content: torch.Tensor,
    rank: torch.Tensor,
    pairs: int,
    contrast_S: torch.Tensor,
    mask_entropy_S: torch.Tensor,
) -> Record:
    left, taught, reference = found["left"], found.get("taught"), found.get("reference")
    kl = () if taught is None else tuple(taught.kl_S.tolist())
    at_eos = False
    if lesson.taught is not None:
        continuation, positions = lesson.taught
        # Of the last position only an EOS is ever selected.
        at_eos = bool(positions) and positions[-1] == len(continuation) - 1
    return Record(
        id=lesson.question.id,
        route=lesson.route,
        retained=True,
        content=content.item(),
        rank=rank.item(),
        pairs=pairs,
        positions=tuple(lesson.selected),
        contrast=tuple(contrast_S.tolist()),
        confidence=tuple(left.confidence_S.tolist()),
        mask_entropy=tuple(mask_entropy_S.tolist()),
        left_entropy=tuple(left.entropy_S.tolist()),
        nll=tuple(left.nll_S.tolist()),
        kl=kl,
        teacher_entropy=() if taught is None else tuple(taught.teacher_entropy_S.tolist()),
        eos_kl=kl[-1] if at_eos else None,
        reference_positions=tuple(lesson.reference_selected),
        reference_nll=() if reference is None else tuple(reference.nll_S.tolist()),
    )
