"""Shapes and settings for the tests of plans, and updates that are really computed, to compare them with."""

from collections.abc import Callable
from dataclasses import replace

import torch
from tiny import STOP, tiny_model, tiny_student

from forkleft.objective.routes import Route
from forkleft.objective.supervision import Lesson, ObjectiveSettings, plan
from forkleft.objective.update import update_loss
from forkleft.prompts import Reading as Read
from forkleft.rollout import generate
from forkleft.scale.devices import parse_gpus
from forkleft.scale.setting import Setting
from forkleft.scale.shapes import Shape, shape_of
from forkleft.scale.work import Question, Reading
from forkleft.students import Family, Student
from forkleft.teacher import Teacher

SMALL = Shape("small", 1000, 600, 300, 90, 2, 8, 16, 8, 24, 40)
BLOCKS = Family("block", 8)
# All of GOLD, and half and half with LEFTOPD: shares that four questions have exactly.
GOLD = {Route.GOLD: 1.0}
MIXED = {Route.LEFTOPD: 0.5, Route.GOLD: 0.5}
_VERDICTS = {Route.CE: (True, True), Route.LEFTOPD: (False, True), Route.GOLD: (False, False)}


def endless_student(family: Family, architecture: str = "qwen3", **settings) -> Student:
    """A student that never writes the stop id: its logit is 0, and others are above."""
    student = tiny_student(family, architecture, **settings)
    with torch.no_grad():
        student.head_weight[STOP] = 0
    return student


class Updates:
    """Updates of small models with random weights, phase by phase, and the setting that describes them."""

    def __init__(
        self,
        architecture: str = "qwen3",
        *,
        questions: int = 4,
        prompt: int = 16,
        length: int = 64,
        passes: int = 4,
        rho: float = 0.25,
        routes=MIXED,
        family: Family = BLOCKS,
        **sizes,
    ) -> None:
        sizes = {"max_position_embeddings": 512} | sizes
        self.student = endless_student(family, architecture, **sizes)
        self.teacher = Teacher(tiny_model("qwen2", seed=9, max_position_embeddings=512), None, stop_ids=[STOP])
        self.teacher.hidden([])  # It checks its head once, which shall not be counted.
        self.objective = ObjectiveSettings(budget=length, rho=rho)
        generator = torch.Generator().manual_seed(1)
        self.prompts = torch.randint(0, STOP, (questions, prompt), generator=generator).tolist()
        self.references = torch.randint(0, STOP, (questions, length), generator=generator).tolist()
        self.setting = Setting(
            student=shape_of("student", self.student.model),
            teacher=shape_of("teacher", self.teacher.model),
            family=family,
            cluster=parse_gpus("1x80GB"),
            processes=1,
            server_gpus=0,
            question=Question(prompt, length, length),
            reading=Reading(rho),
            supervision="routed",
            routes=routes,
            passes=passes,
            questions=questions,
            batch=questions,
            rollout_batch=questions,
            teacher_batch=questions,
            sharded=False,
            bf16=False,
            checkpointing=False,
            adapter_rank=None,
            teacher_bytes=4,
            spread=False,
            answer_budget=length,
            answers_at_once=1,
            updates=1,
        )

    def write(self) -> list[list[int]]:
        setting = self.setting
        found = generate(
            self.student,
            self.prompts,
            max_new_tokens=setting.question.budget,
            passes=setting.passes,
            order="high_entropy",
            batch_size=setting.rollout_batch,
        )
        assert all(len(trajectory.tokens) == setting.question.budget for trajectory in found)
        return [trajectory.tokens for trajectory in found]

    def lessons(self, responses: list[list[int]]) -> list[Lesson]:
        routes = [route for route, share in self.setting.routes.items() for _ in range(int(share * len(responses)))]
        return [
            plan(
                str(k),
                self.prompts[k],
                responses[k],
                self.objective,
                (STOP,),
                student_right=_VERDICTS[route][0],
                teacher_right=_VERDICTS[route][1],
                reference=self.references[k],
                seed=0,
                update=0,
            )
            for k, route in enumerate(routes)
        ]

    def ask(self, lessons: list[Lesson]) -> list[Lesson]:
        taught = [lesson for lesson in lessons if lesson.taught is not None]
        hidden = self.teacher.hidden([Read(lesson.name, lesson.prompt, *lesson.taught) for lesson in taught])
        found = dict(zip([lesson.id for lesson in taught], hidden, strict=True))
        return [replace(lesson, teacher_hidden_SE=found.get(lesson.id)) for lesson in lessons]

    def read(self, lessons: list[Lesson]) -> torch.Tensor:
        head = self.teacher.head_weight
        return update_loss(self.student, lessons, self.objective, batch_size=len(lessons), teacher_weight_VE=head)[0]

    def run(self, measured: Callable[[str, Callable[[], object]], object]) -> None:
        """One update, in which `measured(phase, work)` calls each phase and returns its result."""
        responses = measured("rollout", self.write)
        planned = self.lessons(responses)
        lessons = measured("teacher", lambda: self.ask(planned))
        loss = measured("readout", lambda: self.read(lessons))
        measured("backward", loss.backward)
