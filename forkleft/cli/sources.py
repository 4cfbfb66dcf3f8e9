"""Where the questions of a recipe come from: the lab, a JSON Lines file, or a data set of the hub."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.files import stream_jsonl
from forkleft.lab.questions import HELD_OUT_SETS, held_out, training_stream

_LAB = "lab:"
_LAB_TRAIN = "train"


@dataclass(frozen=True)
class RowStream:
    """The rows of a data source, read anew each time that it is iterated over, with its columns renamed.

    Raises ForkLeftError if it cannot be read.
    """

    source: str
    subset: str | None
    split: str
    count: int | None
    columns: Mapping[str, str] | None
    seed: int
    # Of the hub: download rows as they are read.
    remote: bool = True

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ForkLeftError(f"{self.source}: expected at least 1 question to take, found {self.count}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if self.source.startswith(_LAB):
            rows = _lab_rows(self.source.removeprefix(_LAB), self.seed)
        elif self.source.endswith((".jsonl", ".json", ".jsonl.gz", ".json.gz")):
            rows = (row for _, row in stream_jsonl(self.source))
        else:
            rows = _hub_rows(self.source, self.subset, self.split, streaming=self.remote)
        renamed = self.columns or {}
        for number, row in enumerate(islice(rows, self.count)):
            if number == 0:
                self._check_columns(row, renamed)
            yield {**row, **{ours: row.get(theirs) for ours, theirs in renamed.items()}}

    def _check_columns(self, row: Mapping[str, Any], renamed: Mapping[str, str]) -> None:
        for ours, theirs in renamed.items():
            if theirs not in row:
                raise ForkLeftError(
                    f"{self.source} has no column {theirs!r}, there are {', '.join(row)}; name the right one for "
                    f"{ours} (columns for train_data, eval_columns for eval_data)"
                )


def rows_of(
    source: str,
    subset: str | None,
    split: str,
    count: int | None,
    columns: Mapping[str, str] | None,
    seed: int,
    *,
    remote: bool = False,
) -> list[dict[str, Any]]:
    """All rows of a data source, or `count` of them.

    remote: of the hub, download only these rows, and not the whole set. Raises ForkLeftError as `RowStream` does, and
    if the source has no end.
    """
    if source == _LAB + _LAB_TRAIN and count is None:
        raise ForkLeftError("lab:train has no end; say with train_questions how many to take")
    return list(RowStream(source, subset, split, count, columns, seed, remote))


def _lab_rows(name: str, seed: int) -> Iterator[dict[str, Any]]:
    if name == _LAB_TRAIN:
        items: Iterable = training_stream(seed)
    elif name in HELD_OUT_SETS:
        items = held_out(name)
    else:
        sets = ", ".join(_LAB + known for known in (_LAB_TRAIN, *HELD_OUT_SETS))
        raise ForkLeftError(f"the lab has no data {name!r}; there are {sets}")
    for item in items:
        yield {"id": item.id, "question": item.prompt, "answer": item.answer, "solution": item.solution}


def _hub_rows(source: str, subset: str | None, split: str, *, streaming: bool = False) -> Any:
    from datasets import load_dataset

    try:
        return load_dataset(source, subset, split=split, streaming=streaming)
    except Exception as error:  # no network, no such data set, no such split: each its own class
        raise ForkLeftError(
            f"cannot load {source!r} (subset {subset}, split {split}) from the hub: {error}; a JSON Lines file, "
            "whose name ends in .jsonl or .jsonl.gz, will do as well"
        ) from error
