"""How time and memory of an update grow with the response, the questions, the positions, the words, passes and blocks.

Qwen3, 4 layers, width 128; at the start 2,048 words, 2 questions (LEFTOPD and GOLD), prompt 64, response 256, blocks of
32, 4 passes, a quarter of the positions. One of these changes at a time. Fitted to the points is an exponent: 1 means
twice as much for twice the size. Beside that of the time stands that of the FLOPs, beside that of the memory that of
the tokens which gradients flow through: what the method itself must grow by. A row of the table is how much faster the
time of the whole update grows than its FLOPs.

The FLOPs are those that the method needs, by formula: every token through the linear layers, every query against the
keys that it may see, every row that is read through the head. Padding, masked keys and other useless work do not count,
so waste that grows shows. First we assert that the formula counts the tokens and rows that we really compute, against
PyTorch's own count of matrix products (which leaves out attention on a CPU). Times are processor time, not wall time:
the machine may be shared. Memory is what PyTorch's operations hold at most, beyond the weights.

    python -m benchmarks.growth --output growth.json --plot growth.svg

Shapes: V words, E the width of the teacher.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from benchmarks.harness import Result
from benchmarks.memory import LiveBytes
from benchmarks.models import qwen3, random_ids, random_student
from benchmarks.update import lessons_of, taught, write
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.objective.update import update_loss
from forkleft.teacher import Teacher

PROMPT, REPEATS = 64, 3
PHASES = ("rollout", "teacher", "readout", "backward")


@dataclass(frozen=True)
class Setting:
    """What decides the cost of an update of our model. positions: the share that is selected."""

    response: int = 256
    questions: int = 2
    positions: float = 0.25
    words: int = 2048
    passes: int = 4
    block: int = 32


# So many values of each are enough for the table; the plot has all.
SHORT = 3
AXES: dict[str, Sequence[float]] = {
    "response": (128, 256, 512, 1024),
    "questions": (2, 4, 8, 16),
    "positions": (0.125, 0.25, 0.5, 1.0),
    "words": (2048, 8192, 32_768, 131_072),
    "passes": (4, 8, 16, 32),
    "block": (8, 16, 32, 64),
}


@dataclass(frozen=True)
class Work:
    """Tokens through the layers, (query, key) pairs in each layer, rows through the head.

    The feed-forward network of the student's last layer is needed only for rows that are read.
    """

    tokens: int = 0
    pairs: int = 0
    rows: int = 0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.tokens + other.tokens, self.pairs + other.pairs, self.rows + other.rows)

    def products(self, model: PreTrainedModel, *, whole: bool = False) -> int:
        """FLOPs of the linear layers and the head. whole: also the last layer is computed for all tokens."""
        last = 0 if whole else _linear(model.base_model.layers[-1].mlp)
        linear = _linear(model.base_model) - last
        return 2 * self.tokens * linear + 2 * self.rows * (last + model.get_output_embeddings().weight.numel())

    def attention(self, model: PreTrainedModel) -> int:
        """FLOPs of queries times keys and weights times values."""
        config = model.config
        return 4 * self.pairs * config.num_hidden_layers * config.num_attention_heads * config.head_dim


def _linear(module: torch.nn.Module) -> int:
    """The weights of all linear layers in it."""
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Linear))


@dataclass(frozen=True)
class Needed:
    """The work that the method needs with blocks of one size."""

    block: int

    def one(self, start: int) -> Work:
        """A block at a response position: its tokens see the prompt and everything up to its end."""
        return Work(self.block, self.block * (PROMPT + start + self.block))

    def clean(self, blocks: int) -> Work:
        """The prompt, which is a single block, and the first `blocks` blocks of a continuation."""
        return sum((self.one(b * self.block) for b in range(blocks)), start=Work(PROMPT, PROMPT**2))

    def rollout(self, length: int, passes: int) -> Work:
        """A response: each block is computed in each of its passes and, except the last, once when complete."""
        unresolved = sum(self.block - r * self.block // passes for r in range(passes))
        blocks = length // self.block
        work = self.clean(blocks - 1)
        for b in range(blocks):
            work += sum((self.one(b * self.block) for _ in range(passes)), start=Work(rows=unresolved))
        return work

    def teacher(self, lesson: Lesson) -> Work:
        """One causal forward up to the last token before a taught position."""
        if lesson.taught is None:
            return Work()
        length = PROMPT + max(lesson.taught[1])
        return Work(length, length * (length + 1) // 2)

    def live(self, lesson: Lesson) -> Work:
        """The prefix readouts, through which gradients flow: clean blocks up to the last that is read, and replicas."""
        work = Work()
        for positions in filter(None, (lesson.selected, lesson.reference_selected)):
            work += self.clean(max(positions) // self.block)
            for i in positions:
                own = i % self.block + 1
                work += Work(own, own * (PROMPT + i + 1), 1)
        return work

    def probe(self, lesson: Lesson) -> Work:
        """The all-mask probe, up to the end of the last block that is read."""
        return self.clean(max(lesson.selected) // self.block + 1) + Work(rows=len(lesson.selected))


def _product_in_place(_: torch.Size, left: torch.Size, right: torch.Size, **__: object) -> int:
    """FLOPs of `table.addmm_(left, right)`, which PyTorch's count does not know."""
    return 2 * left[0] * left[1] * right[1]


class Update:
    """The phases of one update at a setting: how long each takes, its FLOPs, and the memory of all."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.needed = setting, Needed(setting.block)
        self.student = random_student(setting.words, setting.block)
        self.teacher = Teacher(qwen3(setting.words, seed=9), None, stop_ids=self.student.vocabulary.stop_ids)
        self.prompts = random_ids(setting.questions, PROMPT, setting.words)
        self.verdicts = [(False, True), (False, False)] * (setting.questions // 2)
        self.settings = ObjectiveSettings(budget=setting.response, rho=setting.positions)
        # The teacher checks its head once, here, so that this is not counted.
        self.teacher.hidden([])
        self.lessons: list[Lesson] = []

    def run(self, measured: Callable[[str, Callable[[], object]], object]) -> None:
        """One update, in which `measured(phase, work)` calls each phase and returns its result."""
        self.student.model.zero_grad()
        budget, passes = self.settings.budget, self.setting.passes
        responses = measured("rollout", lambda: write(self.student, self.prompts, budget, passes=passes))
        assert all(len(response) == budget for response in responses), "a stop id was written"
        planned = lessons_of(self.student, self.prompts, responses, self.verdicts, self.settings)
        self.lessons = measured("teacher", lambda: taught(self.teacher, planned))
        weight_VE = self.teacher.head_weight
        loss, _ = measured(
            "readout",
            lambda: update_loss(
                self.student, self.lessons, self.settings, batch_size=len(self.lessons), teacher_weight_VE=weight_VE
            ),
        )
        measured("backward", loss.backward)

    def seconds(self) -> dict[str, float]:
        """The processor time of each phase."""
        found = {}

        def measured(phase: str, work: Callable[[], object]) -> object:
            start = time.process_time()
            result = work()
            found[phase] = time.process_time() - start
            return result

        self.run(measured)
        return found

    def memory(self) -> int:
        """Bytes that the update holds at most, beyond the weights."""
        weights = [*self.student.model.parameters(), *self.teacher.model.parameters()]
        with LiveBytes(*weights) as live:
            self.run(lambda phase, work: work())
        return live.peak

    def flops(self) -> dict[str, tuple[int, int]]:
        """What each phase of the last update needs: FLOPs of its matrix products, and of its attention."""
        needed, setting = self.needed, self.setting
        rollout = sum((needed.rollout(setting.response, setting.passes) for _ in self.lessons), start=Work())
        teacher = sum(map(needed.teacher, self.lessons), start=Work())
        live, probe = (sum(map(work, self.lessons), start=Work()) for work in (needed.live, needed.probe))
        asked = Work(rows=sum(len(lesson.taught[1]) for lesson in self.lessons if lesson.taught))
        # The backward has two products for each of the forward, and projects the rows once more. Attention, too, is
        # computed once more: five products for two.
        again = Work(rows=live.rows) + asked
        model = self.student.model
        readout = live + probe
        # The head alone: of the teacher's rows, and of all in the backward.
        asked_head, again_head = asked.products(model, whole=True), again.products(model, whole=True)
        return {
            "rollout": (rollout.products(model), rollout.attention(model)),
            "teacher": (teacher.products(model, whole=True), teacher.attention(model)),
            "readout": (readout.products(model) + asked_head, readout.attention(model)),
            "backward": (2 * live.products(model) + again_head, 5 * live.attention(model) // 2),
        }

    def live_tokens(self) -> int:
        """Tokens of the last update that gradients flow through."""
        return sum((self.needed.live(lesson) for lesson in self.lessons), start=Work()).tokens

    def check_products(self) -> None:
        """Assert that an update computes exactly the matrix products that it needs."""
        counted = {}

        def measured(phase: str, work: Callable[[], object]) -> object:
            with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: _product_in_place}) as counter:
                result = work()
            counted[phase] = counter.get_total_flops()
            return result

        self.run(measured)
        for phase, (products, _) in self.flops().items():
            # The losses leave out the last row of the head, which is the mask's.
            error = abs(counted[phase] / products - 1)
            assert error < 1e-3, f"{phase}: computed {counted[phase]:,} FLOPs, asked for {products:,}"


@dataclass(frozen=True)
class Point:
    """What was measured at one value of an axis: seconds by phase (medians), needed FLOPs, bytes, and live tokens."""

    value: float
    seconds: dict[str, float]
    flops: int
    bytes: int
    live: int


def measure(axis: str, values: Sequence[float], *, memory: bool) -> list[list[Point]]:
    """All points of an axis in each repeat, which visit the points in turn. memory: counted, too, which takes long."""
    updates = [Update(replace(Setting(), **{axis: value})) for value in values]
    held_bytes = [update.memory() if memory else 0 for update in updates]
    return [
        [
            Point(value, update.seconds(), sum(map(sum, update.flops().values())), held, update.live_tokens())
            for value, update, held in zip(values, updates, held_bytes, strict=True)
        ]
        for _ in range(REPEATS)
    ]


def exponent(points: Sequence[Point], figure: Callable[[Point], float]) -> float:
    """The slope of a figure against the value of the axis, both as logarithms, by least squares."""
    x = [math.log(point.value) for point in points]
    y = [math.log(figure(point)) for point in points]
    return statistics.linear_regression(x, y).slope


def _time(point: Point) -> float:
    return sum(point.seconds.values())


def run() -> list[Result]:
    """The rows of the growth of the update."""
    Update(Setting(response=128)).check_products()
    Update(Setting(response=128, block=8)).check_products()
    results = []
    for axis, values in AXES.items():
        repeats = measure(axis, values[:SHORT], memory=False)
        excess = [exponent(points, _time) - exponent(points, lambda point: point.flops) for points in repeats]
        name = f"growth: {axis}, exponent of the time - that of the FLOPs"
        results.append(Result(name, statistics.median(excess), "<= 0.1", (min(excess), max(excess)), unit=""))
    return results


def main() -> None:
    """Print a table of exponents; write the points and the plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="a JSON file for the points")
    parser.add_argument("--plot", type=Path, help="a file for the figure")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, list[Point]] = {}
    print("| axis | time | FLOPs | memory | live tokens | " + " | ".join(PHASES) + " |")
    print("| --- |" + " ---: |" * (4 + len(PHASES)))
    for axis, values in AXES.items():
        repeats = measure(axis, values, memory=True)
        found[axis] = [
            replace(
                column[0],
                seconds={name: statistics.median(point.seconds[name] for point in column) for name in PHASES},
            )
            for column in zip(*repeats, strict=True)
        ]
        figures = (_time, lambda point: point.flops, lambda point: point.bytes, lambda point: point.live)
        phases = [lambda point, name=name: point.seconds[name] for name in PHASES]
        slopes = [exponent(found[axis], figure) for figure in (*figures, *phases)]
        span = f"{values[0]:g} to {values[-1]:g}"
        print(f"| {axis}, {span} | " + " | ".join(f"{slope:.2f}" for slope in slopes) + " |", flush=True)
    if options.output:
        page = {axis: [asdict(point) for point in points] for axis, points in found.items()}
        options.output.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")
    if options.plot:
        plot(found, options.plot)


def plot(found: dict[str, list[Point]], path: Path) -> None:
    """Time, FLOPs, memory and live tokens of each axis, relative to its first point."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), layout="constrained")
    places = figure.subplots(2, 3, sharey=True)
    curves = {
        "time": (_time, "#1f4e79", "o-"),
        "FLOPs needed": (lambda point: point.flops, "#1f4e79", ":"),
        "memory": (lambda point: point.bytes, "#c0504d", "s-"),
        "tokens with gradients": (lambda point: point.live, "#c0504d", ":"),
    }
    for place, (axis, points) in zip(places.flat, found.items(), strict=True):
        for name, (value, colour, style) in curves.items():
            first = value(points[0])
            x, y = [point.value for point in points], [value(point) / first for point in points]
            place.plot(x, y, style, color=colour, label=name, markersize=4)
        place.set(xscale="log", yscale="log", title=axis)
        place.set_xticks([point.value for point in points], [f"{point.value:g}" for point in points])
        place.set_xticks([], minor=True)
        place.grid(alpha=0.3)
    for place in places[:, 0]:
        place.set_ylabel("relative to the first")
    places[0, 0].legend(frameon=False, fontsize=8)
    figure.savefig(path)


if __name__ == "__main__":
    main()
