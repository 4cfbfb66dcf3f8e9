"""How each phase of an update grows from a response of 256 tokens to one of 1,024, against the growth of its FLOPs.

Qwen3, 4 layers, width 512, 2,048 words; 2 questions (LEFTOPD and GOLD), prompt 64, blocks of 32, 8 passes, a quarter of
the positions. The phases are those that a training run logs: `rollout`; `teacher`, its hidden states; `readout`, which
is the forward of all readouts and losses; `backward`.

The FLOPs are those that the method needs, by formula: every token through the linear layers, every query against the
keys that it may see, every row that is read through the head. Padding, masked keys and other useless work do not count,
so waste that grows with the length shows. First we assert, at the shorter length, that the formula counts the tokens
and rows that we really compute, against PyTorch's own count of matrix products (which leaves out attention on a CPU).
Times are processor time, not wall time: the machine may be shared.

Shapes: V words, E the width of the teacher.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from benchmarks.harness import Result
from benchmarks.models import qwen3, random_ids, random_student
from benchmarks.update import lessons_of, taught, write
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.objective.update import update_loss
from forkleft.teacher import Teacher

VOCABULARY, WIDTH, PROMPT, BLOCK, PASSES = 2048, 512, 64, 32, 8
LENGTHS = (256, 1024)
VERDICTS = [(False, True), (False, False)]
PHASES = ("rollout", "teacher", "readout", "backward")
REPEATS = 3


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


def _block(start: int) -> Work:
    """A block at a response position: its tokens see the prompt and everything up to its end."""
    return Work(BLOCK, BLOCK * (PROMPT + start + BLOCK))


def _clean(blocks: int) -> Work:
    """The prompt, which is a single block, and the first `blocks` blocks of a continuation."""
    return sum((_block(b * BLOCK) for b in range(blocks)), start=Work(PROMPT, PROMPT**2))


def rollout_work(length: int) -> Work:
    """The work of a response: each block is computed in each of its passes and, except the last, once when complete."""
    unresolved = sum(BLOCK - r * BLOCK // PASSES for r in range(PASSES))
    blocks = length // BLOCK
    work = _clean(blocks - 1)
    for b in range(blocks):
        work += sum((_block(b * BLOCK) for _ in range(PASSES)), start=Work(rows=unresolved))
    return work


def teacher_work(lesson: Lesson) -> Work:
    """One causal forward up to the last token before a taught position."""
    if lesson.taught is None:
        return Work()
    length = PROMPT + max(lesson.taught[1])
    return Work(length, length * (length + 1) // 2)


def live_work(lesson: Lesson) -> Work:
    """The prefix readouts, through which gradients flow: clean blocks up to the last that is read, and replicas."""
    work = Work()
    for positions in filter(None, (lesson.selected, lesson.reference_selected)):
        work += _clean(max(positions) // BLOCK)
        for i in positions:
            own = i % BLOCK + 1
            work += Work(own, own * (PROMPT + i + 1), 1)
    return work


def probe_work(lesson: Lesson) -> Work:
    """The all-mask probe, up to the end of the last block that is read."""
    return _clean(max(lesson.selected) // BLOCK + 1) + Work(rows=len(lesson.selected))


def _product_in_place(_: torch.Size, left: torch.Size, right: torch.Size, **__: object) -> int:
    """FLOPs of `table.addmm_(left, right)`, which PyTorch's count does not know."""
    return 2 * left[0] * left[1] * right[1]


class Update:
    """The phases of one update at a response length: how long each takes, and its FLOPs."""

    def __init__(self, length: int) -> None:
        self.student = random_student(VOCABULARY, BLOCK, width=WIDTH)
        self.teacher = Teacher(qwen3(VOCABULARY, width=WIDTH, seed=9), None, stop_ids=self.student.vocabulary.stop_ids)
        self.prompts = random_ids(len(VERDICTS), PROMPT, VOCABULARY)
        self.settings = ObjectiveSettings(budget=length)
        # The teacher checks its head once, here, so that this is not counted.
        self.teacher.hidden([])
        self.lessons: list[Lesson] = []

    def run(self, measured: Callable[[str, Callable[[], object]], object]) -> None:
        """One update, in which `measured(phase, work)` calls each phase and returns its result."""
        self.student.model.zero_grad()
        responses = measured("rollout", lambda: write(self.student, self.prompts, self.settings.budget, passes=PASSES))
        assert all(len(response) == self.settings.budget for response in responses), "a stop id was written"
        planned = lessons_of(self.student, self.prompts, responses, VERDICTS, self.settings)
        self.lessons = measured("teacher", lambda: taught(self.teacher, planned))
        weight_VE = self.teacher.head_weight
        loss, _ = measured(
            "readout",
            lambda: update_loss(
                self.student, self.lessons, self.settings, batch_size=len(VERDICTS), teacher_weight_VE=weight_VE
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

    def flops(self) -> dict[str, tuple[int, int]]:
        """What each phase of the last update needs: FLOPs of its matrix products, and of its attention."""
        rollout = sum((rollout_work(self.settings.budget) for _ in self.lessons), start=Work())
        teacher = sum(map(teacher_work, self.lessons), start=Work())
        live, probe = (sum(map(work, self.lessons), start=Work()) for work in (live_work, probe_work))
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
            assert error < 1e-4, f"{phase}: computed {counted[phase]:,} FLOPs, asked for {products:,}"


def run() -> list[Result]:
    """The rows of the growth of the update."""
    short, long = (Update(length) for length in LENGTHS)
    short.check_products()
    repeats = [(short.seconds(), long.seconds()) for _ in range(REPEATS)]
    before, after = short.flops(), long.flops()
    results = []
    for phase in PHASES:
        more = sum(after[phase]) / sum(before[phase])
        growth = [slow[phase] / fast[phase] / more for fast, slow in repeats]
        name = f"growth: {phase}, {LENGTHS[0]} to {LENGTHS[1]} tokens, time / FLOPs"
        results.append(Result(name, statistics.median(growth), "<= 1.2", (min(growth), max(growth))))
    return results
