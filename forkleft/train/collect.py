"""Collection: all that is fixed before an update (paper alg. `method`, up to the losses).

The student writes, the teacher answers, both are verified, routes and positions are drawn, and the teacher is read on
the student's prefixes.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.objective.supervision import Lesson, plan
from forkleft.prompts import Reading
from forkleft.rollout import Trajectory, Writer, generate
from forkleft.students.student import Student
from forkleft.teacher import Answer, AnswerCache, Teacher, cached_answers
from forkleft.teacher.answers import Answerer, answer_key
from forkleft.teacher.local import Hidden
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example
from forkleft.train.prepare import reference_ids
from forkleft.verify import Judgement, Verifier

# By so much of a text a teacher is recognised.
_KNOWN_TOKENS = 128


class Clock:
    """Seconds spent in each phase of an update. watch: called with each phase that begins, and with "" if none does."""

    def __init__(self, watch: Callable[[str], None] = lambda name: None) -> None:
        self.seconds: dict[str, float] = {}
        self._watch, self._name, self._since = watch, "", 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within the block for a phase, except that of other phases inside it."""
        outer = self._name
        self._turn(name)
        try:
            yield
        finally:
            self._turn(outer)

    def _turn(self, name: str) -> None:
        if torch.cuda.is_available():
            # Otherwise work that this phase left to the device would count for the next.
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self._name:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now
        self._watch(name)


@dataclass(frozen=True)
class Collected:
    """A batch, ready for learning: lists with one entry for each example, in the same order.

    answers: the teacher's own. judgements, teacher_judgements: on what the student and the teacher wrote.
    """

    examples: list[Example]
    trajectories: list[Trajectory]
    answers: list[Answer]
    judgements: list[Judgement]
    teacher_judgements: list[Judgement]
    lessons: list[Lesson]


class Collector:
    """Collects batches for one student and teacher.

    answerer: who gives the teacher's own answers; the teacher itself, or a server that runs it. verifier: who judges
    both models' answers. writer: who writes the student's responses.
    """

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        answerer: Answerer,
        cache: AnswerCache,
        config: ForkLeftConfig,
        verifier: Verifier,
        writer: Writer = generate,
    ) -> None:
        self.student, self.teacher, self.answerer, self.cache, self.config = student, teacher, answerer, cache, config
        self.verifier, self.writer = verifier, writer
        self.settings = config.objective_settings()
        # The teacher's answer to a question stays the same, and so does its verdict. By digests of both: the texts of
        # a long run would fill the memory.
        self._known_judgements: dict[str, Judgement] = {}

    def write(self, examples: Sequence[Example], *, update: int) -> list[Trajectory]:
        """The student's responses, written in the order of training. `update` is a key of its random choices.

        Raises ForkLeftError if the writer gives another number of responses than it was asked for.
        """
        config = self.config
        written = self.writer(
            self.student,
            [example.prompt for example in examples],
            order=config.rollout_order,
            passes=config.passes,
            max_new_tokens=config.max_new_tokens,
            # A writer knows no updates: its seed must differ in each.
            seed=config.seed + (update << 32),
            ids=[example.id for example in examples],
            batch_size=config.rollout_batch_size,
        )
        if len(written) != len(examples):
            raise ForkLeftError(
                f"the writer was asked for {len(examples)} responses and gave {len(written)}; it must give one for "
                "each prompt, in their order"
            )
        return written

    def collect(
        self, examples: Sequence[Example], trajectories: list[Trajectory], *, update: int, clock: Clock
    ) -> Collected:
        """Everything after the rollout. `update` is a key of the draws."""
        config = self.config
        with clock.phase("teacher"):
            conversations = [example.messages for example in examples]
            budget = config.teacher_max_new_tokens
            answers = cached_answers(self.answerer, self.cache, conversations, max_new_tokens=budget)
        with clock.phase("verify"):
            expected, ids = [example.answer for example in examples], [example.id for example in examples]
            written = [_text(trajectory) for trajectory in trajectories]
            judgements = self.verifier.judgements(written, expected, ids=ids)
            teacher_judgements = self._judge_teacher([answer.text for answer in answers], expected, ids)
        lessons = [
            plan(
                example.id,
                example.prompt,
                trajectory.tokens,
                self.settings,
                self.student.vocabulary.stop_ids,
                student_right=judgement.correct,
                teacher_right=teacher_judgement.correct,
                reference=self._reference(example, answer),
                text=trajectory.text,
                judged=judgement.judged and teacher_judgement.judged,
                seed=config.seed,
                update=update,
            )
            for example, trajectory, answer, judgement, teacher_judgement in zip(
                examples, trajectories, answers, judgements, teacher_judgements, strict=True
            )
        ]
        with clock.phase("teacher"):
            lessons = self._ask_teacher(examples, lessons, clock)
        return Collected(list(examples), trajectories, answers, judgements, teacher_judgements, lessons)

    def known(self, examples: Sequence[Example]) -> list[Reading]:
        """What the teacher should find likely, by which it can be recognised: a text for each example.

        Its own answer if it is there already, else the reference, else the question itself.
        """
        readings = []
        for example in examples:
            key = answer_key(self.answerer.identity, example.messages, self.config.teacher_max_new_tokens)
            answer, text = self.cache.get(key), example.reference_ids
            if answer is not None:
                text = reference_ids(self.student, answer.text, _KNOWN_TOKENS, stops=False)
            prompt = example.teacher_prompt
            if not text:
                prompt, text = prompt[:1], prompt[1:]
            # No longer than a response, for which there is room in the teacher's context.
            text = text[: min(_KNOWN_TOKENS, self.config.max_new_tokens)]
            readings.append(Reading(f"question {example.id}", prompt, text, range(len(text))))
        return readings

    def _judge_teacher(self, texts: list[str], expected: list[str], ids: list[str]) -> list[Judgement]:
        keys = [json_digest(pair) for pair in zip(texts, expected, strict=True)]
        known = self._known_judgements
        new = {key: k for k, key in enumerate(keys) if key not in known}
        answers, right, names = ([given[k] for k in new.values()] for given in (texts, expected, ids))
        known |= zip(new, self.verifier.judgements(answers, right, ids=names), strict=True)
        return [known[key] for key in keys]

    def _reference(self, example: Example, answer: Answer) -> Sequence[int] | None:
        """The ids of the reference.

        Objectives that need a reference for every question use the teacher's answer if there is no solution.
        """
        if example.reference_ids is not None or self.settings.supervision == "routed":
            return example.reference_ids
        # An answer that the teacher's budget cut must not teach to stop there.
        return reference_ids(self.student, answer.text, self.config.max_new_tokens, stops=answer.stopped)

    def _ask_teacher(self, examples: Sequence[Example], lessons: list[Lesson], clock: Clock) -> list[Lesson]:
        """The lessons with the teacher's hidden states, where they are needed, under the teacher's own prompt.

        A teacher on a server is not waited for until a loss needs them; `clock` counts the time until they are here.
        """
        readings = {
            k: Reading(lesson.name, example.teacher_prompt, *lesson.taught)
            for k, (example, lesson) in enumerate(zip(examples, lessons, strict=True))
            if lesson.taught is not None
        }
        asked = self.teacher.ask(list(readings.values()))
        hidden = {k: _timed(found, clock) for k, found in zip(readings, asked, strict=True)}
        return [
            replace(lesson, teacher_hidden_SE=hidden[k]) if k in hidden else lesson for k, lesson in enumerate(lessons)
        ]


def _timed(hidden_SE: Hidden, clock: Clock) -> Hidden:
    """Hidden states, or a call that counts the time until they are here as a phase."""
    if not callable(hidden_SE):
        return hidden_SE
    awaited = hidden_SE

    def wait() -> torch.Tensor:
        with clock.phase("wait"):
            return awaited()

    return wait


def _text(trajectory: Trajectory) -> str:
    if trajectory.text is None:
        raise ForkLeftError("the writer gave a response without its text, which the verifier reads; decode its tokens")
    return trajectory.text
