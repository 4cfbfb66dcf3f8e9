"""A setting: a recipe on given devices, as far as it decides work, memory and time."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forkleft.errors import ForkLeftError, check_choice, check_count
from forkleft.objective.routes import Route
from forkleft.objective.supervision import Supervision
from forkleft.scale.devices import GB, Cluster
from forkleft.scale.shapes import Shape
from forkleft.scale.work import Question, Reading
from forkleft.students.family import Family
from forkleft.train.config import ForkLeftConfig
from forkleft.train.recipes import Recipe, default_of, options

# Bytes of a number.
NUMBERS: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
# Of the questions of an update, where nothing better is known. Half of them with the teacher's route is ours, after the
# lab, where it was more.
ROUTES: Mapping[Route, float] = {Route.CE: 0.25, Route.LEFTOPD: 0.5, Route.GOLD: 0.25, Route.EXCLUDE: 0.0}


@dataclass(frozen=True)
class Setting:
    """What decides the cost of a run.

    cluster: all devices; processes: that train, one GPU each; server_gpus: those that hold the teacher's server, 0 if
    each process has the teacher in memory. questions: of an update, over all processes. batch, rollout_batch,
    teacher_batch: how many a process reads, writes and asks the teacher at a time, at most. question: the expected
    lengths; a response may take the whole budget, and memory is planned for that. sharded: FSDP2, else DDP. bf16:
    products in bfloat16. teacher_bytes: of one weight. spread: each process divides its teacher among the GPUs of its
    node. answer_budget: of the teacher's own answers; answers_at_once: how many a process waits for, on a server.
    updates: of the whole run.
    """

    student: Shape
    teacher: Shape
    family: Family
    cluster: Cluster
    processes: int
    server_gpus: int
    question: Question
    reading: Reading
    supervision: Supervision
    routes: Mapping[Route, float]
    passes: int
    questions: int
    batch: int
    rollout_batch: int
    teacher_batch: int
    sharded: bool
    bf16: bool
    checkpointing: bool
    adapter_rank: int | None
    teacher_bytes: int
    spread: bool
    answer_budget: int
    answers_at_once: int
    updates: int

    @property
    def share(self) -> int:
        """The questions of an update in one process."""
        return self.questions // self.processes

    @property
    def at_once(self) -> int:
        """Questions that a process reads in one forward: the largest part of its share that the batch allows."""
        return max(size for size in range(1, min(self.batch, self.share) + 1) if self.share % size == 0)

    @property
    def divides(self) -> bool:
        """Whether that is the batch itself, or the whole share. Training refuses other batches."""
        return self.at_once == min(self.batch, self.share)

    @property
    def accumulated(self) -> int:
        """Forwards with their backwards in an update."""
        return self.share // self.at_once

    @property
    def written(self) -> int:
        """Responses that a process writes at a time."""
        return min(self.rollout_batch, self.share)

    @property
    def asked(self) -> int:
        """Sequences in a forward of the teacher that reads the responses."""
        return min(self.teacher_batch, self.share)

    @property
    def served(self) -> bool:
        """Whether the teacher is on a server, so that a process holds its head alone."""
        return self.server_gpus > 0

    @property
    def longest(self) -> Question:
        """A question whose response and reference take the whole budget."""
        return Question(self.question.prompt, self.question.budget, self.question.budget)

    @property
    def trained(self) -> int:
        """Weights that are trained."""
        student = self.student
        return student.weights if self.adapter_rank is None else self.adapter_rank * student.pairs

    @property
    def gpus(self) -> int:
        """GPUs that hold something: a teacher that is spread is on all of them."""
        if self.spread and not self.served:
            return self.cluster.count
        return self.processes + self.server_gpus


def setting_of(
    said: Mapping[str, Any],
    recipe: Recipe,
    config: ForkLeftConfig,
    *,
    student: Shape,
    teacher: Shape,
    family: Family,
    cluster: Cluster,
    prompt: int,
    response: int | None = None,
    processes: int | None = None,
    routes: Mapping[Route, float] = ROUTES,
) -> Setting:
    """The setting of a recipe's options (`said`, and the two halves made of them) on a cluster, teacher in memory.

    processes: default as many as there are GPUs, or the most that divide the questions of an update. Raises
    ForkLeftError if these do not fit together.
    """
    settings, budget = config.objective_settings(), config.max_new_tokens
    # The configuration has divided the update among the processes of this machine; here it is another.
    batch, accumulated = _said(said, "per_device_train_batch_size"), _said(said, "gradient_accumulation_steps")
    questions = _said(said, "questions_per_update")
    if questions is not None:
        check_count("questions_per_update", questions)
    processes = _processes(cluster.count, questions, processes)
    check_choice("teacher_dtype", recipe.teacher_dtype, NUMBERS)
    if recipe.lora_rank is not None:
        check_count("lora_rank", recipe.lora_rank)
        if not student.pairs:
            raise ForkLeftError(f"lora_targets names no module of the student's layers: {recipe.lora_targets!r}")
    if response is not None and response > budget:
        raise ForkLeftError(f"a response has at most max_new_tokens, {budget}, found {response} in the mean")
    bf16 = said.get("bf16")
    if config.max_steps < 1:
        raise ForkLeftError(
            "the length of the run is not known: expected max_steps, as epochs depend on the data; add it"
        )
    return Setting(
        student=student,
        teacher=teacher,
        family=family,
        cluster=cluster,
        processes=processes,
        server_gpus=0,
        question=Question(prompt, response or budget, budget),
        reading=Reading(settings.rho, settings.view, settings.geometry, settings.attention),
        supervision=settings.supervision,
        routes=routes,
        passes=config.passes,
        questions=questions or batch * accumulated * processes,
        batch=batch,
        rollout_batch=config.rollout_batch_size,
        teacher_batch=recipe.teacher_batch_size,
        sharded=bool(said.get("fsdp")),
        # Every GPU of the table computes in bfloat16, and then it is the default.
        bf16=True if bf16 is None else bool(bf16),
        checkpointing=config.gradient_checkpointing,
        adapter_rank=recipe.lora_rank,
        teacher_bytes=NUMBERS[recipe.teacher_dtype],
        spread=recipe.teacher_device_map is not None,
        answer_budget=config.teacher_max_new_tokens,
        answers_at_once=recipe.answers_concurrency,
        updates=config.max_steps,
    )


def with_server(setting: Setting, *, server_gpus: int | None = None, processes: int | None = None) -> Setting:
    """The same run with the teacher on a server, which takes some of the GPUs.

    server_gpus: default what the processes leave of them, but as many as the teacher needs; engines divide models by
    powers of two. processes: default the most that the others allow. Raises ForkLeftError if there are too few GPUs.
    """
    count, needed = setting.cluster.count, 1
    weights = setting.teacher_bytes * setting.teacher.weights
    # A fifth of the memory is left to keys, values and activations.
    room = 0.8 * setting.cluster.device.memory
    while needed * room < weights:
        needed *= 2
    if server_gpus is not None:
        if server_gpus * room < weights:
            raise ForkLeftError(
                f"{server_gpus} GPU(s) of {setting.cluster.device.memory / GB:.0f} GB do not hold the teacher's "
                f"{weights / GB:.0f} GB and a fifth more for its work; give its server {needed}"
            )
        needed = server_gpus
    if needed >= count:
        raise ForkLeftError(
            f"the teacher's server needs {needed} GPU(s) and training at least one more, found {setting.cluster}; "
            "name more GPUs, or a smaller teacher"
        )
    found = _processes(count - needed, setting.questions, processes)
    if server_gpus is None:
        while 2 * needed <= count - found:
            needed *= 2
    return replace(setting, processes=found, server_gpus=needed)


def _said(said: Mapping[str, Any], name: str) -> Any:
    return said.get(name, default_of(options()[name]))


def _processes(gpus: int, questions: int | None, wanted: int | None) -> int:
    """How many processes train: as wanted, else the most that the GPUs and the questions of an update allow."""
    if wanted is None:
        return max(n for n in range(1, gpus + 1) if questions is None or questions % n == 0)
    if wanted > gpus:
        raise ForkLeftError(f"each process needs a GPU of its own: expected at most {gpus} processes, found {wanted}")
    if questions is not None and questions % wanted:
        fitting = ", ".join(str(n) for n in range(1, gpus + 1) if questions % n == 0)
        raise ForkLeftError(
            f"questions_per_update {questions} cannot be divided among {wanted} processes; choose one of {fitting}"
        )
    return wanted
