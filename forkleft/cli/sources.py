"""Where the questions of a recipe come from: the lab, a JSON Lines file, or a data set of the hub."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.files import read_jsonl
from forkleft.lab.questions import HELD_OUT_SETS, held_out, training_stream

_LAB = "lab:"
_LAB_TRAIN = "train"


def rows_of(
    source: str, subset: str | None, split: str, count: int | None, columns: Mapping[str, str] | None, seed: int
) -> list[dict[str, Any]]:
    """The rows of a data source, with its columns renamed. Raises ForkLeftError if it cannot be read."""
    if count is not None and count < 1:
        raise ForkLeftError(f"{source}: expected at least 1 question to take, found {count}")
    if source.startswith(_LAB):
        rows = _lab_rows(source.removeprefix(_LAB), count, seed)
    elif source.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz")):
        rows = [row for _, row in read_jsonl(source)]
    else:
        rows = _hub_rows(source, subset, split)
    rows = list(islice(rows, count))
    for ours, theirs in (columns or {}).items():
        if rows and theirs not in rows[0]:
            raise ForkLeftError(
                f"{source} has no column {theirs!r}, there are {', '.join(rows[0])}; name the right one for "
                f"{ours} (columns for train_data, eval_columns for eval_data)"
            )
        rows = [{**row, ours: row.get(theirs)} for row in rows]
    return rows


def _lab_rows(name: str, count: int | None, seed: int) -> list[dict[str, Any]]:
    if name == _LAB_TRAIN:
        if count is None:
            raise ForkLeftError("lab:train has no end; say with train_questions how many to take")
        items: Sequence = list(islice(training_stream(seed), count))
    elif name in HELD_OUT_SETS:
        items = held_out(name)
    else:
        sets = ", ".join(_LAB + known for known in (_LAB_TRAIN, *HELD_OUT_SETS))
        raise ForkLeftError(f"the lab has no data {name!r}; there are {sets}")
    return [
        {"id": item.id, "question": item.prompt, "answer": item.answer, "solution": item.solution} for item in items
    ]


def _hub_rows(source: str, subset: str | None, split: str) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(source, subset, split=split)
    except Exception as error:  # no network, no such data set, no such split: each its own class
        raise ForkLeftError(
            f"cannot load {source!r} (subset {subset}, split {split}) from the hub: {error}; a JSON Lines file, "
            "whose name ends in .jsonl or .jsonl.gz, will do as well"
        ) from error
