"""Which students adapt fastest from an autoregressive model: blocks of 4 and 8, same-position and shifted heads.

    python -m benchmarks.adaptation --output adaptation.jsonl

The lab's strong teacher becomes a student of each kind and learns to denoise on the lab's training questions, all in
the same order and with the same options. Held-out accuracy (confident positions first, one token a pass) is what kinds
are compared by: their losses are not comparable, because a larger block hides more at a time. docs/your-own-model.md
has the figures. Not a part of `make bench`, which measures time.
"""

import argparse
import json
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from forkleft.lab.benchmarks import MAX_NEW_TOKENS
from forkleft.lab.models import lab_student, load_model
from forkleft.lab.questions import Question, held_out, training_stream
from forkleft.students import Family
from forkleft.train.adapt import AdaptTrainer
from forkleft.train.adapt_config import AdaptConfig

_SIZES, _HEADS = (4, 8), ("same", "shifted")


def main() -> None:
    """Adapt a student of each kind and print its figures, one JSON object a line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--updates", type=int, default=100, help="of 32 questions (default 100)")
    parser.add_argument("--every", type=int, default=25, help="updates between evaluations (default 25)")
    parser.add_argument("--questions", type=int, default=200, help="of chain-3 in each evaluation (default 200)")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="of the questions and what is hidden (default 0)"
    )
    parser.add_argument(
        "--causal-weight", type=float, default=0.0, help="of next-token prediction beside it (default 0)"
    )
    parser.add_argument("--output", type=Path, required=True, help="a file; rows are appended")
    options = parser.parse_args()
    for seed in options.seeds:
        for size in _SIZES:
            for head in _HEADS:
                for row in _adapted(size, head, seed, options):
                    with options.output.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(row) + "\n")
                    print(json.dumps(row), flush=True)


def _adapted(size: int, head: Any, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    teacher = load_model("teacher-strong")
    student = lab_student(teacher.model, teacher.tokenizer, Family("block", size, "absolute", head))
    questions = [_row(item) for item in islice(training_stream(seed), 32 * options.updates)]
    with TemporaryDirectory() as folder:
        config = AdaptConfig(
            folder,
            max_steps=options.updates,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            lr_scheduler_type="constant_with_warmup",
            warmup_steps=5,
            adam_beta2=0.99,
            causal_weight=options.causal_weight,
            max_new_tokens=MAX_NEW_TOKENS,
            prompt_template="{question}",
            verifier="lab",
            accuracy_questions=options.questions,
            rollout_batch_size=100,
            eval_on_start=True,
            eval_strategy="steps",
            eval_steps=options.every,
            save_strategy="no",
            seed=seed,
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = AdaptTrainer(
            student, config, questions, [_row(item) for item in held_out("chain-3", options.questions)]
        )
        trainer.train()
    found = []
    for row in trainer.state.log_history:
        if "eval_accuracy" in row:
            figures = {"update": row["step"], "loss": row["eval_loss"], "accuracy": row["eval_accuracy"]}
            found.append({"block": size, "head": head, "seed": seed, "causal": options.causal_weight} | figures)
    return found


def _row(item: Question) -> dict[str, str]:
    return {"question": item.prompt, "answer": item.answer, "solution": item.solution}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
