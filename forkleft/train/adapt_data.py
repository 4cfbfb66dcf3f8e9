"""Data of adaptation: from rows to samples, all at once or, from a source that does not fit, one after the other.

A row is one of three kinds, told by its columns: a `text`; a question with `answer` and `solution`, as for
`forkleft train` (`data.py`); or `messages` that end with what the assistant says. Of questions and conversations only
the response is learned, up to its stop token.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Sample
from forkleft.prompts import prompt_ids
from forkleft.students.student import Student
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.data import Example, is_blank, read_examples
from forkleft.train.prepare import checked_ids

_LOG = logging.getLogger(__name__)
# Rows of a source that are read before training, to find mistakes and to tell one source from another.
_LOOKED_AT = 256

RowKind = Literal["text", "questions", "messages"]


@dataclass(frozen=True)
class Samples:
    """Samples of one kind. budget: of responses; None for text. examples: the questions, if they are such."""

    kind: RowKind
    samples: list[Sample]
    budget: int | None
    examples: list[Example]


def kind_of(row: Mapping[str, Any]) -> RowKind:
    """What a row is. Raises ForkLeftError if its columns do not tell."""
    if row.get("text") is not None:
        return "text"
    if "answer" in row and ("question" in row or "messages" in row):
        return "questions"
    if row.get("messages") is not None:
        return "messages"
    raise ForkLeftError(
        "the data set needs a column text, or messages, or question (or messages) with answer and solution, found "
        f"{', '.join(sorted(row)) or 'no columns'}; rename its columns"
    )


def prepare_samples(student: Student, rows: Iterable[Mapping[str, Any]], config: AdaptConfig) -> Samples:
    """The samples of a data set, in its order, with ids and within all lengths.

    Raises ForkLeftError for a data set that is empty or of no known kind, rows that change their kind, rows that are
    too long (unless `long_rows` says what to do), a tokenizer without a chat template where one is needed, and text of
    which no row fills a block.
    """
    numbered = list(rows)
    if not numbered:
        raise ForkLeftError("the data set is empty; expected rows with text, messages, or question and solution")
    kind = kind_of(numbered[0])
    budget = None if kind == "text" else config.max_new_tokens
    examples: list[Example] = []
    reader = _Reader(student, config, kind)
    if kind == "questions":
        examples = _examples(student, numbered, config)
        samples = [sample for example in examples for sample in reader.of_example(example)]
    else:
        samples = [sample for number, row in enumerate(numbered) for sample in reader.of_row(number, row)]
    reader.tell(len(numbered))
    if not samples:
        raise ForkLeftError(f"no row of {len(numbered)} can be learned from; {reader.first_fault}")
    if kind == "text":
        _check_blocks(student, samples)
    return Samples(kind, samples, budget, examples)


class SampleStream:
    """Samples of a source that is read again in every epoch, and never held as a whole.

    rows: gives its rows anew each time that it is iterated over. Made, it reads the first rows, so that mistakes show
    at once. Iterated over, it raises ForkLeftError as `prepare_samples` does, and where the source fails.
    """

    def __init__(self, student: Student, rows: Iterable[Mapping[str, Any]], config: AdaptConfig) -> None:
        if iter(rows) is rows:
            raise ForkLeftError(
                "a stream of rows must be one that can be read again, for more epochs and to resume; found an iterator "
                "that can be read once: give an object that makes a new one (a data set of `datasets`, for instance)"
            )
        self._student, self._rows, self._config = student, rows, config
        first = [row for row, _ in zip(_read(rows), range(_LOOKED_AT), strict=False)]
        looked_at = prepare_samples(student, first, config)
        self.kind, self.budget = looked_at.kind, looked_at.budget
        self.digest = json_digest([[list(sample.prompt), list(sample.response)] for sample in looked_at.samples])

    def __iter__(self) -> Iterator[Sample]:
        reader = _Reader(self._student, self._config, self.kind)
        count = 0
        for number, row in enumerate(_read(self._rows)):
            count += 1
            if self.kind == "questions":
                for example in _examples(self._student, [row], self._config):
                    yield from reader.of_example(replace(example, id=str(number)))
            else:
                yield from reader.of_row(number, row)
        reader.tell(count)


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


def _examples(student: Student, rows: Sequence[Mapping[str, Any]], config: AdaptConfig) -> list[Example]:
    verifier = config.named_verifier()
    if verifier is None:
        raise ForkLeftError(
            "the data has answers, and a solution must state its answer in the form that is verified later; name the "
            "verifier (math, choice, lab, …)"
        )
    examples = read_examples(
        rows,
        prompt_template=config.prompt_template,
        reference_template=config.reference_template,
        verifier=verifier,
    )
    return [replace(example, prompt=prompt_ids(student.text_tokenizer, example.messages)) for example in examples]


class _Reader:
    """Makes samples of rows of one kind, and counts those that cannot be used."""

    def __init__(self, student: Student, config: AdaptConfig, kind: RowKind) -> None:
        self._student, self._config, self._kind = student, config, kind
        self._left_out: Counter[str] = Counter()
        self.first_fault = ""

    def of_example(self, example: Example) -> list[Sample]:
        if example.reference is None:
            return self._leave_out(f"row {example.id} has no solution", "have no solution")
        return self._answered(example.id, example.prompt, example.reference)

    def of_row(self, number: int, row: Mapping[str, Any]) -> list[Sample]:
        name = str(row["id"]) if row.get("id") is not None else str(number)
        if kind_of(row) != self._kind:
            raise ForkLeftError(f"row {name}: expected {self._kind} as in the rows before it, found {kind_of(row)}")
        if self._kind == "text":
            return self._text(name, row["text"])
        messages = [dict(message) for message in row["messages"]]
        if not all({"role", "content"} <= message.keys() for message in messages):
            raise ForkLeftError(f"row {name}: expected messages with role and content, found {row['messages']!r:.80}")
        if len(messages) < 2 or messages[-1]["role"] != "assistant" or is_blank(messages[-1]["content"]):
            return self._leave_out(
                f"the messages of row {name} do not end with an answer of the assistant",
                "do not end with an answer of the assistant",
            )
        prompt = prompt_ids(self._student.text_tokenizer, messages[:-1])
        return self._answered(name, prompt, messages[-1]["content"])

    def tell(self, rows: int) -> None:
        """Log what was left out, and why, once."""
        for reason, count in self._left_out.items():
            _LOG.warning("left out %d of %d rows, which %s; the first: %s", count, rows, reason, self.first_fault)

    def _answered(self, name: str, prompt: Sequence[int], text: str) -> list[Sample]:
        student, budget = self._student, self._config.max_new_tokens
        response = [*checked_ids(student, text, f"row {name}: the response"), student.vocabulary.end_id]
        room = min(budget, student.context - len(prompt))
        if len(response) > room:
            what = (
                f"row {name}: a prompt of {len(prompt)} tokens and a response of {len(response)} do not fit into the "
                f"budget of {budget} (max_new_tokens) and the context of {student.context}"
            )
            # Cut, a response would end without its stop token, or stop where it should not.
            return self._too_long(what, "cut" if self._config.long_rows == "split" else self._config.long_rows, [])
        student.check_prompt(prompt, len(response), f"row {name}")
        return [Sample(prompt, response, name)]

    def _text(self, name: str, text: Any) -> list[Sample]:
        student, config = self._student, self._config
        if not isinstance(text, str):
            raise ForkLeftError(f"row {name}: expected text, found {text!r:.80}")
        # With what the tokenizer puts before a text, if anything.
        ids = student.text_tokenizer.encode(text)
        if ids and ids[-1] in student.vocabulary.stop_ids:
            ids = ids[:-1]
        if len(ids) < 2:
            return self._leave_out(f"the text of row {name} has {len(ids)} token(s)", "have no two tokens")
        student.vocabulary.check(ids[1:], f"row {name}: the text", student.text_tokenizer)
        whole = [*ids, student.vocabulary.end_id]
        longest = min(config.max_length, student.context)
        if len(whole) <= longest:
            return [Sample(whole[:1], whole[1:], name)]
        what = f"row {name}: a text of {len(whole)} tokens does not fit into {longest} (max_length, and the context)"
        parts = _parts(student, whole, longest)
        return self._too_long(
            what, config.long_rows, [Sample(part[:1], part[1:], f"{name}/{n}") for n, part in enumerate(parts)]
        )

    def _too_long(self, what: str, rule: str, parts: list[Sample]) -> list[Sample]:
        if rule == "refuse":
            raise ForkLeftError(
                f"{what}; raise that, or say with long_rows what to do: skip such rows or, with text, cut or split them"
            )
        if rule == "split" and parts:
            return parts
        if rule == "cut" and parts:
            return parts[:1]
        return self._leave_out(what, "are too long")

    def _leave_out(self, what: str, reason: str) -> list[Sample]:
        self.first_fault = self.first_fault or what
        self._left_out[reason] += 1
        return []


def _parts(student: Student, ids: list[int], longest: int) -> list[list[int]]:
    """A text in pieces that end with a whole block, but for the last; a piece begins with the last token of another."""
    family, size = student.family, longest
    if family.attention == "block":
        # The first token of a piece is its prompt. A piece that is shorter than a block stays as it is.
        start, end = family.segment(longest - 1, 1)
        size = start if end > longest and start > 1 else longest
    return [ids[begin : begin + size] for begin in range(0, len(ids) - 1, size - 1)]


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
