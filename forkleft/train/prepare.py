"""Preparation: what is done once, before a run begins, with a student, a teacher and the questions of a data set.

Every question gets its ids here, rendered by each model's own template, so that no update has to render it again.
"""

import logging
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.prompts import prompt_ids
from forkleft.students.student import Student
from forkleft.teacher import Teacher
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example, read_examples
from forkleft.verify import Verifier
from forkleft.verify.kept import VERDICTS
from forkleft.vocabulary import common_vocabulary

_LOG = logging.getLogger(__name__)


def check_adapted(student: Student, config: ForkLeftConfig) -> None:
    """Raise ForkLeftError for a student that `convert` has just made, unless the user allows it."""
    if not (student.adapted or config.allow_unadapted):
        raise ForkLeftError(
            "the student has the weights of an autoregressive model and was never taught to denoise (forkleft convert "
            "made it), so that what it writes is noise and there is nothing to distil into; adapt it first "
            "(forkleft adapt, docs/your-own-model.md), or say allow_unadapted: true to train it as it is"
        )


def sharing_vocabulary(student: Student, teacher: Teacher) -> Student:
    """The student over the vocabulary that it shares with the teacher. Raises ForkLeftError if there is none."""
    stop_ids = student.vocabulary.stop_ids
    if missing := set(stop_ids) - set(teacher.stop_ids):
        raise ForkLeftError(
            f"the teacher would not stop at the student's stop ids {sorted(missing)}; make it with the union of both "
            "models' stop ids"
        )
    vocabulary = common_vocabulary(
        student.text_tokenizer,
        teacher.tokenizer,
        student_rows=student.head_weight.shape[0],
        teacher_rows=teacher.head_weight.shape[0],
        mask_id=student.vocabulary.mask_id,
        stop_ids=tuple(dict.fromkeys([*stop_ids, *teacher.stop_ids])),
    )
    return student.but(vocabulary=vocabulary)


def prepare_examples(
    student: Student,
    teacher: Teacher,
    rows: Iterable[Mapping[str, Any]],
    config: ForkLeftConfig,
    verifier: Verifier,
) -> list[Example]:
    """The questions of a data set that can be asked and learned from, as every run with this configuration has them.

    student: over the vocabulary that it shares with the teacher. Raises ForkLeftError as `read_examples` and
    `with_ids` do.
    """
    examples = read_examples(
        rows,
        prompt_template=config.prompt_template,
        reference_template=config.reference_template,
        verifier=verifier,
        verdicts=config.answer_file.with_name(VERDICTS),
    )
    return with_ids(student, teacher, examples, config)


def with_ids(student: Student, teacher: Teacher, examples: Sequence[Example], config: ForkLeftConfig) -> list[Example]:
    """The examples that can be asked and learned from, with their ids.

    Their prompts leave room for an answer in both models' contexts. Raises ForkLeftError, naming the question, for a
    prompt that leaves no room (unless `long_prompts` says to skip it) or cannot be asked at all, and for a reference
    that holds ids outside 𝒱 or stops before its end. Also raises it if no example is left.
    """
    kept, skipped = [], []
    for example in examples:
        prompt = array("i", prompt_ids(student.text_tokenizer, example.messages))
        teacher_prompt = array("i", prompt_ids(teacher.tokenizer, example.messages))
        teacher_budget = max(config.max_new_tokens, config.teacher_max_new_tokens)
        budgets = {
            "student": (len(prompt), config.max_new_tokens, student.context),
            "teacher": (len(teacher_prompt), teacher_budget, teacher.context),
            "teacher server": (len(teacher_prompt), config.max_new_tokens, teacher.reading_context),
        }
        too_long = [
            f"question {example.id}: a prompt of {length} tokens and a response of up to {budget} exceed the {who}'s "
            f"context of {context}"
            for who, (length, budget, context) in budgets.items()
            if length + budget > context
        ]
        if too_long and config.long_prompts == "refuse":
            raise ForkLeftError(
                f"{too_long[0]}; shorten the prompt or the budget, or skip such questions with long_prompts: skip"
            )
        if too_long:
            skipped.append(too_long[0])
            continue
        student.check_prompt(prompt, config.max_new_tokens, f"question {example.id}")
        reference = _checked_reference(student, example, config.max_new_tokens)
        kept.append(replace(example, prompt=prompt, teacher_prompt=teacher_prompt, reference_ids=reference))
    if not kept:
        raise ForkLeftError(f"no question of {len(examples)} can be asked; the first: {skipped[0]}")
    if skipped:
        _LOG.warning("skipped %d of %d questions; the first: %s", len(skipped), len(examples), skipped[0])
    return kept


def reference_ids(student: Student, text: str, budget: int, *, stops: bool = True) -> Sequence[int]:
    """The ids of a reference, with the student's stop id at its end unless `stops` is False, cut to the budget."""
    return _cut(student, student.text_tokenizer.encode(text, add_special_tokens=False), budget, stops=stops)


def checked_ids(student: Student, text: str, what: str) -> list[int]:
    """The ids of what a student is to write. Raises ForkLeftError for ids outside 𝒱, and for a stop token in it."""
    ids = student.text_tokenizer.encode(text, add_special_tokens=False)
    student.vocabulary.check(ids, what, student.text_tokenizer)
    if set(ids) & set(student.vocabulary.stop_ids):
        raise ForkLeftError(f"{what} holds a stop token, which belongs at its end alone and is added there; remove it")
    return ids


def _checked_reference(student: Student, example: Example, budget: int) -> Sequence[int] | None:
    if example.reference is None:
        return None
    ids = checked_ids(student, example.reference, f"question {example.id}: the reference")
    return _cut(student, ids, budget, stops=True)


def _cut(student: Student, ids: list[int], budget: int, *, stops: bool) -> Sequence[int]:
    end = [student.vocabulary.end_id] if stops else []
    return array("i", [*ids, *end][:budget])
