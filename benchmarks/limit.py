"""The limit: how many times longer each phase takes than its matrix products alone.

The phases of an update (rollout, readout with its losses, backward), the losses at the head, and a step of adaptation,
at four sizes: the lab's student, and random models of 5 and 50 million parameters and of SmolLM2's shape.

    python -m benchmarks.limit --size lab 50M --threads 1 2

Shapes: V words, E the width of the teacher.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from benchmarks.harness import REPEATS, Result
from benchmarks.products import beside_products, products_row
from benchmarks.update import lessons_of, taught
from forkleft.lab.questions import held_out
from forkleft.objective.denoising import Sample, draw, prediction_loss
from forkleft.objective.head import TeacherRows, head_rows
from forkleft.objective.supervision import Lesson, ObjectiveSettings
from forkleft.objective.update import update_loss
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students import Family, Student, load_student
from forkleft.teacher import Teacher

PHASES = ("rollout", "readout", "backward", "update", "loss", "adaptation")
GOALS = {"lab": "<= 2.2", "50M": "<= 1.5"}


@dataclass(frozen=True)
class Size:
    """A model and an update for it.

    questions: of prompt and response tokens each (the lab's own have their own length), `together` of them in a forward
    of the readouts, as in the lab's recipe; passes: of a block.
    """

    make: Callable[[], Student]
    questions: int
    together: int
    prompt: int
    response: int
    passes: int


def _random(model: PreTrainedModel, block: int) -> Student:
    words = model.config.vocab_size
    return Student.from_model(model.eval(), Family("block", block), words - 1, [words - 2])


def _qwen3(layers: int, width: int, words: int) -> PreTrainedModel:
    config = Qwen3Config(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        num_key_value_heads=max(1, width // 128),
        head_dim=64,
        initializer_range=0.1,
        tie_word_embeddings=True,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config)


def _smollm2() -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
        initializer_range=0.1,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


SIZES = {
    "lab": Size(lambda: load_student("lab:student-block"), 48, 8, 32, 64, 32),
    "5M": Size(lambda: _random(_qwen3(6, 256, 4096), 32), 8, 8, 64, 128, 32),
    "50M": Size(lambda: _random(_qwen3(12, 512, 16_384), 32), 2, 2, 64, 32, 8),
    "135M": Size(lambda: _random(_smollm2(), 32), 2, 2, 64, 32, 8),
}


class Case:
    """The phases at one size, each a function. Every phase after the first uses what the one before it left."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.size, self.student = size, size.make()
        words = self.student.head_weight.shape[0]
        self.teacher = Teacher(_qwen3(2, 128, words), None, stop_ids=self.student.vocabulary.stop_ids)
        tokenizer = self.student.tokenizer
        if tokenizer is None:
            self.prompts = self._texts(size.prompt, 1)
        else:
            # A trained student ends its answer to random words at once.
            questions = held_out("chain-4", size.questions)
            self.prompts = [prompt_ids(tokenizer, [{"role": "user", "content": item.prompt}]) for item in questions]
        # Random models are alike everywhere: with the usual mu no pair would be ranked.
        self.settings = ObjectiveSettings(budget=size.response, mu=0.01, geometry="canvas", rho=0.5)
        self.lessons: list[Lesson] = []
        self.live: list[torch.Tensor] = []
        generator = torch.Generator().manual_seed(0)
        targets = self._texts(size.response, 2)
        samples = [Sample(prompt, response) for prompt, response in zip(self.prompts, targets, strict=True)]
        self.tasks = [draw(self.student, sample, generator) for sample in samples]
        rows = size.questions * size.response // 2
        self.hidden_SD = torch.randn(rows, self.student.head_weight.shape[1], requires_grad=True)
        self.targets_S = torch.tensor([id_ for row in targets for id_ in row][:rows])
        self.teacher_rows = TeacherRows(torch.randn(rows, 128), self.teacher.head_weight.detach())

    def _texts(self, length: int, seed: int) -> list[list[int]]:
        """A text of random words for each question, without special ones."""
        vocabulary = self.student.vocabulary
        words = torch.tensor(sorted(vocabulary.valid.difference(vocabulary.stop_ids)))
        shape = (self.size.questions, length)
        return words[torch.randint(0, len(words), shape, generator=torch.Generator().manual_seed(seed))].tolist()

    def rollout(self) -> None:
        """The responses, and what is learned on each."""
        found = generate(
            self.student,
            self.prompts,
            order="high_entropy",
            passes=self.size.passes,
            max_new_tokens=self.size.response,
            batch_size=len(self.prompts),
        )
        verdicts = [(False, True), (True, True)] * len(self.prompts)
        responses = [trajectory.tokens for trajectory in found]
        planned = lessons_of(
            self.student, self.prompts, responses, verdicts[: len(self.prompts)], self.settings, reference=False
        )
        self.lessons = taught(self.teacher, planned)

    def readout(self) -> None:
        """The forward of all readouts, and the losses. Unlike an update, it keeps the memory of all until the end."""
        self.live = [self._loss(first) for first in range(0, len(self.lessons), self.size.together)]

    def backward(self) -> None:
        """Of these."""
        self.student.model.zero_grad()
        for loss in self.live:
            loss.backward(retain_graph=True)

    def update(self) -> None:
        """All three, readouts and backward by turns."""
        self.live = []
        self.rollout()
        self.student.model.zero_grad()
        for first in range(0, len(self.lessons), self.size.together):
            self._loss(first).backward()

    def _loss(self, first: int) -> torch.Tensor:
        lessons = self.lessons[first : first + self.size.together]
        weight_VE, batch = self.teacher.head_weight, len(self.lessons)
        loss, _ = update_loss(self.student, lessons, self.settings, batch_size=batch, teacher_weight_VE=weight_VE)
        return loss

    def loss(self) -> None:
        """KL, entropy and confidence at the head, forward and backward."""
        rows = head_rows(
            self.hidden_SD,
            self.student.head_weight,
            self.targets_S,
            self.student.excluded_V,
            teacher=self.teacher_rows,
        )
        (rows.kl_K.mean() + 0.1 * rows.confidence_S.mean()).backward()

    def adaptation(self) -> None:
        """Masked denoising, forward and backward."""
        self.student.model.zero_grad()
        loss, _ = prediction_loss(self.student, self.tasks, {"denoising": 1.0})
        loss.backward()


def run() -> list[Result]:
    """The rows of the limit: the whole update where it has a goal."""
    results = []
    for name, goal in GOALS.items():
        case = Case(SIZES[name])
        case.rollout()
        results.append(products_row(f"limit: update, {name} / its matrix products", case.update, goal))
    return results


def multiples(
    case: Case, phases: Iterable[str] = PHASES, repeats: int = REPEATS
) -> dict[str, tuple[float, list[float]]]:
    """For each phase the seconds of its products alone (median), and in each repeat the phase as a multiple of them."""
    found = {}
    for phase in phases:
        times = beside_products(getattr(case, phase), repeats)
        found[phase] = (statistics.median(bare for _, bare in times), [whole / bare for whole, bare in times])
    return found


def main() -> None:
    """Print the table and, with --output, write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limit", description=__doc__.splitlines()[0])
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES), help="(default: all)")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="(default 1 2)")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"(default {REPEATS})")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    options = parser.parse_args()
    table = Table(title="Time / time of the matrix products alone", caption=f"medians of {options.repeats} repeats")
    for name in ("size", "threads", *PHASES):
        table.add_column(name, justify="left" if name == "size" else "right")
    rows = []
    for name in options.size:
        for threads in options.threads:
            torch.set_num_threads(threads)
            found = multiples(Case(SIZES[name]), repeats=options.repeats)
            table.add_row(name, str(threads), *(f"{statistics.median(ratios):.2f}" for _, ratios in found.values()))
            rows.append({"size": name, "threads": threads, "phases": found})
    Console().print(table)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
