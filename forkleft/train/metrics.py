"""What is logged of an update: numbers from the records of its questions, and the file that keeps them."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from forkleft.errors import ForkLeftError
from forkleft.files import flush, read_appended, write_bytes
from forkleft.objective.routes import Route
from forkleft.objective.update import Record
from forkleft.train.collect import Collected


@dataclass(frozen=True)
class Observation:
    """What an update did with one question. empty: the response ended before it said anything."""

    record: Record
    student_right: bool
    teacher_right: bool
    tokens: int
    stopped: bool
    empty: bool
    reference_cut: bool


def observe(collected: Collected, records: Sequence[Record]) -> list[Observation]:
    """What an update did with each question of a batch."""
    return [
        Observation(
            record,
            student_right=lesson.question.student_right,
            teacher_right=lesson.question.teacher_right,
            tokens=len(trajectory.tokens),
            stopped=trajectory.stopped,
            empty=trajectory.stopped and not trajectory.text.strip(),
            reference_cut=cut,
        )
        for lesson, trajectory, cut, record in zip(
            collected.lessons, collected.trajectories, collected.cut, records, strict=True
        )
    ]


def summarise(seen: Sequence[Observation]) -> dict[str, float]:
    """Means over the questions of one or more updates. A number of which there was nothing to take a mean is left out.

    Losses are means over the questions of their route; KL, contrast and entropies over their selected positions.
    """
    records = [one.record for one in seen]
    metrics: dict[str, float] = {"questions": len(seen)}

    def put(name: str, values: Sequence[float]) -> None:
        if values:
            metrics[name] = sum(values) / len(values)

    put("student_accuracy", [one.student_right for one in seen])
    put("teacher_accuracy", [one.teacher_right for one in seen])
    for route in Route:
        metrics[f"route_{route.lower()}"] = sum(record.route is route for record in records)
        losses = [record.content for record in records if record.route is route and record.retained]
        put(f"loss_{route.lower()}", losses)
    kept = [record for record in records if record.retained]
    metrics["taught"] = sum(bool(record.kl) for record in kept)
    put("rank_loss", [record.rank for record in kept])
    put("rank_pairs", [record.pairs for record in kept])
    for name in ("kl", "contrast", "confidence", "mask_entropy", "left_entropy", "teacher_entropy"):
        put(name, [value for record in kept for value in getattr(record, name)])
    put("eos_kl", [record.eos_kl for record in kept if record.eos_kl is not None])
    put("response_tokens", [one.tokens for one in seen])
    put("stopped", [one.stopped for one in seen])
    put("empty", [one.empty for one in seen])
    metrics["references_cut"] = sum(one.reference_cut for one in seen)
    return metrics


def peak_memory(device: torch.device) -> float:
    """Mebibytes: of the device where it is a GPU, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    # In kibibytes, but on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


class StepFile:
    """One JSON object a line, in the order of the updates. A resumed run goes on where its checkpoint was.

    `written`: whether rows were written through this object.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, False

    def begin(self, step: int) -> None:
        """Forget what lies behind `step`: it will be logged again."""
        rows = read_appended(self.path) if step > 0 and self.path.exists() else ()
        kept = [line for line, row in rows if row is not None and row["step"] <= step]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path, b"".join(kept))

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, which has a `step`."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            self.written = True
        except OSError as error:
            raise ForkLeftError(
                f"cannot write to {self.path}: {error.strerror}; make room, and resume from the newest checkpoint"
            ) from error

    def flush(self) -> None:
        """Have the rows on disk before a checkpoint is that relies on them."""
        if self.path.exists():
            flush(self.path)
