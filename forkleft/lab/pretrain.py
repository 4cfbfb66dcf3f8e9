"""Train the lab's models from nothing. The shipped weights are what these commands produced.

    python -m forkleft.lab.pretrain teacher --strength strong --output runs/teacher-strong
    python -m forkleft.lab.pretrain student --family block --output runs/student-block
    python -m forkleft.lab.pretrain student --family block --seed 1 --output runs/student-block-2

Teachers learn to predict the next token of the solution, given the question. Students are made as real ones are: an
autoregressive model first, then denoising, block by block; each phase is a run of `AdaptTrainer`. They saw `*` in few
of their steps. In a last phase, with longer blocks, most results of `*` are random digits, told only by what follows:
the student unlearns a part of `*`, is unsure of it from the left, and reads it off the right.

A run is a function of its arguments: same machine, same thread count, same weights. Each run ends by measuring the
held-out sets and writing the model's card.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from forkleft.errors import ForkLeftError
from forkleft.lab.accuracy import measure, tally_of
from forkleft.lab.benchmarks import MAX_NEW_TOKENS, lab_set
from forkleft.lab.models import FAMILIES, Card, LabModel, lab_student, save_model
from forkleft.lab.questions import EQUAL_SHARES, HELD_OUT_SETS, check_shares, training_stream
from forkleft.lab.tokenizer import END_OF_TEXT, END_OF_TURN, build_tokenizer
from forkleft.students import Student
from forkleft.students.bundled import LAB_VERSION
from forkleft.train.adapt import AdaptTrainer
from forkleft.train.adapt_config import AdaptConfig

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
    # A student's last phase: so many steps of denoising, weighted by 1/t. `guessed` is the share of
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


class Questions:
    """Rows of a training stream from a number of questions on, which can be read again from there."""

    def __init__(self, skipped: int = 0, **settings: Any) -> None:
        self._skipped, self._settings = skipped, settings

    def __iter__(self) -> Iterator[dict[str, str]]:
        for item in islice(training_stream(**self._settings), self._skipped, None):
            yield {"question": item.prompt, "answer": item.answer, "solution": item.solution}


def train_teacher(recipe: Pretraining) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """Train an autoregressive teacher; deterministic in the recipe."""
    tokenizer = build_tokenizer()
    model = build_model(recipe, tokenizer)
    # Next tokens are predicted in the same way by a student of any family.
    _train(lab_student(model, tokenizer, FAMILIES["block"]), recipe, _questions(recipe), recipe.steps, causal=True)
    return model, tokenizer


def train_student(recipe: Pretraining, family: str) -> Student:
    """Train a diffusion student of a lab family; deterministic in the recipe."""
    tokenizer = build_tokenizer()
    model = build_model(recipe, tokenizer)
    first = lab_student(model, tokenizer, replace(FAMILIES[family], block_size=recipe.first_block))
    if recipe.causal_steps:
        _train(first, recipe, _questions(recipe), recipe.causal_steps, causal=True)
    _train(first, recipe, _questions(recipe, recipe.causal_steps * recipe.batch), recipe.steps)
    student = lab_student(model, tokenizer, FAMILIES[family])
    if recipe.last_steps:
        train_last(student, recipe)
    return student


def train_last(student: Student, recipe: Pretraining) -> None:
    """The last phase, on questions of its own, with a short warm-up and a rate that ends at zero."""
    questions = Questions(
        seed=_LAST_SEED + recipe.seed,
        shares=recipe.last_shares,
        choice_share=recipe.choice_share,
        guessed=recipe.guessed,
    )
    decay = max(1, recipe.last_steps // 4)
    _train(
        student,
        recipe,
        questions,
        recipe.last_steps,
        weighting="1/t",
        seed=_LAST_SEED + recipe.seed,
        learning_rate=recipe.last_lr,
        lr_scheduler_type="warmup_stable_decay",
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear", "min_lr_ratio": 0.0},
        warmup_steps=min(_LAST_WARMUP, recipe.last_steps - decay),
    )


def _questions(recipe: Pretraining, skipped: int = 0) -> Questions:
    check_shares(recipe.shares)
    return Questions(skipped, seed=recipe.seed, shares=recipe.shares, choice_share=recipe.choice_share)


def _train(
    student: Student, recipe: Pretraining, questions: Questions, steps: int, *, causal: bool = False, **changes: Any
) -> None:
    """One phase: `steps` updates of a student's model, which stays in evaluation mode.

    causal: of next-token prediction. changes: options of this phase that differ from the recipe's usual ones. Unless
    they say another, the learning rate warms up, then falls as a cosine to 5% of its peak.
    """
    torch.set_num_threads(recipe.threads)
    options: dict[str, Any] = {
        "max_steps": steps,
        "causal_only": causal,
        "per_device_train_batch_size": recipe.batch,
        "learning_rate": recipe.lr,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.05},
        "warmup_steps": min(recipe.warmup, steps),
        "weight_decay": recipe.weight_decay,
        "adam_beta2": 0.99,
        "max_grad_norm": recipe.clip,
        "max_new_tokens": MAX_NEW_TOKENS,
        "prompt_template": "{question}",
        # A solution that states a random digit stays as it is.
        "reference_template": "{solution}",
        "verifier": "lab",
        "seed": recipe.seed,
        "save_strategy": "no",
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    with TemporaryDirectory() as folder:
        AdaptTrainer(student, AdaptConfig(folder, **options | changes), questions).train()
    student.model.eval()


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
