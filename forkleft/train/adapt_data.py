"""Data of adaptation: from rows (`adapt_rows.py`) to samples, all at once or, from a source that does not fit, a part
after the other. Both give the same samples.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Sample
from forkleft.students.student import Student
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_rows import RowKind, RowReader, kind_of_all
from forkleft.train.data import Example

_LOG = logging.getLogger(__name__)
# Rows of a source that are read before training, to find mistakes and to tell one source from another.
_LOOKED_AT = 256
# Rows of a source that are read at a time: solutions are verified together, in several processes.
_TOGETHER = 256


@dataclass(frozen=True)
class Samples:
    """Samples of one kind. budget: of responses; None for text. examples: the questions, if they are such."""

    kind: RowKind
    samples: list[Sample]
    budget: int | None
    examples: list[Example]


def prepare_samples(student: Student, rows: Iterable[Mapping[str, Any]], config: AdaptConfig) -> Samples:
    """The samples of a data set, in its order, with ids and within all lengths.

    Raises ForkLeftError for a data set that is empty or of no known kind, for rows that are too long or wrong (unless
    `long_rows` and `bad_rows` say what to do), for a tokenizer without a chat template where one is needed, and for
    text of which no row fills a block.
    """
    return _prepared(student, list(rows), config, Counter(), "rows")


def _prepared(
    student: Student, rows: Sequence[Mapping[str, Any]], config: AdaptConfig, told: Counter[str], among: str
) -> Samples:
    """told: gets how many rows were left out, by the reason. among: what the rows are called where that is logged."""
    kind = kind_of_all(rows)
    reader = RowReader(student, config, kind, told)
    samples, examples = [], []
    for found, example in reader.read(enumerate(rows)):
        samples += found
        if found and example is not None:
            examples.append(example)
    reader.tell(f"{len(rows)} {among}")
    if not samples:
        raise ForkLeftError(f"no row of {len(rows)} can be learned from; {reader.left_out.first}")
    if kind == "text":
        _check_blocks(student, samples)
    return Samples(kind, samples, None if kind == "text" else config.max_new_tokens, examples)


def to_be_answered(student: Student, data: Samples, config: AdaptConfig) -> Samples:
    """Held-out data with those questions alone that evaluations answer: the first `accuracy_questions` that can be.

    Decoding needs room for the whole budget, more than the solution takes. Raises ForkLeftError if no question has it.
    """
    if not (config.accuracy_questions and data.examples):
        return data
    room = student.context - config.max_new_tokens
    fitting = [example for example in data.examples if len(example.prompt) <= room]
    without = [example.id for example in data.examples if len(example.prompt) > room]
    where = f"a response of {config.max_new_tokens} tokens (max_new_tokens) in the context of {student.context}"
    if not fitting:
        raise ForkLeftError(
            f"accuracy_questions: no held-out question leaves room for {where}; lower that, or take shorter questions"
        )
    if without:
        _LOG.warning(
            "%d of %d held-out questions leave no room for %s, and are not answered in evaluations; the first: row %s",
            len(without),
            len(data.examples),
            where,
            without[0],
        )
    return replace(data, examples=fitting[: config.accuracy_questions])


class SampleStream:
    """Samples of a source that is read again in every epoch, and never held as a whole.

    rows: gives its rows anew each time that it is iterated over. Made, it reads the first rows, so that mistakes show
    at once. Iterated over, it raises ForkLeftError as `prepare_samples` does, and where the source fails. Rows that are
    left out are told while it is read, and not again in the next epoch.
    """

    def __init__(self, student: Student, rows: Iterable[Mapping[str, Any]], config: AdaptConfig) -> None:
        if iter(rows) is rows:
            raise ForkLeftError(
                "a stream of rows must be one that can be read again, for more epochs and to resume; found an iterator "
                "that can be read once: give an object that makes a new one (a data set of `datasets`, for instance)"
            )
        self._student, self._rows, self._config = student, rows, config
        first = list(islice(_read(rows), _LOOKED_AT))
        self._told: Counter[str] = Counter()
        looked_at = _prepared(student, first, config, self._told, "rows that were looked at")
        self.kind, self.budget = looked_at.kind, looked_at.budget
        self.digest = json_digest([[list(sample.prompt), list(sample.response)] for sample in looked_at.samples])

    def __iter__(self) -> Iterator[Sample]:
        reader = RowReader(self._student, self._config, self.kind, self._told)
        numbered, count = enumerate(_read(self._rows)), 0
        while together := list(islice(numbered, _TOGETHER)):
            count += len(together)
            for samples, _ in reader.read(together):
                yield from samples
            reader.tell(f"the first {count} rows", at_end=False)
        reader.tell(f"{count} rows")


def _read(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows. Raises ForkLeftError that says how far reading came, where the source fails."""
    number = 0
    try:
        for row in rows:
            yield row
            number += 1
    except ForkLeftError:
        raise
    except Exception as error:  # a torn file, a connection that is gone: each its own class
        raise ForkLeftError(
            f"the data ended early, behind row {number - 1}: {error}; mend or download it again, and resume from the "
            "newest checkpoint"
        ) from error


def _check_blocks(student: Student, samples: Sequence[Sample]) -> None:
    """Refuse text that never goes on behind its first block, and tell how much of it does not."""
    family = student.family
    if family.attention == "full":
        return
    short = [sample for sample in samples if len(sample.response) - 1 < family.block_size]
    if len(short) == len(samples):
        raise ForkLeftError(
            f"every text is shorter than a block of {family.block_size} tokens (the first has "
            f"{len(samples[0].response)}), so that the student would never see what stands before a block; take "
            "longer text, join short ones, or choose a smaller block_size"
        )
    if len(short) > len(samples) // 2:
        _LOG.warning(
            "%d of %d texts are shorter than a block of %d tokens, and teach nothing about later blocks",
            len(short),
            len(samples),
            family.block_size,
        )
