"""How long the phases of an update take, from FLOPs, bytes and the figures of a device.

A forward takes the longest of three times: its FLOPs, the bytes that it reads from memory, and the time in which Python
starts its kernels. Processes work in step; what they send each other is added, as if nothing of it were hidden behind
other work. These are estimates: the shares of a device's figures that a run reaches are assumptions (`devices.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forkleft.objective.routes import Route
from forkleft.objective.supervision import terms_of
from forkleft.scale import work
from forkleft.scale.memory import folded_bytes
from forkleft.scale.setting import Setting
from forkleft.scale.shapes import Shape
from forkleft.scale.work import Work

_DAY, _HOUR = 86400.0, 3600.0
# In the mean over the weights of an expert: gate and up, two thirds of them, have one adapter of twice the rank.
_FOLDED_RANKS = 5 / 3
# How often a forward adds adapters to experts: PyTorch tries what PEFT registers for it once, and then uses it.
_FOLDS = 2


@dataclass(frozen=True)
class Time:
    """Seconds of an update by phase, and of the teacher's answers before the first; how many updates and devices."""

    phases: Mapping[str, float]
    updates: int
    answers: float
    devices: int

    @property
    def update(self) -> float:
        """Seconds of an update."""
        return sum(self.phases.values())

    @property
    def days(self) -> float:
        """Days of all updates."""
        return self.update * self.updates / _DAY

    @property
    def answer_hours(self) -> float:
        """Hours in which the teacher answers the questions of all updates, ahead of time."""
        return self.answers / _HOUR

    @property
    def device_hours(self) -> float:
        """Hours of the run, with the answers before it, times the GPUs that it occupies."""
        return (self.update * self.updates + self.answers) * self.devices / _HOUR


@dataclass(frozen=True)
class Flops:
    """FLOPs of one process in an update. teacher: of the process, or of its part of the server."""

    rollout: float
    teacher: float
    readout: float
    backward: float


def flops_of(setting: Setting) -> Flops:
    """The FLOPs of an update, at the expected lengths and routes."""
    student, teacher, share = setting.student, setting.teacher, setting.share
    live, probed, taught = (done * share for done in expected_work(setting))
    head = 2 * student.head
    # The rows of the teacher go through its head in the loss, in both directions.
    teacher_head = 2 * taught.rows * teacher.head
    readout = live.flops(student) + probed.flops(student) + teacher_head
    written = work.rollout(setting.family, setting.question, setting.passes) * share
    rollout = written.flops(student)
    # Two products for each of the forward. Attention is computed once more for it (five products for two), the head
    # projects its rows once more, and checkpointing computes the layers again.
    products = live.product_flops(student)
    attention = live.layer_flops(student) - products
    backward = 2 * products + 2.5 * attention + 3 * head * live.rows + teacher_head
    if setting.checkpointing:
        backward += live.layer_flops(student)
    if setting.adapter_rank is not None:
        # Only the gradients of the inputs are needed: one product for each of the forward. To experts the adapters are
        # added before their product, so that its weights have gradients, which become those of the adapters.
        frozen = products
        if student.folded:
            frozen -= 2 * (live.tokens * student.layers - live.unread) * student.feed_forward
        backward -= frozen + head * live.rows
        rollout += _adapter_flops(setting, written.tokens, _FOLDS * rollout_forwards(setting))
        read = readouts_of(setting) * setting.accumulated
        readout += _adapter_flops(setting, live.tokens + probed.tokens, _FOLDS * read)
        # Two products for each of the forward, as above; the probe has no backward.
        folds, again = 2 * (read - setting.accumulated), int(setting.checkpointing)
        backward += _adapter_flops(setting, (2 + again) * live.tokens, (1 + again) * folds)
    return Flops(rollout, taught.layer_flops(teacher), readout, backward)


def _adapter_flops(setting: Setting, tokens: float, folds: int) -> float:
    """FLOPs of the adapters themselves: those of linear layers meet tokens, those of experts are added to weights."""
    student, rank = setting.student, setting.adapter_rank or 0
    return 2 * rank * (tokens * (student.pairs - student.expert_pairs) + folds * _FOLDED_RANKS * student.folded)


def readouts_of(setting: Setting) -> int:
    """Forwards in which a micro-batch is read: under its view or views, and the probe, which is one of its own."""
    return 2 + (setting.reading.view != "prefix")


def rollout_forwards(setting: Setting) -> int:
    """Forwards in which a process writes its responses of an update."""
    passes = sum(1 for _ in work.forwards(setting.family, setting.question, setting.passes))
    return -(-setting.share // setting.written) * passes


def expected_work(setting: Setting) -> tuple[Work, Work, Work]:
    """Of one question in the mean: readouts with gradients, the probe, and the teacher."""
    family, question, reading = setting.family, setting.question, setting.reading
    live, kept, asked = Work(), 0.0, 0.0
    for route, share in setting.routes.items():
        views = work.views_of(route, setting.supervision, reading.view)
        live += sum((work.readout(family, question, reading, view) for view in views), start=Work()) * share
        kept += share if views else 0.0
        asked += share if is_taught(route, setting) else 0.0
    return live, work.probe(family, question, reading) * kept, work.teacher(question, reading.rho) * asked


def is_taught(route: Route, setting: Setting) -> bool:
    """Whether a question on this route needs the teacher's hidden states."""
    return bool({"teacher", "mixture"} & set(terms_of(route, setting.supervision)))


def time_of(setting: Setting) -> Time:
    """The seconds of an update by phase, and of the run."""
    done, student = flops_of(setting), setting.student
    device, cluster = setting.cluster.device, setting.cluster
    speed = device.flops * device.compute
    steps = setting.accumulated * student.layers * device.launch
    # The backward starts about twice as many kernels as a forward.
    readouts = readouts_of(setting)
    backward = max(done.backward / speed, (2 + setting.checkpointing) * steps)
    # AdamW reads weight, gradient and two moments, and writes all but the gradient; clipping reads and writes that.
    divided = setting.processes if setting.sharded else 1
    moved = 36 * setting.trained / divided
    phases = {
        "rollout": _rollout_seconds(setting),
        "teacher": _teacher_seconds(setting, done.teacher),
        "readout": max(done.readout / speed, readouts * steps),
        "backward": backward,
        "optimiser": moved / (device.bandwidth * device.streaming),
        "sending": _sent(setting, readouts) / (cluster.link * device.streaming),
    }
    return Time(phases, setting.updates, _answer_seconds(setting), setting.gpus)


def _forward(shape: Shape, work: Work, setting: Setting, *, read: float) -> float:
    """Seconds of a forward. read: bytes from memory."""
    device = setting.cluster.device
    computing = work.flops(shape) / (device.flops * device.compute)
    return max(computing, read / (device.bandwidth * device.streaming), shape.layers * device.launch)


def _rollout_seconds(setting: Setting) -> float:
    """Rows that start together stay together, and finish together."""
    student, number = setting.student, 2 if setting.bf16 else 4
    # All experts: the tokens of a forward visit most of them. Those with adapters are read and written for each sum.
    weights = number * (student.layers * student.layer + student.head)
    if setting.adapter_rank is not None:
        weights += 2 * _FOLDS * folded_bytes(setting) * student.folded
    seconds, left = 0.0, setting.share
    while left:
        rows = min(setting.written, left)
        left -= rows
        for forward in work.forwards(setting.family, setting.question, setting.passes):
            # The keys of a forward, as far as its last token sees them.
            seen = rows * forward.pairs / forward.tokens * student.cache(number)
            seconds += _forward(student, forward * rows, setting, read=weights + seen)
    return seconds


def _teacher_seconds(setting: Setting, done: float) -> float:
    """The teacher's pass: of the process, or on a server, of all processes together on its GPUs.

    The server works while the student is read, but the readout needs its answer: nothing is taken off for that.
    """
    device, teacher = setting.cluster.device, setting.teacher
    workers = setting.processes / setting.server_gpus if setting.served else 1.0
    batches = -(-setting.share // setting.asked)
    return max(workers * done / (device.flops * device.compute), batches * teacher.layers * device.launch)


def _answer_seconds(setting: Setting) -> float:
    """All questions of the run, answered once, each with the whole budget.

    In memory, every process answers a batch at a time. A server answers what all processes wait for at the same time,
    and starts its kernels in advance, so that Python does not count. Each token reads all weights: a batch visits all
    experts.
    """
    device, teacher, number = setting.cluster.device, setting.teacher, setting.teacher_bytes
    rows = setting.processes * setting.answers_at_once if setting.served else setting.teacher_batch
    middle = setting.question.prompt + setting.answer_budget / 2
    one = Work(rows, rows * middle, rows)
    read = number * teacher.weights + rows * middle * teacher.cache(number)
    asked = setting.updates * setting.questions
    if setting.served:
        busy = max(one.flops(teacher) / (device.flops * device.compute), read / (device.bandwidth * device.streaming))
        return asked / rows * setting.answer_budget * busy / setting.server_gpus
    return asked / rows / setting.processes * setting.answer_budget * _forward(teacher, one, setting, read=read)


def _sent(setting: Setting, readouts: int) -> float:
    """Bytes that a process sends in an update.

    DDP adds up gradients in float32, once in an update, which sends them twice. FSDP gathers the weights for the
    rollout, for every forward and backward, and divides the gradients after each backward.
    """
    student, others = setting.student, (setting.processes - 1) / setting.processes
    if not setting.sharded:
        return 2 * others * 4 * setting.trained
    number = 2 if setting.bf16 else 4
    # Checkpointing gathers once more.
    gathered = 1 + setting.accumulated * (readouts + 1 + setting.checkpointing)
    return others * number * (gathered * student.weights + setting.accumulated * setting.trained)
