"""A whole update against the method written plainly: rollout, teacher, readouts, losses, backward.

Qwen3, 4 layers, width 128, 8,192 words; 8 questions, prompt 64, response 128, blocks of 32, 32 passes, a quarter of
the positions; a random model as teacher, scripted verdicts. The plain side encodes the whole canvas anew in every pass,
reads every selected position in a forward of its own, and holds the logits of all positions of a question. Where being
efficient is easy, it is: the batch is written together, the teacher and the all-mask probe take one forward for each
question, and the head is applied once for each question, to the rows that are read.

The plain side takes long. So it runs once, between three runs of ours, and its rollout with full logits is timed on
the first block alone: every pass encodes the same canvas, so each block takes as long. Processor time, not wall time:
in that time a shared machine changes more than it does between short repeats.

Shapes: R questions, L columns of the canvas, S selected positions of a question, V words.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from benchmarks.harness import Result
from benchmarks.models import plain, qwen3, random_ids, random_student
from benchmarks.rollout import commit_highest_entropy
from forkleft.objective.supervision import Lesson, ObjectiveSettings, plan
from forkleft.objective.update import update_loss
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.students import Student
from forkleft.teacher import Teacher

VOCABULARY, PROMPT, LENGTH, BLOCK = 8192, 64, 128, 32
# Of student and teacher: 2 questions on CE, 4 on LEFTOPD, 2 on GOLD.
VERDICTS = [(True, True), (False, True), (False, True), (False, False)] * 2


# ---- Ours: the phases of an update, also for the benchmark of their growth ----


def write(student: Student, prompts: list[list[int]], length: int, *, passes: int = BLOCK) -> list[list[int]]:
    """The rollout: the responses, in the order of training."""
    found = generate(student, prompts, order="high_entropy", passes=passes, max_new_tokens=length)
    return [trajectory.tokens for trajectory in found]


def lessons_of(
    student: Student,
    prompts: list[list[int]],
    responses: list[list[int]],
    verdicts: Sequence[tuple[bool, bool]],
    settings: ObjectiveSettings,
    *,
    reference: bool = True,
) -> list[Lesson]:
    """Routes by the scripted verdicts, and the draws. References, if any, are random and as long as the budget."""
    vocabulary, stop_ids = student.head_weight.shape[0], student.vocabulary.stop_ids
    references = random_ids(len(prompts), settings.budget - 1, vocabulary, seed=2)
    lessons = []
    for k, (prompt, response, solution, (student_right, teacher_right)) in enumerate(
        zip(prompts, responses, references, verdicts, strict=True)
    ):
        lesson = plan(
            str(k),
            prompt,
            response,
            settings,
            stop_ids,
            student_right=student_right,
            teacher_right=teacher_right,
            reference=[*solution, stop_ids[0]] if reference else None,
            seed=0,
            update=0,
        )
        lessons.append(lesson)
    return lessons


def taught(teacher: Teacher, lessons: list[Lesson]) -> list[Lesson]:
    """The lessons with the teacher's hidden states where they need them."""
    chosen = [k for k, lesson in enumerate(lessons) if lesson.taught is not None]
    hidden = teacher.hidden([Reading(lessons[k].name, lessons[k].prompt, *lessons[k].taught) for k in chosen])
    found = dict(zip(chosen, hidden, strict=True))
    return [replace(lesson, teacher_hidden_SE=found.get(k)) for k, lesson in enumerate(lessons)]


# ---- The plain side ----


@torch.no_grad()
def plain_write(
    model: PreTrainedModel, prompts: list[list[int]], length: int, mask_id: int, *, blocks: int, full_logits: bool
) -> list[list[int]]:
    """The first `blocks` blocks of the responses, with prompt and response budget anew in every pass.

    Without `full_logits` the head is applied to the current block only.
    """
    start, end = len(prompts[0]), len(prompts[0]) + length
    ids_RL = torch.full((len(prompts), end), mask_id)
    ids_RL[:, :start] = torch.tensor(prompts)
    seen = _block_causal(end, start).expand(len(prompts), -1, -1, -1)
    for first in range(start, start + blocks * BLOCK, BLOCK):
        block = slice(first, first + BLOCK)
        for _ in range(BLOCK):
            keep = 0 if full_logits else torch.arange(first, first + BLOCK)
            logits = model(input_ids=ids_RL, attention_mask=seen, use_cache=False, logits_to_keep=keep).logits
            commit_highest_entropy(ids_RL[:, block], logits[:, block] if full_logits else logits, mask_id)
    return ids_RL[:, start : start + blocks * BLOCK].tolist()


def plain_backward(
    model: PreTrainedModel, master: PreTrainedModel, lessons: list[Lesson], settings: ObjectiveSettings, mask_id: int
) -> float:
    """The loss of the update, question by question, each followed by its backward."""
    total = 0.0
    for lesson in lessons:
        loss = _plain_loss(model, master, lesson, settings, mask_id) / len(lessons)
        loss.backward()
        total += loss.item()
    return total


def _plain_loss(
    model: PreTrainedModel, master: PreTrainedModel, lesson: Lesson, settings: ObjectiveSettings, mask_id: int
) -> torch.Tensor:
    prompt, response, chosen = lesson.prompt, lesson.response, lesson.selected
    logp_SV = _plain_readouts(model, prompt, response, chosen, mask_id)
    if lesson.terms == ("own",):
        content = -_at_targets(logp_SV, response, chosen).mean()
    elif lesson.terms == ("teacher",):
        with torch.no_grad():
            logits_TV = master(input_ids=torch.tensor([[*prompt, *response]]), use_cache=False).logits[0]
        rows = [len(prompt) - 1 + i for i in chosen]
        log_t_SV = _log_probs(logits_TV[rows], mask_id)
        products_SV = (log_t_SV.exp() * (log_t_SV - logp_SV)).index_fill(1, torch.tensor([mask_id]), 0.0)
        content = products_SV.sum(dim=-1).mean()
    else:
        reference, chosen_there = lesson.reference, lesson.reference_selected
        there_SV = _plain_readouts(model, prompt, reference, chosen_there, mask_id)
        content = -_at_targets(there_SV, reference, chosen_there).mean()
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *[mask_id] * settings.budget]])
        seen = _block_causal(ids.shape[1], len(prompt))
        logits_LV = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[0]
        mask_logp_SV = _log_probs(logits_LV[[len(prompt) + i for i in chosen]], mask_id)
        contrast_S = (_entropy(mask_logp_SV) - _entropy(logp_SV)).clamp(min=0)
        pairs_SS = contrast_S[:, None] > contrast_S[None, :] + settings.mu
    top_S = logp_SV.amax(dim=-1)
    hinge_SS = (top_S[:, None] - top_S[None, :] + settings.delta).clamp(min=0)
    return content + settings.rank_weight * hinge_SS[pairs_SS].sum() / max(1, int(pairs_SS.sum()))


def _plain_readouts(
    model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int], positions: list[int], mask_id: int
) -> torch.Tensor:
    """`logp_SV`, one forward for each position."""
    rows = []
    for i in positions:
        ids = torch.tensor([[*prompt, *response[:i], mask_id]])
        seen = _block_causal(ids.shape[1], len(prompt))
        rows.append(model.base_model(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state[0, -1])
    return _log_probs(model.lm_head(torch.stack(rows)), mask_id)


def _block_causal(length: int, prompt: int) -> torch.Tensor:
    blocks = ((torch.arange(length) - prompt) // BLOCK).clamp(min=-1)
    return (blocks[None, :] <= blocks[:, None])[None, None]


def _log_probs(logits_SV: torch.Tensor, mask_id: int) -> torch.Tensor:
    return logits_SV.index_fill(1, torch.tensor([mask_id]), float("-inf")).log_softmax(dim=-1)


def _at_targets(logp_SV: torch.Tensor, response: Sequence[int], positions: list[int]) -> torch.Tensor:
    return logp_SV.gather(1, torch.tensor([[response[i]] for i in positions]))


def _entropy(logp_SV: torch.Tensor) -> torch.Tensor:
    return torch.special.entr(logp_SV.exp()).sum(dim=-1)


# ---- Both ----


class Sides:
    """A batch, the models, and the two ways through one update."""

    def __init__(self, vocabulary: int, length: int, dtype: torch.dtype) -> None:
        self.student = random_student(vocabulary, BLOCK)
        self.student.model.to(dtype)
        self.model, self.master = plain(self.student), qwen3(vocabulary, seed=9).to(dtype)
        self.teacher = Teacher(self.master, None, stop_ids=self.student.vocabulary.stop_ids)
        self.prompts = random_ids(len(VERDICTS), PROMPT, vocabulary)
        # Random models differ little between positions; with the usual μ no pair would be ranked.
        self.settings = ObjectiveSettings(budget=length, mu=0.01)
        self.seconds: dict[str, list[float]] = {}

    def ours(self) -> tuple[list[list[int]], float]:
        """Responses and loss; gradients are left in the model, seconds in `seconds`."""
        self.student.model.zero_grad()
        with self.clock("our rollout"):
            responses = write(self.student, self.prompts, self.settings.budget)
        with self.clock("our losses"):
            lessons = taught(self.teacher, lessons_of(self.student, self.prompts, responses, VERDICTS, self.settings))
            options = {"batch_size": len(lessons), "teacher_weight_VE": self.teacher.head_weight}
            loss, records = update_loss(self.student, lessons, self.settings, **options)
            loss.backward()
        assert any(record.pairs for record in records), "no pair qualifies: rankings would not be compared"
        return responses, loss.item()

    def compare(self, gradient_error: float) -> None:
        """Run the plain side between runs of ours, and assert that they agree in tokens, loss and gradients."""
        mask_id, budget = self.student.vocabulary.mask_id, self.settings.budget
        responses, loss = self.ours()
        with self.clock("plain rollout, head on the block"):
            plainly = plain_write(self.model, self.prompts, budget, mask_id, blocks=budget // BLOCK, full_logits=False)
        assert plainly == responses
        self.ours()
        with self.clock("plain losses"):
            lessons = lessons_of(self.student, self.prompts, plainly, VERDICTS, self.settings)
            plain_loss = plain_backward(self.model, self.master, lessons, self.settings, mask_id)
        self.ours()
        with self.clock("plain rollout, first block"):
            plainly = plain_write(self.model, self.prompts, budget, mask_id, blocks=1, full_logits=True)
        assert plainly == [response[:BLOCK] for response in responses]
        error = abs(loss - plain_loss) / abs(plain_loss)
        assert error < 1e-5, f"the loss differs by {error:.1e}"
        for (name, mine), other in zip(self.student.model.named_parameters(), self.model.parameters(), strict=True):
            error = (mine.grad - other.grad).abs().max() / other.grad.abs().max()
            assert error < gradient_error, f"gradient of {name} differs by {error:.1e}"

    @contextmanager
    def clock(self, name: str) -> Iterator[None]:
        """Add the processor time of what runs within to `seconds`."""
        start = time.process_time()
        yield
        self.seconds.setdefault(name, []).append(time.process_time() - start)


def run() -> list[Result]:
    """The rows of the whole update."""
    # In float64, where rounding does not decide whether a pair qualifies (the norms round to float32 all the same), and
    # smaller, since it is slow. In float32 a pair or two may differ, which the gradients show.
    Sides(512, 2 * BLOCK, torch.float64).compare(1e-6)
    sides = Sides(VOCABULARY, LENGTH, torch.float32)
    sides.compare(1e-2)
    seconds = sides.seconds
    our_rollout, our_losses = seconds["our rollout"], seconds["our losses"]
    ours = [sum(both) for both in zip(our_rollout, our_losses, strict=True)]
    rollout = seconds["plain rollout, first block"][0] * (LENGTH // BLOCK)
    lean, losses = seconds["plain rollout, head on the block"][0], seconds["plain losses"][0]
    return [
        _row("plain / ours", rollout + losses, ours, ">= 6"),
        _row("plain, its rollout with the head on the block only / ours", lean + losses, ours, None),
        _row("rollout, plain / ours", rollout, our_rollout, None),
        _row("everything after the rollout, plain / ours", losses, our_losses, None),
    ]


def _row(name: str, plainly: float, ours: list[float], goal: str | None) -> Result:
    ratios = [plainly / seconds for seconds in ours]
    return Result(f"update: {name}", statistics.median(ratios), goal, (min(ratios), max(ratios)))
