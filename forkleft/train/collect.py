"""Collection: what is fixed before an update. The student writes, the teacher answers, both are verified, routes and
positions are drawn, and the teacher is asked on the student's prefixes (paper alg. `method`, up to the losses).
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch

from forkleft.errors import ForkLeftError
from forkleft.objective.supervision import Lesson, Question, plan
from forkleft.prompts import prompt_ids
from forkleft.rollout import Trajectory, generate
from forkleft.students.student import Student
from forkleft.teacher import Answer, AnswerCache, Teacher, cached_answers
from forkleft.teacher.answers import Answerer
from forkleft.teacher.local import Asked
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example, read_examples
from forkleft.verify import Judgement, Verifier
from forkleft.vocabulary import common_vocabulary

_LOG = logging.getLogger(__name__)


class Clock:
    """Seconds spent in each phase of an update. watch: hears of every phase that begins, and of "" where none does."""

    def __init__(self, watch: Callable[[str], None] = lambda name: None) -> None:
        self.seconds: dict[str, float] = {}
        self._watch, self._name, self._since = watch, "", 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within to a phase, but for that of phases within it."""
        outer = self._name
        self._turn(name)
        try:
            yield
        finally:
            self._turn(outer)

    def _turn(self, name: str) -> None:
        if torch.cuda.is_available():
            # Or the next phase would be charged with what this one left to do.
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now
        self._watch(name)


@dataclass(frozen=True)
class Verified:
    """What the verifier had to do with a question. extracted: the final answer that it found in a response, if any."""

    expected: str
    extracted: str | None
    teacher_answer: Answer
    teacher_extracted: str | None


@dataclass(frozen=True)
class Collected:
    """A batch, ready to be learned from; one entry for each example. `cut`: whether its reference was too long."""

    lessons: list[Lesson]
    trajectories: list[Trajectory]
    verified: list[Verified]
    cut: list[bool]

    def split(self, sizes: Sequence[int]) -> list["Collected"]:
        """The same in parts."""
        ends = list(accumulate(sizes))
        columns = (self.lessons, self.trajectories, self.verified, self.cut)
        return [
            Collected(*(column[end - size : end] for column in columns)) for size, end in zip(sizes, ends, strict=True)
        ]


class Collector:
    """Collects batches for one student and teacher.

    answerer: who gives the teacher's own answers; the teacher itself, or a server that runs it. verifier: who judges
    both models' answers.
    """

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        answerer: Answerer,
        cache: AnswerCache,
        config: ForkLeftConfig,
        verifier: Verifier,
    ) -> None:
        self.student, self.teacher, self.answerer, self.cache, self.config = student, teacher, answerer, cache, config
        self.verifier = verifier
        self.settings = config.objective_settings()
        # The teacher's answer to a question stays the same, and so does its verdict.
        self._teacher_judgements: dict[tuple[str, str], Judgement] = {}

    def write(self, examples: Sequence[Example], *, update: int) -> list[Trajectory]:
        """The student's responses, in the order of training. `update` keys what is random in it."""
        config = self.config
        return generate(
            self.student,
            [prompt_ids(self.student.tokenizer, example.messages) for example in examples],
            order=config.rollout_order,
            passes=config.passes,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed + (update << 32),
            ids=[example.id for example in examples],
            batch_size=config.rollout_batch_size,
        )

    def collect(
        self, examples: Sequence[Example], trajectories: list[Trajectory], *, update: int, clock: Clock
    ) -> Collected:
        """Everything after the rollout. `update` keys the draws."""
        config, stop_ids = self.config, self.student.vocabulary.stop_ids
        with clock.phase("teacher"):
            conversations = [example.messages for example in examples]
            budget = config.teacher_max_new_tokens
            answers = cached_answers(self.answerer, self.cache, conversations, max_new_tokens=budget)
        with clock.phase("verify"):
            expected = [example.answer for example in examples]
            written = [trajectory.text for trajectory in trajectories]
            ids = [example.id for example in examples]
            ours = self.verifier.judgements(written, expected, ids=ids)
            theirs = self._judge_teacher([answer.text for answer in answers], expected, ids)
            verified = [
                Verified(example.answer, one.extracted, answer, other.extracted)
                for example, one, answer, other in zip(examples, ours, answers, theirs, strict=True)
            ]
        references = [self._reference(one, answer) for one, answer in zip(examples, answers, strict=True)]
        lessons = []
        for k, example in enumerate(examples):
            question = Question(
                id=example.id,
                prompt=prompt_ids(self.student.tokenizer, example.messages),
                response=trajectories[k].tokens,
                student_right=ours[k].correct,
                teacher_right=theirs[k].correct,
                reference=references[k][0],
            )
            lessons.append(plan(question, self.settings, stop_ids, seed=config.seed, update=update))
        with clock.phase("teacher"):
            lessons = self._taught(examples, lessons)
        return Collected(lessons, trajectories, verified, [cut for _, cut in references])

    def _judge_teacher(self, texts: list[str], expected: list[str], ids: list[str]) -> list[Judgement]:
        pairs = list(zip(texts, expected, strict=True))
        known = self._teacher_judgements
        new = {pair: name for pair, name in zip(pairs, ids, strict=True) if pair not in known}
        answers, right = [text for text, _ in new], [answer for _, answer in new]
        known |= zip(new, self.verifier.judgements(answers, right, ids=list(new.values())), strict=True)
        return [known[pair] for pair in pairs]

    def _reference(self, example: Example, answer: Answer) -> tuple[list[int] | None, bool]:
        """The ids of the reference with the student's stop id, if that fits the budget, and whether it was cut.

        Objectives that teach every question from a reference take the teacher's answer where there is no solution.
        """
        text, whole = example.reference, True
        if text is None and self.settings.supervision != "routed":
            # An answer that was cut by the teacher's budget does not teach to stop there.
            text, whole = answer.text, answer.stopped
        if text is None:
            return None, False
        ids = self.student.tokenizer.encode(text, add_special_tokens=False)
        if whole:
            ids.append(next(i for i in self.student.vocabulary.stop_ids if i in self.student.vocabulary.valid))
        budget = self.config.max_new_tokens
        return ids[:budget], not whole or len(ids) > budget

    def _taught(self, examples: Sequence[Example], lessons: list[Lesson]) -> list[Lesson]:
        """The lessons with the teacher's hidden states where it is asked, under its own prompt."""
        chosen = [k for k, lesson in enumerate(lessons) if lesson.taught is not None]
        asked = [Asked(prompt_ids(self.teacher.tokenizer, examples[k].messages), *lessons[k].taught) for k in chosen]
        hidden = dict(zip(chosen, self.teacher.hidden(asked), strict=True))
        return [
            replace(lesson, teacher_hidden_SE=hidden[k]) if k in hidden else lesson for k, lesson in enumerate(lessons)
        ]


def sharing_vocabulary(student: Student, teacher: Teacher) -> Student:
    """The student over the vocabulary that it shares with the teacher. Raises ForkLeftError if there is none."""
    stop_ids = student.vocabulary.stop_ids
    if missing := set(stop_ids) - set(teacher.stop_ids):
        raise ForkLeftError(
            f"the teacher would not stop at the student's stop ids {sorted(missing)}; make it with the union of both "
            "models' stop ids"
        )
    vocabulary = common_vocabulary(
        student.tokenizer,
        teacher.tokenizer,
        student_rows=student.head_weight.shape[0],
        teacher_rows=teacher.head_weight.shape[0],
        mask_id=student.vocabulary.mask_id,
        stop_ids=tuple(dict.fromkeys([*stop_ids, *teacher.stop_ids])),
    )
    return Student(student.model, student.family, vocabulary, student.tokenizer, student.origin)


def prepare_examples(
    student: Student,
    teacher: Teacher,
    rows: Iterable[Mapping[str, Any]],
    config: ForkLeftConfig,
    verifier: Verifier,
) -> list[Example]:
    """The questions of a data set that can be asked and learned from, as every run with this configuration has them.

    student: over the vocabulary that it shares with the teacher. Raises ForkLeftError as `read_examples` and
    `check_examples` do.
    """
    examples = read_examples(
        rows,
        prompt_template=config.prompt_template,
        reference_template=config.reference_template,
        verifier=verifier,
    )
    return check_examples(student, teacher, examples, config)


def check_examples(
    student: Student, teacher: Teacher, examples: Sequence[Example], config: ForkLeftConfig
) -> list[Example]:
    """The examples that can be asked and learned from: prompts that leave room for an answer in both models' contexts.

    Raises ForkLeftError, naming the question, for a prompt that leaves none (unless `long_prompts` says to skip it) or
    that cannot be asked at all, for a reference that holds ids outside 𝒱 or stops before its end; and if none is left.
    """
    kept, skipped = [], []
    for example in examples:
        prompt = prompt_ids(student.tokenizer, example.messages)
        theirs = len(prompt_ids(teacher.tokenizer, example.messages))
        budgets = {
            "student": (len(prompt), config.max_new_tokens, student.context),
            "teacher": (theirs, max(config.max_new_tokens, config.teacher_max_new_tokens), teacher.context),
        }
        told = [
            f"question {example.id}: a prompt of {length} tokens and a response of up to {budget} exceed the {who}'s "
            f"context of {context}"
            for who, (length, budget, context) in budgets.items()
            if length + budget > context
        ]
        if told and config.long_prompts == "refuse":
            raise ForkLeftError(
                f"{told[0]}; shorten the prompt or the budget, or skip such questions with long_prompts: skip"
            )
        if told:
            skipped.append(told[0])
            continue
        student.check_prompt(prompt, config.max_new_tokens, f"question {example.id}")
        _check_reference(student, example)
        kept.append(example)
    if not kept:
        raise ForkLeftError(f"no question of {len(examples)} can be asked; the first: {skipped[0]}")
    if skipped:
        _LOG.warning("skipped %d of %d questions; the first: %s", len(skipped), len(examples), skipped[0])
    return kept


def _check_reference(student: Student, example: Example) -> None:
    if example.reference is None:
        return
    ids = student.tokenizer.encode(example.reference, add_special_tokens=False)
    what = f"question {example.id}: the reference"
    student.vocabulary.check(ids, what, student.tokenizer)
    if set(ids) & set(student.vocabulary.stop_ids):
        raise ForkLeftError(f"{what} holds a stop token, which belongs at its end alone and is added there; remove it")
