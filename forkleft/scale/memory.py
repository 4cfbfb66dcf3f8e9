"""What one GPU must hold, part by part, in bytes.

Some parts stay (weights, optimiser, teacher), others belong to a phase of an update: the rollout, the teacher's pass,
and the readouts with their backward. The fullest moment is what stays and the largest phase.

The activations are those that PyTorch keeps for the backward of the stock layers; the tests count them operation by
operation. They are planned for the worst batch: every question on the route that reads most, with a response and a
reference of the whole budget.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from forkleft.objective.head import tile_shape
from forkleft.objective.routes import Route
from forkleft.rollout.sampler import TABLE_NUMBERS
from forkleft.scale import work
from forkleft.scale.setting import Setting
from forkleft.scale.shapes import Shape
from forkleft.scale.work import Work

# How the student computes. `autocast`: float32 weights, cast for every product (DDP with bf16). `bfloat16`: weights
# that FSDP2 gathers in bfloat16, so that everything is.
Precision = Literal["float32", "autocast", "bfloat16"]

# How many tiles of logits exist at once in float32 (`objective/head.py`): logits and exponentials in the forward, one
# in the backward, where bfloat16 needs a copy of half the size. A teacher has one more (32 MB), which is not counted:
# the route that reads most asks no teacher.
_FORWARD_TILES, _BACKWARD_TILES, _CAST_TILES = 2, 1, 0.5
# Tables of the words in float32, beside the product of the head itself: logits and probabilities (`rollout/orders.py`).
_LOGIT_TABLES = 2


@dataclass(frozen=True)
class Memory:
    """Bytes by part: those that stay, and those of each phase."""

    lasting: Mapping[str, float]
    phases: Mapping[str, Mapping[str, float]]

    @property
    def fullest(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda name: sum(self.phases[name].values()))

    @property
    def peak(self) -> float:
        """Bytes at the fullest moment."""
        return sum(self.lasting.values()) + sum(self.phases[self.fullest].values())


def memory_of(setting: Setting) -> Memory:
    """What a GPU that trains must hold at most."""
    teacher = setting.teacher
    divided = setting.processes if setting.sharded else 1
    lasting = {
        # Trained in float32, whatever the products are in: an update of 1e-6 is lost in bfloat16.
        "student": 4 * _held(setting) / divided,
        "gradients": 4 * setting.trained / divided,
        # DDP sends gradients in buckets of its own, which are as large as the gradients.
        "buckets": 4 * setting.trained if not setting.sharded and setting.processes > 1 else 0.0,
        "optimiser": 8 * setting.trained / divided,
    }
    if setting.served:
        lasting["teacher's head"] = setting.teacher_bytes * teacher.head
    else:
        lasting["teacher"] = setting.teacher_bytes * teacher.weights * _teachers(setting)
    phases = {"rollout": rollout_memory(setting), "update": update_memory(setting)}
    if not setting.served:
        phases["teacher"] = teacher_memory(setting)
    return Memory(lasting, phases)


def precision_of(setting: Setting) -> Precision:
    """How the student computes."""
    if not setting.bf16:
        return "float32"
    return "bfloat16" if setting.sharded else "autocast"


def rollout_memory(setting: Setting) -> dict[str, float]:
    """While the student writes: whole weights, keys and values, and the logits of a pass."""
    student, question, family = setting.student, setting.longest, setting.family
    number = 2 if setting.bf16 else 4
    # Autocast leaves rotated keys in float32; values are in bfloat16.
    cached = 3 if precision_of(setting) == "autocast" else number
    rows = setting.written
    columns = question.prompt + question.budget
    window = family.sub_block or family.block_size
    # So many positions are looked at in one piece.
    at_once = max(1, TABLE_NUMBERS // student.words)
    tokens = columns if family.attention == "full" else min(columns, question.prompt + 2 * family.block_size)
    return {
        "copies of weights": _whole_copy(setting),
        "experts with adapters": _folded_layer(setting),
        "keys and values": 0.0 if family.attention == "full" else rows * columns * student.cache(cached),
        "logits": min(rows * window, at_once) * student.words * (number % 4 + 4 * _LOGIT_TABLES),
        "activations": rows * tokens * passing(student, number),
    }


def teacher_memory(setting: Setting) -> dict[str, float]:
    """While the teacher reads the responses, or answers a question that it was not asked ahead of time."""
    teacher, number, question = setting.teacher, setting.teacher_bytes, setting.longest
    reading = setting.asked * (question.prompt + question.budget) * passing(teacher, number)
    answering = setting.asked * (question.prompt + setting.answer_budget) * teacher.cache(number)
    name = "activations" if reading > answering else "keys and values"
    return {name: max(reading, answering)}


def update_memory(setting: Setting) -> dict[str, float]:
    """While the student is read and learns: activations of the packed readout, and the head in tiles."""
    student, precision = setting.student, precision_of(setting)
    live, probed = live_work(setting) * setting.at_once, work.probe(setting.family, setting.longest, setting.reading)
    how: dict[str, bool] = {"checkpointing": setting.checkpointing, "frozen": setting.adapter_rank is not None}
    kept = kept_by_layers(live, student, precision, **how)
    backward = live.tokens * again(student, precision, **how)
    down, gate_up = _expert_gradients(setting)
    late = backward + gate_up
    if setting.checkpointing:
        # By then these activations are gone.
        late -= live.tokens * kept_behind_attention(student, precision, frozen=how["frozen"])
    # One after another: the probe, the backward of the layers, and the head in both directions.
    passing_by = max(
        backward + down, late, setting.at_once * probed.tokens * passing(student, 2 if setting.bf16 else 4)
    )
    head = head_memory(student, live.rows, precision, trained=setting.adapter_rank is None)
    copies = _whole_copy(setting)
    if setting.sharded:
        # A layer that computes, the next one on its way, the gradients of a layer, and what is outside of the layers.
        number = 2 if setting.bf16 else 4
        copies = min(copies, number * (2 * student.outside + 3 * student.layer))
    # The sums of experts and adapters are kept for the backward, or made again.
    sums = _folded_layer(setting) * (1 if setting.checkpointing else student.layers)
    parts = {"copies of weights": copies, "experts with adapters": sums}
    parts |= {"activations": kept + passing_by, "head": 0.0}
    if head > passing_by:
        parts |= {"activations": kept, "head": head}
    return parts


def live_work(setting: Setting) -> Work:
    """The readouts of the question that reads most, through which gradients flow."""
    found = []
    for route in Route:
        views = work.views_of(route, setting.supervision, setting.reading.view)
        readouts = (work.readout(setting.family, setting.longest, setting.reading, view) for view in views)
        found.append(sum(readouts, start=Work()))
    return max(found, key=lambda done: done.tokens)


def kept_by_layers(
    live: Work, shape: Shape, precision: Precision, *, checkpointing: bool, frozen: bool = False
) -> float:
    """Bytes that stay from the forward to the backward. frozen: only adapters are trained."""
    width = shape.width
    # The last norm: its input, the normalised input, and its output; and the hidden states that the losses read.
    end = (live.tokens - live.unread) * (8 * width if precision == "bfloat16" else 12 * width)
    if checkpointing:
        return live.tokens * shape.layers * width * (2 if precision == "bfloat16" else 4) + end
    layers = live.tokens * shape.layers * kept_by_layer(shape, precision, frozen=frozen)
    return layers - live.unread * kept_behind_attention(shape, precision, frozen=frozen) + end


def kept_behind_attention(shape: Shape, precision: Precision, *, frozen: bool = False) -> float:
    """Bytes of a token that one layer keeps of its second norm and its feed-forward part (see `kept_by_layer`)."""
    if precision == "float32":
        return 4 * ((2 if frozen else 3) * shape.width + _feed_forward(shape))
    if precision == "bfloat16":
        return 8 * shape.width + 2 * _feed_forward(shape)
    return 12 * shape.width + (4 if shape.experts else 2) * _feed_forward(shape)


def kept_by_layer(shape: Shape, precision: Precision, *, frozen: bool = False) -> float:
    """Bytes of a token that one layer keeps for its backward. frozen: only adapters are trained.

    In float32, each of the two norms keeps its input, the normalised input and its output; queries and keys their
    projection and normalised form, where they are normed, and the rotated one; values; the output of attention twice,
    since the heads change places; the feed-forward layer its gate, the activated gate, the other half and their
    product. In bfloat16 the norms compute in float32, on a copy. Under autocast they are in float32 altogether, and
    each of the five products that follow them makes a copy of its own. Norms that are not trained do not keep the
    normalised input; except in float32, what adapters keep instead is about as much.
    """
    width, queries, keys = shape.width, shape.queries, shape.keys
    if precision == "float32":
        of_heads = (3 - frozen if shape.normed else 1) * (queries + keys) + keys + 2 * queries
        return 4 * ((4 if frozen else 6) * width + of_heads + _feed_forward(shape))
    if precision == "bfloat16":
        of_heads = (8 if shape.normed else 2) * (queries + keys) + 2 * keys + 4 * queries
        return 16 * width + of_heads + 2 * _feed_forward(shape)
    # Rotated queries and keys, and with them the output of attention, are in float32. Products of experts are not cast.
    of_heads = (10 if shape.normed else 4) * (queries + keys) + 2 * keys + 6 * queries
    return 26 * width + of_heads + (4 if shape.experts else 2) * _feed_forward(shape)


def _feed_forward(shape: Shape) -> int:
    """Numbers of a token that the feed-forward layer keeps; experts also keep their input and their output."""
    return shape.experts * (2 * shape.width + 4 * shape.inner) if shape.experts else 4 * shape.inner


def again(shape: Shape, precision: Precision, *, checkpointing: bool, frozen: bool = False) -> float:
    """Bytes of a token that exist while the backward passes a layer: gradients, and what checkpointing recomputes."""
    number = 4 if precision == "float32" else 2
    inner = max(1, shape.experts) * shape.inner
    gradients = number * (2 * inner + 2 * shape.width)
    return gradients + (kept_by_layer(shape, precision, frozen=frozen) if checkpointing else 0)


def passing(shape: Shape, number: int) -> float:
    """Bytes of a token in a layer without gradients: the stream, its norm, and the larger of two: queries and keys with
    the terms of their rotation, or the feed-forward layer.
    """
    inner = shape.experts * (shape.width + 3 * shape.inner) if shape.experts else 3 * shape.inner
    return number * (3 * shape.width + max(4 * shape.queries + 2 * shape.keys, inner))


def head_memory(shape: Shape, rows: float, precision: Precision, *, trained: bool) -> float:
    """Bytes that the head takes at most, in the forward or the backward of its losses (`objective/head.py`)."""
    rows_of_tile, words_of_tile = tile_shape(math.ceil(rows), shape.words, "cuda")
    tile = 4 * rows_of_tile * words_of_tile
    tiles = _BACKWARD_TILES + (0 if precision == "float32" else _CAST_TILES)
    # Its gradient is summed in float32, and cast at the end if the head is in bfloat16.
    gradient = (6 if precision == "bfloat16" else 4) * shape.head if trained else 0
    return max(_FORWARD_TILES * tile, tiles * tile + gradient)


def _held(setting: Setting) -> int:
    """All weights that a process holds: the student's, and its adapters."""
    adapters = 0 if setting.adapter_rank is None else setting.trained
    return setting.student.weights + adapters


def _teachers(setting: Setting) -> float:
    """The teachers of a node on each of its GPUs: each process has its own."""
    if not setting.spread:
        return 1.0
    per_node = -(-setting.processes // setting.cluster.nodes)
    return per_node / setting.cluster.per_node


def folded_bytes(setting: Setting) -> int:
    """Bytes of a weight in the sums of experts and their adapters, which autocast leaves as they are."""
    return 2 if precision_of(setting) == "bfloat16" else 4


def _folded_layer(setting: Setting) -> float:
    """Bytes of the sums of experts and their adapters that one layer makes in every forward."""
    student = setting.student
    return 0.0 if setting.adapter_rank is None else folded_bytes(setting) * student.folded / student.layers


def _expert_gradients(setting: Setting) -> tuple[float, float]:
    """Bytes of the gradients of a layer's experts before they are added to others: of down, then of gate and up.

    Down is a third of the weights. Gradients of sums with adapters are scaled into a second table; at the later moment
    the sum of down is gone. FSDP's gradients of a layer are counted with its copies of weights.
    """
    student = setting.student
    if setting.adapter_rank is not None:
        return _folded_layer(setting) / 3, _folded_layer(setting)
    whole = 0.0 if setting.sharded else 4 * student.stacked / student.layers
    return whole / 3, whole * 2 / 3


def _whole_copy(setting: Setting) -> float:
    """The weights as the products use them: gathered from all processes, or cast to bfloat16 by autocast."""
    if setting.sharded:
        return (2 if setting.bf16 else 4) * setting.student.weights
    # Products of experts are not cast.
    return 2.0 * (setting.student.weights - setting.student.stacked) if setting.bf16 else 0.0
