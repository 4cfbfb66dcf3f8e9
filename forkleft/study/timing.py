"""How long work takes: from what was measured in the same root, else a guess."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from forkleft.evaluate.benchmarks import BENCHMARKS
from forkleft.lab.benchmarks import LAB_BENCHMARKS
from forkleft.study.grid import Evaluation
from forkleft.train.recipes import default_of, options

TIMES = "times.json"
# Seconds for Python, Transformers and the models to load.
_START = 10.0
# Seconds that a question of an update, an item of an evaluation and a teacher's answer took in the lab on one core.
_GUESS = {"train": 0.08, "eval": 0.025, "answers": 0.01}


@dataclass
class Rates:
    """The measured seconds per unit of each kind of work (`train`, `eval`, `answers`)."""

    measured: dict[str, list[float]] = field(default_factory=dict)

    @classmethod
    def of_cells(cls, folder: Path) -> "Rates":
        """From the tasks that ended well in a folder of cells."""
        rates = cls()
        for path in sorted(folder.glob(f"*/{TIMES}")):
            for task, (seconds, units) in read_times(path).items():
                rates.add(task, seconds, units)
        return rates

    def add(self, task: str, seconds: float, units: float) -> None:
        """Add a measurement."""
        self.measured.setdefault(_kind(task), []).append(max(0.0, seconds - _START) / units)

    @property
    def count(self) -> int:
        """How many tasks were measured."""
        return sum(map(len, self.measured.values()))

    def seconds(self, task: str, units: float) -> float:
        """How long a task would take."""
        rate = median(self.measured[_kind(task)]) if _kind(task) in self.measured else _GUESS[_kind(task)]
        return _START + rate * units


def read_times(path: Path) -> dict[str, tuple[float, float]]:
    """Seconds and units of the tasks of a cell; empty if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(task): (float(seconds), float(units)) for task, (seconds, units) in found.items() if units > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def visits(said: Mapping[str, Any]) -> int:
    """How many questions the updates of a training visit in one process; repeated questions count each time."""
    if per_update := _value(said, "questions_per_update"):
        return max(1, _value(said, "max_steps")) * per_update
    per_device, times = _value(said, "per_device_train_batch_size"), _value(said, "gradient_accumulation_steps")
    return max(1, _value(said, "max_steps")) * per_device * times


def answers(said: Mapping[str, Any]) -> int:
    """How many questions a teacher is asked; 1 if that depends on the data."""
    return _value(said, "train_questions") or 1


def items(evaluation: Evaluation) -> int:
    """How many items an evaluation measures."""
    known = {name: benchmark.items for name, benchmark in {**BENCHMARKS, **LAB_BENCHMARKS}.items()}
    known |= {name: count for name, (_, count) in evaluation.described.items()}
    counts: Iterable[int] = [known[name] for name in evaluation.benchmarks]
    return sum(count if evaluation.limit is None else min(count, evaluation.limit) for count in counts)


def _kind(task: str) -> str:
    return task.split("/")[0]


def _value(said: Mapping[str, Any], option: str) -> Any:
    known = options()
    return said.get(option, default_of(known[option]) if option in known else None)
