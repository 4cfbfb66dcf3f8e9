"""Train the lab's models from nothing. The shipped weights are what these commands produced.

    python -m forkleft.lab.pretrain teacher --strength strong --output runs/teacher-strong
    python -m forkleft.lab.pretrain student --family block --output runs/student-block
    python -m forkleft.lab.pretrain student --family block --seed 1 --output runs/student-block-2

Teachers learn to predict the next token of the solution, given the question. Students are made as real ones are: an
autoregressive model first, then denoising, block by block (`objective/denoising.py`). They saw `*` in few of their
steps. In a last phase, with longer blocks, most results of `*` are random digits, told only by what follows: the
student unlearns a part of `*`, is unsure of it from the left, and reads it off the right.

A run is a function of its arguments: same machine, same thread count, same weights. Each run ends by measuring the
held-out sets and writing the model's card.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from forkleft.errors import ForkLeftError
from forkleft.lab.accuracy import measure, tally_of
from forkleft.lab.benchmarks import MAX_NEW_TOKENS, lab_set
from forkleft.lab.models import FAMILIES, Card, LabModel, lab_student, save_model
from forkleft.lab.questions import EQUAL_SHARES, HELD_OUT_SETS, Question, check_shares, training_stream
from forkleft.lab.tokenizer import END_OF_TEXT, END_OF_TURN, build_tokenizer
from forkleft.objective.denoising import Sample, denoising_loss
from forkleft.progress import Meter
from forkleft.prompts import prompt_ids
from forkleft.randomness import keyed_generator
from forkleft.students import Student
from forkleft.students.bundled import LAB_VERSION

_IGNORED = -100
_HEAD_DIM = 24
_LAST_SEED, _LAST_WARMUP = 1000, 25


@dataclass(frozen=True)
class Pretraining:
    """Everything that decides a model's weights, beside the code."""

    layers: int
    width: int
    steps: int
    # Steps of next-token prediction before a student's steps of denoising.
    causal_steps: int = 0
    batch: int = 32
    lr: float = 3e-3
    warmup: int = 100
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    threads: int = 1
    shares: tuple[float, ...] = EQUAL_SHARES
    choice_share: float = 0.5
    # The block size of a student's denoising before the last phase, which has the family's.
    first_block: int = 16
    # A student's last phase: so many steps of denoising, weighted by 1/t (`last_rate`). `guessed` is the share of
    # `*` results that are random digits.
    last_steps: int = 0
    last_lr: float = 1e-3
    last_shares: tuple[float, ...] = (0.4, 0.4, 0.2)
    guessed: float = 0.7


TEACHERS = {
    "strong": Pretraining(layers=4, width=96, steps=3000, batch=64),
    "medium": Pretraining(layers=3, width=72, steps=1500),
    "weak": Pretraining(layers=2, width=48, steps=2100),
}
# Enough steps to know + and - well, and few enough `*` to leave that half known. How much of it is learned depends on
# the steps at least as much as on the share: with 1% and 5000 steps a student of the first family has 82% of the
# four-step chains right, and little is left to teach. The last phase brings both families to about the same point:
# without random digits a student has no use for the right side of a result, with nothing else it loses `*` altogether.
_STUDENT = Pretraining(
    layers=3,
    width=96,
    causal_steps=1800,
    steps=3000,
    lr=2e-3,
    shares=(0.495, 0.495, 0.01),
    choice_share=0.2,
    last_steps=400,
)
STUDENTS = {"block": _STUDENT, "shifted": replace(_STUDENT, steps=3500, shares=(0.49, 0.49, 0.02))}


def build_model(recipe: Pretraining, tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A stock Qwen3 model of the recipe's size, initialised from its seed."""
    torch.manual_seed(recipe.seed)
    heads = recipe.width // _HEAD_DIM
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.width * 8 // 3,
        num_hidden_layers=recipe.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=_HEAD_DIM,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(END_OF_TURN),
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids([END_OF_TURN, END_OF_TEXT]), pad_token_id=tokenizer.pad_token_id
    )
    return model


def encode(question: Question, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Prompt ids and response ids (with the stop token) of a question and its reference solution."""
    prompt = prompt_ids(tokenizer, [{"role": "user", "content": question.prompt}])
    return prompt, tokenizer.encode(question.solution + END_OF_TURN, add_special_tokens=False)


def teacher_batch(
    stream: Iterator[Question], size: int, tokenizer: PreTrainedTokenizerFast
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ids_BT` padded on the right, and `labels_BT` that are ignored on the prompt and the padding."""
    rows = [encode(next(stream), tokenizer) for _ in range(size)]
    length = max(len(prompt) + len(response) for prompt, response in rows)
    ids_BT = torch.full((size, length), tokenizer.pad_token_id)
    labels_BT = torch.full((size, length), _IGNORED)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids_BT[row, :end] = torch.tensor(prompt + response)
        labels_BT[row, len(prompt) : end] = torch.tensor(response)
    return ids_BT, labels_BT


def learning_rate(recipe: Pretraining, step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to 5% of the peak."""
    if step < recipe.warmup:
        return recipe.lr * (step + 1) / recipe.warmup
    done = (step - recipe.warmup) / max(1, steps - recipe.warmup)
    return recipe.lr * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def train_teacher(recipe: Pretraining) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train an autoregressive teacher; deterministic in the recipe."""
    tokenizer = build_tokenizer()
    model = build_model(recipe, tokenizer)
    _train(model, recipe, recipe.steps, _stream(recipe), _causal_loss(model, recipe, tokenizer))
    return model, tokenizer


def train_student(recipe: Pretraining, family: str) -> Student:
    """Train a diffusion student of a lab family; deterministic in the recipe."""
    tokenizer = build_tokenizer()
    model = build_model(recipe, tokenizer)
    stream = _stream(recipe)
    _train(model, recipe, recipe.causal_steps, stream, _causal_loss(model, recipe, tokenizer))
    first = lab_student(model, tokenizer, replace(FAMILIES[family], block_size=recipe.first_block))
    hidden = keyed_generator(recipe.seed, "denoising")

    def denoising(stream: Iterator[Question]) -> torch.Tensor:
        samples = [Sample(*encode(next(stream), tokenizer)) for _ in range(recipe.batch)]
        return denoising_loss(first, samples, budget=MAX_NEW_TOKENS, generator=hidden)

    _train(model, recipe, recipe.steps, stream, denoising)
    student = lab_student(model, tokenizer, FAMILIES[family])
    train_last(student, recipe)
    return student


def train_last(student: Student, recipe: Pretraining) -> None:
    """The last phase, on questions and hidden positions of its own."""
    stream = training_stream(
        _LAST_SEED + recipe.seed,
        shares=recipe.last_shares,
        choice_share=recipe.choice_share,
        guessed=recipe.guessed,
    )
    hidden = keyed_generator(recipe.seed, "finishing")

    def denoising(stream: Iterator[Question]) -> torch.Tensor:
        samples = [Sample(*encode(next(stream), student.text_tokenizer)) for _ in range(recipe.batch)]
        return denoising_loss(student, samples, budget=MAX_NEW_TOKENS, generator=hidden, weighting="ratio")

    _train(student.model, recipe, recipe.last_steps, stream, denoising, lambda step: last_rate(recipe, step))


def last_rate(recipe: Pretraining, step: int) -> float:
    """A short warm-up, because the optimizer is new, then constant, and down to zero in the last quarter."""
    left = (recipe.last_steps - step) / (recipe.last_steps / 4)
    return recipe.last_lr * min(1.0, (step + 1) / _LAST_WARMUP, left)


def _stream(recipe: Pretraining) -> Iterator[Question]:
    check_shares(recipe.shares)
    return training_stream(recipe.seed, shares=recipe.shares, choice_share=recipe.choice_share)


def _causal_loss(
    model: Qwen3ForCausalLM, recipe: Pretraining, tokenizer: PreTrainedTokenizerFast
) -> Callable[[Iterator[Question]], torch.Tensor]:
    def loss(stream: Iterator[Question]) -> torch.Tensor:
        ids_BT, labels_BT = teacher_batch(stream, recipe.batch, tokenizer)
        # Padding stands on the right, where causal attention never looks: no mask is needed.
        return model(input_ids=ids_BT, labels=labels_BT).loss

    return loss


def _train(
    model: PreTrainedModel,
    recipe: Pretraining,
    steps: int,
    stream: Iterator[Question],
    batch_loss: Callable[[Iterator[Question]], torch.Tensor],
    rate: Callable[[int], float] | None = None,
) -> None:
    """AdamW over `steps` batches of the stream; leaves the model in evaluation mode."""
    torch.set_num_threads(recipe.threads)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=recipe.weight_decay)
    with Meter(Console(), "step", steps) as meter:
        for step in range(steps):
            loss = batch_loss(stream)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(recipe, step, steps) if rate is None else rate(step)
            optimizer.step()
            meter.move(step + 1)
            meter.tell(f"loss {loss.item():.4f}")
    model.eval()


def main(arguments: list[str] | None = None) -> None:
    """Train one lab model and save it with its card."""
    parser = argparse.ArgumentParser(prog="python -m forkleft.lab.pretrain", description=main.__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    teacher = roles.add_parser("teacher", help="an autoregressive teacher")
    teacher.add_argument("--strength", choices=TEACHERS, required=True)
    student = roles.add_parser("student", help="a diffusion student")
    student.add_argument("--family", choices=STUDENTS, required=True)
    student.add_argument("--causal-steps", type=int, help="another number of steps before denoising than the recipe's")
    student.add_argument("--last-steps", type=int, help="another number of steps of the last phase than the recipe's")
    for role in (teacher, student):
        role.add_argument("--output", type=Path, required=True, help="folder to write, which must not exist yet")
        role.add_argument("--steps", type=int, help="train for another number of steps than the recipe says")
        role.add_argument("--seed", type=int, help="another seed than the recipe's")
    options = parser.parse_args(arguments)

    kind = f"--strength {options.strength}" if options.role == "teacher" else f"--family {options.family}"
    recipe = TEACHERS[options.strength] if options.role == "teacher" else STUDENTS[options.family]
    overrides = ("steps", "seed", "causal_steps", "last_steps")
    changed = {name: value for name in overrides if (value := getattr(options, name, None)) is not None}
    recipe = replace(recipe, **changed)
    if recipe.steps < 1 or min(recipe.causal_steps, recipe.last_steps) < 0:
        raise ForkLeftError(
            f"--steps must be at least 1, found {recipe.steps}; --causal-steps and --last-steps not below 0"
        )
    if options.output.exists():
        raise ForkLeftError(f"{options.output} exists already; name a new folder")
    name = f"{options.role}-{kind.split()[1]}"
    if options.role == "student" and recipe.seed:
        name += f"-{recipe.seed + 1}"
    given = "".join(f" --{key.replace('_', '-')} {value}" for key, value in changed.items())
    card = Card(
        name=name,
        lab_version=LAB_VERSION,
        family=None if options.role == "teacher" else options.family,
        command=f"python -m forkleft.lab.pretrain {options.role} {kind}{given} --output {name}",
        recipe=asdict(recipe),
        accuracy={},
    )
    if options.role == "teacher":
        trained = LabModel(*train_teacher(recipe), card)
    else:
        taught = train_student(recipe, options.family)
        trained = LabModel(taught.model, taught.text_tokenizer, card)
    accuracy = {set_name: tally_of(measure(trained, lab_set(set_name))) for set_name in HELD_OUT_SETS}
    save_model(options.output, replace(trained, card=replace(card, accuracy=accuracy)))
    print(f"{name}: " + ", ".join(f"{key} {tally.accuracy:.1%}" for key, tally in accuracy.items()))


if __name__ == "__main__":
    try:
        main()
    except ForkLeftError as error:
        sys.exit(f"pretrain: {error}")
