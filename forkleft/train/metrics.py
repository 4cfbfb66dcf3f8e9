"""What is logged about an update: numbers from the outcomes of its questions, and the file that keeps them."""

import json
import logging
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from forkleft.digests import sealed
from forkleft.errors import ForkLeftError
from forkleft.files import flush, read_appended, write_bytes
from forkleft.objective.routes import Route
from forkleft.objective.update import Outcome

_LOG = logging.getLogger(__name__)


def means(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Means over the questions of one or more updates. A mean over nothing is left out.

    Losses are means over the questions of their route; KL, contrast and entropies over their selected positions.
    """
    metrics: dict[str, float] = {"questions": len(outcomes)}

    def put(name: str, values: Sequence[float]) -> None:
        if values:
            metrics[name] = sum(values) / len(values)

    metrics["without_verdict"] = sum(not outcome.judged for outcome in outcomes)
    put("student_accuracy", [outcome.student_right for outcome in outcomes])
    put("teacher_accuracy", [outcome.teacher_right for outcome in outcomes])
    for route in Route:
        metrics[f"route_{route.lower()}"] = sum(outcome.route is route for outcome in outcomes)
        losses = [outcome.content for outcome in outcomes if outcome.route is route and outcome.retained]
        put(f"loss_{route.lower()}", losses)
    kept = [outcome for outcome in outcomes if outcome.retained]
    metrics["taught"] = sum(bool(outcome.kl) for outcome in kept)
    put("rank_loss", [outcome.rank for outcome in kept])
    put("rank_pairs", [outcome.pairs for outcome in kept])
    for name in ("kl", "contrast", "confidence", "mask_entropy", "left_entropy", "teacher_entropy"):
        put(name, [value for outcome in kept for value in getattr(outcome, name)])
    put("eos_kl", [outcome.eos_kl for outcome in kept if outcome.eos_kl is not None])
    put("response_tokens", [outcome.tokens for outcome in outcomes])
    put("stopped", [outcome.stopped for outcome in outcomes])
    put("empty", [outcome.empty for outcome in outcomes])
    metrics["references_cut"] = sum(outcome.reference_cut for outcome in outcomes)
    return metrics


def peak_memory(device: torch.device) -> float:
    """The peak in mebibytes: of the device if it is a GPU, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    # In kibibytes; on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


class StepFile:
    """One JSON object a line, in the order of the updates. A resumed run continues at its checkpoint.

    sealed: rows have a checksum. `written`: whether rows were written through this object.
    """

    def __init__(self, path: Path, *, sealed: bool = False) -> None:
        self.path, self.written = path, False
        self._sealed = sealed

    def begin(self, step: int) -> None:
        """Remove the rows after `step`, which will be logged again, and those that are damaged, with a warning."""
        rows = list(read_appended(self.path)) if step > 0 and self.path.exists() else []
        kept = [line for line, row in rows if row is not None and _step(row) <= step]
        # Only in the last line may a write have been cut off.
        if damaged := sum(row is None for _, row in rows[:-1]):
            _LOG.warning("%s: left out %d damaged line(s); what they said of this run is lost", self.path, damaged)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(self.path, b"".join(kept))

    def write(self, row: dict[str, Any]) -> None:
        """Append a row, which has a `step`."""
        with self._writing(), self.path.open("ab") as file:
            file.write(self._line(row))

    def write_together(self, rows: Sequence[dict[str, Any]]) -> None:
        """Append rows that say something only together: all of them are in the file, or none."""
        before = self.path.read_bytes() if self.path.exists() else b""
        with self._writing():
            write_bytes(self.path, before + b"".join(map(self._line, rows)))

    def _line(self, row: dict[str, Any]) -> bytes:
        return json.dumps(sealed(row) if self._sealed else row).encode() + b"\n"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
            self.written = True
        except OSError as error:
            raise ForkLeftError(
                f"cannot write to {self.path}: {error.strerror}; make room, and resume from the newest checkpoint"
            ) from error

    def holds(self, step: int) -> bool:
        """Whether there are rows of `step`."""
        return self.path.exists() and any(row is not None and _step(row) == step for _, row in read_appended(self.path))

    def flush(self) -> None:
        """Force the rows to disk, before a checkpoint that relies on them is written."""
        if self.path.exists():
            flush(self.path)


def _step(row: Mapping[str, Any]) -> float:
    """The update of a row; after all updates for a row that does not say, which is none of ours."""
    step = row.get("step")
    return step if isinstance(step, int) else math.inf
