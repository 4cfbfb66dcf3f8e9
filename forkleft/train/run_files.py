"""What the files in a run's folder say of it. Reading them needs no torch, so that a report is quick."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS, is_file, read_appended, read_regular, write_json

# The file that says what decides a run (`resume.py`): in its folder and in every checkpoint.
RUN_FILE = "forkleft.json"
LOCK_FILE = ".lock"
METRICS = "metrics.jsonl"
# What the run of an adaptation says of itself there, as its objective.
ADAPTATION = "adaptation"
# The kinds of the values with which something is computed.
_KINDS: dict[str, Any] = {
    **{"max_steps": int, "num_train_epochs": int | float, "verifier": str | None, "lengthened": list},
    **dict.fromkeys(("processes", "per_device_train_batch_size", "gradient_accumulation_steps"), int),
}
# What to do about a folder that is in the way.
OTHER_FOLDER = "name another folder (output_dir)"


def is_finished(folder: Path) -> bool:
    """Whether the run of a folder has finished since it was last started."""
    card, begun = folder / "README.md", folder / RUN_FILE
    return card.exists() and (not begun.exists() or card.stat().st_mtime_ns >= begun.stat().st_mtime_ns)


def last_update(folder: Path) -> int:
    """The last update that a run has logged; 0 if there is no log."""
    log = folder / METRICS
    steps = [row.get("step") for _, row in read_appended(log) if row] if is_file(log) else []
    return max((step for step in steps if isinstance(step, int)), default=0)


def read_run(folder: Path) -> dict[str, Any] | None:
    """What decides the run of a folder or checkpoint, from the file there; None if there is no such file."""
    try:
        run = json.loads(read_regular(folder / RUN_FILE))
        if not isinstance(run, dict):
            raise ValueError(f"expected names with values, found {run!r:.40}")
        for name, kind in _KINDS.items():
            if name in run and not isinstance(run[name], kind):
                raise ValueError(f"{name} is {run[name]!r:.40}, expected another kind of value")
        return run
    except FileNotFoundError:
        return None
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{folder / RUN_FILE} cannot be read ({error}); {OTHER_FOLDER}") from error


def write_run(folder: Path, run: Mapping[str, Any]) -> None:
    """Write down what decides a run."""
    write_json(folder / RUN_FILE, run)
