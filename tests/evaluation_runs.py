"""An evaluation of a lab model that tests kill or spread over processes; a program:

    python evaluation_runs.py OUTPUT [fatal-call]

Prints how many batches it computed. At call `fatal-call` of the model the process kills itself, as nothing can prevent.
"""

import os
import signal
import sys
from pathlib import Path

import torch

from forkleft.evaluate import evaluation
from forkleft.evaluate.benchmarks import ItemSet
from forkleft.evaluate.evaluation import load_evaluated, run_evaluation
from forkleft.evaluate.protocols import Settings
from forkleft.lab import benchmarks
from forkleft.lab.benchmarks import LAB_BENCHMARKS
from forkleft.lab.models import model_path

ITEMS, SAMPLES, BATCH = 7, 2, 3
# Tries, in batches, of the chains (sampled) and of the choices.
CHAIN_BATCHES, CHOICE_BATCHES = 5, 3


def lab_items(name: str, count: int) -> ItemSet:
    """Some items of one of the lab's benchmarks."""
    return benchmarks.lab_items(LAB_BENCHMARKS[f"lab-{name}"], count)


def evaluate(output: Path) -> None:
    """Sampled chains, then choices in the answer slot."""
    torch.set_num_threads(1)
    model = load_evaluated(model_path("student-block"))
    sampled = Settings(samples=SAMPLES, temperature=0.7, passes=4, batch_size=BATCH)
    run_evaluation(model, [lab_items("chain-2", ITEMS)], output, name="student", settings=sampled)
    run_evaluation(model, [lab_items("choice-2", ITEMS)], output, name="student", settings=Settings(batch_size=BATCH))


def counting(fatal: int = 0):
    """The model's call, which counts itself in `calls`, and at call `fatal` kills the process."""
    plain = evaluation.answer

    def counted(*arguments):
        counted.calls += 1
        if counted.calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    counted.calls = 0
    return counted


if __name__ == "__main__":
    evaluation.answer = counting(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    evaluate(Path(sys.argv[1]))
    print(evaluation.answer.calls)
