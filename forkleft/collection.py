"""Collection: what is fixed before an update. The student writes, the teacher answers, both are verified, routes and
positions are drawn, and the teacher is asked on the student's prefixes (paper alg. `method`, up to the losses).
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from forkleft.config import ForkLeftConfig
from forkleft.data import Example
from forkleft.errors import ForkLeftError
from forkleft.objective.lessons import Lesson, Question, plan
from forkleft.prompts import prompt_ids
from forkleft.rollout import Trajectory, generate
from forkleft.students.student import Student
from forkleft.teacher import Answer, AnswerCache, Teacher, cached_answers
from forkleft.teacher.answers import Answerer
from forkleft.teacher.local import Asked
from forkleft.verify import verify_batch


@dataclass
class Clock:
    """Seconds spent in each phase of an update."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time within to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Collected:
    """A batch, ready to be learned from; one entry for each example. `cut`: whether its reference was too long."""

    lessons: list[Lesson]
    trajectories: list[Trajectory]
    answers: list[Answer]
    cut: list[bool]


class Collector:
    """Collects batches for one student and teacher.

    answerer: who gives the teacher's own answers; the teacher itself, or a server that runs it.
    """

    def __init__(
        self, student: Student, teacher: Teacher, answerer: Answerer, cache: AnswerCache, config: ForkLeftConfig
    ) -> None:
        self.student, self.teacher, self.answerer, self.cache, self.config = student, teacher, answerer, cache, config
        self.settings = config.objective_settings()

    def write(self, examples: Sequence[Example]) -> list[Trajectory]:
        """The student's responses, in the order of training."""
        config = self.config
        return generate(
            self.student,
            [prompt_ids(self.student.tokenizer, example.messages) for example in examples],
            order=config.rollout_order,
            passes=config.passes,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
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
            student_right = verify_batch(written, expected, config.verifier)
            teacher_right = verify_batch([answer.text for answer in answers], expected, config.verifier)
        references = [self._reference(one, answer) for one, answer in zip(examples, answers, strict=True)]
        lessons = []
        for k, example in enumerate(examples):
            question = Question(
                id=example.id,
                prompt=prompt_ids(self.student.tokenizer, example.messages),
                response=trajectories[k].tokens,
                student_right=student_right[k],
                teacher_right=teacher_right[k],
                reference=references[k][0],
            )
            lessons.append(plan(question, self.settings, stop_ids, seed=config.seed, update=update))
        with clock.phase("teacher"):
            lessons = self._taught(examples, lessons)
        return Collected(lessons, trajectories, answers, [cut for _, cut in references])

    def _reference(self, example: Example, answer: Answer) -> tuple[list[int] | None, bool]:
        """The ids of the reference with the student's stop id, if that fits the budget, and whether it was cut.

        Objectives that teach every question from a reference take the teacher's answer where there is no solution.
        """
        text = example.reference
        if text is None and self.settings.supervision != "routed":
            text = answer.text
        if text is None:
            return None, False
        stop_id = next(i for i in self.student.vocabulary.stop_ids if i in self.student.vocabulary.valid)
        ids = [*self.student.tokenizer.encode(text, add_special_tokens=False), stop_id]
        budget = self.config.max_new_tokens
        return ids[:budget], len(ids) > budget

    def _taught(self, examples: Sequence[Example], lessons: list[Lesson]) -> list[Lesson]:
        """The lessons with the teacher's hidden states where it is asked, under its own prompt."""
        chosen = [k for k, lesson in enumerate(lessons) if lesson.taught is not None]
        asked = [Asked(prompt_ids(self.teacher.tokenizer, examples[k].messages), *lessons[k].taught) for k in chosen]
        hidden = dict(zip(chosen, self.teacher.hidden(asked), strict=True))
        return [
            replace(lesson, teacher_hidden_SE=hidden[k]) if k in hidden else lesson for k, lesson in enumerate(lessons)
        ]


def check_prompts(
    student: Student, teacher: Teacher, examples: Sequence[Example], config: ForkLeftConfig
) -> list[Example]:
    """The examples whose prompts leave room for an answer in both models' contexts.

    Raises ForkLeftError naming the first that does not, unless `long_prompts` says to skip; and if none is left.
    """
    kept, reasons = [], []
    for example in examples:
        try:
            prompt = prompt_ids(student.tokenizer, example.messages)
            student.check_prompt(prompt, config.max_new_tokens, f"question {example.id}")
            teacher.check_room(prompt_ids(teacher.tokenizer, example.messages), config.max_new_tokens, example.id)
            kept.append(example)
        except ForkLeftError as error:
            if config.long_prompts == "refuse":
                raise ForkLeftError(f"{error}; or skip such questions with long_prompts: skip") from error
            reasons.append(str(error))
    if not kept:
        raise ForkLeftError(f"no question of {len(examples)} can be asked; the first: {reasons[0]}")
    return kept
