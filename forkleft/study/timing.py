"""How long work takes: from what was measured in the same root, else from a guess that is said to be a guess."""

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
    """Seconds for each unit of a kind of work (`train`, `eval`, `answers`), as they were measured."""

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
        """Take in a measurement."""
        self.measured.setdefault(_kind(task), []).append(max(0.0, seconds - _START) / units)

    @property
    def count(self) -> int:
        """How many tasks were measured."""
        return sum(map(len, self.measured.values()))

    def seconds(self, task: str, units: float) -> float:
        """What a task would take."""
        rate = median(self.measured[_kind(task)]) if _kind(task) in self.measured else _GUESS[_kind(task)]
        return _START + rate * units


def read_times(path: Path) -> dict[str, tuple[float, float]]:
    """Seconds and units of the tasks of a cell; nothing if the file is not there or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(task): (float(seconds), float(units)) for task, (seconds, units) in found.items() if units > 0}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def visits(said: Mapping[str, Any]) -> int:
    """The questions that the updates of a training visit, the same ones again counted again, in one process."""
    if per_update := _value(said, "questions_per_update"):
        return max(1, _value(said, "max_steps")) * per_update
    per_device, times = _value(said, "per_device_train_batch_size"), _value(said, "gradient_accumulation_steps")
    return max(1, _value(said, "max_steps")) * per_device * times


def answers(said: Mapping[str, Any]) -> int:
    """The questions that a teacher is asked; 1 where the data decides."""
    return _value(said, "train_questions") or 1


def items(evaluation: Evaluation) -> int:
    """The items that an evaluation measures."""
    known = {**BENCHMARKS, **LAB_BENCHMARKS}
    counts: Iterable[int] = [known[name].items for name in evaluation.benchmarks]
    return sum(count if evaluation.limit is None else min(count, evaluation.limit) for count in counts)


def _kind(task: str) -> str:
    return task.split("/")[0]


def _value(said: Mapping[str, Any], option: str) -> Any:
    known = options()
    return said.get(option, default_of(known[option]) if option in known else None)
