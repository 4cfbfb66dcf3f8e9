"""Rows of adaptation's data: of which kind they are, and what is learned from each.

A row is one of three kinds, told by its columns: a `text`; a question with `answer` and `solution`, as for
`forkleft train` (`data.py`); or `messages` that end with what the assistant says. Of questions and conversations only
the response is learned, up to its stop token.

Real sets have gaps. A row that has nothing to learn from (no answer, no solution, no second token) is left out. One
that does not fit is treated as `long_rows` says, one that is wrong as `bad_rows` says. All that is left out is counted
and told, in lists and in streams alike.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Sample, fed_tokens
from forkleft.prompts import Message, check_chat_template, prompt_ids, read_messages
from forkleft.students.student import Student
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.data import Example, example_of, is_blank, stating_answers
from forkleft.train.prepare import checked_ids

_LOG = logging.getLogger(__name__)

RowKind = Literal["text", "questions", "messages"]


def kind_of(row: Mapping[str, Any]) -> RowKind:
    """What a row is: by its values and, if there are none, by its columns. Raises ForkLeftError if they do not tell."""
    if not isinstance(row, Mapping):
        raise ForkLeftError(f"expected rows with columns, found {row!r:.80}; plain text is a row with a column text")
    if row.get("text") is not None:
        return "text"
    if not is_blank(row.get("answer")) and (row.get("question") is not None or row.get("messages") is not None):
        return "questions"
    if row.get("messages") is not None:
        return "messages"
    if {"question", "answer"} <= row.keys():
        return "questions"
    if "text" in row:
        return "text"
    if "messages" in row:
        return "messages"
    raise ForkLeftError(
        "the data set needs a column text, or messages, or question (or messages) with answer and solution, found "
        f"{', '.join(sorted(row)) or 'no columns'}; rename its columns"
    )


def kind_of_all(rows: Iterable[Mapping[str, Any]]) -> RowKind:
    """What the rows of a data set are: what the first that tells is. Raises ForkLeftError if none does."""
    fault: ForkLeftError | None = None
    likely: RowKind | None = None
    for row in rows:
        try:
            kind = kind_of(row)
        except ForkLeftError as error:
            fault = fault or error
            continue
        if not _is_open(row):
            return kind
        likely = likely or kind
    if likely is not None:
        return likely
    raise fault or ForkLeftError("the data set is empty; expected rows with text, messages, or question and solution")


def _is_open(row: Mapping[str, Any]) -> bool:
    """Whether later rows may show another kind: this one has no values, or messages beside an answer that is blank."""
    if row.get("text") is not None:
        return False
    return is_blank(row["answer"]) if "answer" in row else row.get("messages") is None


class LeftOut:
    """Counts the rows that are left out, by the reason, and tells of them.

    told: what was told before, if somebody has; it grows with what is told here.
    """

    def __init__(self, told: Counter[str] | None = None) -> None:
        self._count: Counter[str] = Counter()
        self._first: dict[str, str] = {}
        self._told = Counter() if told is None else told

    def add(self, what: str, reason: str) -> None:
        """Count a row. what: its name and fault; reason: what it has in common with others."""
        self._first.setdefault(reason, what)
        self._count[reason] += 1

    @property
    def first(self) -> str:
        """The first fault that was found."""
        return next(iter(self._first.values()), "")

    def tell(self, among: str, *, at_end: bool = True) -> None:
        """Log what was left out and not told before. among: of which rows.

        at_end: no more rows come. Before the end only a tenfold number is told, so that a source without end is heard
        of and does not fill the log.
        """
        for reason, count in self._count.items():
            before = self._told[reason]
            if count > before if at_end else count >= max(1, 10 * before):
                self._told[reason] = count
                _LOG.warning("left out %d of %s, which %s; the first: %s", count, among, reason, self._first[reason])


class RowReader:
    """Makes samples of rows of one kind; those that are left out are in `left_out`.

    Raises ForkLeftError if questions are to be read without a verifier, and messages without a chat template.
    """

    def __init__(self, student: Student, config: AdaptConfig, kind: RowKind, told: Counter[str] | None = None) -> None:
        self._student, self._config, self._kind = student, config, kind
        self._verifier = config.named_verifier()
        self.left_out = LeftOut(told)
        if kind == "questions" and self._verifier is None:
            raise ForkLeftError(
                "the data has answers, and a solution must state its answer in the form that is verified later; name "
                "the verifier (math, choice, lab, …)"
            )
        if kind != "text":
            check_chat_template(student.text_tokenizer)

    def read(self, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[list[Sample], Example | None]]:
        """What is learned of each of some rows, with their numbers in the data; of a question, also what it asks.

        Questions are verified together. Raises ForkLeftError as `long_rows` and `bad_rows` say.
        """
        if self._kind == "questions":
            yield from self._of_questions(rows)
            return
        of_row = self._of_text if self._kind == "text" else self._of_messages
        for number, row in rows:
            yield of_row(_name(number, row), row), None

    def tell(self, among: str, *, at_end: bool = True) -> None:
        """Let the first process tell what was left out, as `LeftOut.tell` does."""
        if self._config.process_index == 0:
            self.left_out.tell(among, at_end=at_end)

    def _of_questions(
        self, rows: Iterable[tuple[int, Mapping[str, Any]]]
    ) -> Iterator[tuple[list[Sample], Example | None]]:
        examples: list[Example] = []
        for number, row in rows:
            name = _name(number, row)
            if isinstance(row, Mapping) and "answer" in row and is_blank(row["answer"]):
                self._leave_out(f"the answer of row {name} is blank", "have no answer")
                continue
            try:
                self._check_kind(name, row)
                example = example_of(name, row, self._config.prompt_template)
                prompt = self._prompt(name, example.messages)
            except ForkLeftError as error:
                self._bad(error)
                continue
            if example.reference is None:
                self._leave_out(f"row {name} has no solution", "have no solution")
                continue
            examples.append(replace(example, id=name, prompt=prompt))
        assert self._verifier is not None
        for example in stating_answers(examples, self._config.reference_template, self._verifier):
            yield self._answered(example.id, example.prompt, example.reference or ""), example

    def _of_messages(self, name: str, row: Mapping[str, Any]) -> list[Sample]:
        try:
            self._check_kind(name, row)
            *asked, last = read_messages(row["messages"], f"row {name}", open_end=True)
            if not asked or last["role"] != "assistant" or is_blank(last["content"]):
                reason = "do not end with an answer of the assistant"
                return self._leave_out(f"the messages of row {name} {reason}", reason)
            prompt = self._prompt(name, asked)
        except ForkLeftError as error:
            return self._bad(error)
        return self._answered(name, prompt, last["content"])

    def _of_text(self, name: str, row: Mapping[str, Any]) -> list[Sample]:
        student, rule = self._student, self._config.long_rows
        try:
            self._check_kind(name, row)
            ids = self._text_ids(name, row["text"])
        except ForkLeftError as error:
            return self._bad(error)
        if len(ids) < 2:
            return self._leave_out(f"the text of row {name} has {len(ids)} token(s)", "have no two tokens")
        whole = [*ids, student.vocabulary.end_id]
        longest = min(self._config.max_length, student.context)
        if len(whole) <= longest:
            return [Sample(whole[:1], whole[1:], name)]
        if rule in ("cut", "split"):
            parts = _parts(student, whole, longest)
            samples = [Sample(part[:1], part[1:], f"{name}/{number}") for number, part in enumerate(parts)]
            return samples if rule == "split" else samples[:1]
        return self._too_long(
            f"row {name}: a text of {len(whole)} tokens does not fit into {longest} (max_length, and the context)"
        )

    def _check_kind(self, name: str, row: Mapping[str, Any]) -> None:
        try:
            found = kind_of(row)
        except ForkLeftError as error:
            raise ForkLeftError(f"row {name}: {error}") from error
        if found != self._kind:
            raise ForkLeftError(f"row {name}: expected {self._kind} as in other rows, found {found}")

    def _prompt(self, name: str, messages: Sequence[Message]) -> list[int]:
        try:
            return prompt_ids(self._student.text_tokenizer, messages)
        except ForkLeftError as error:
            raise ForkLeftError(f"row {name}: {error}") from error

    def _answered(self, name: str, prompt: Sequence[int], text: str) -> list[Sample]:
        student, budget = self._student, self._config.max_new_tokens
        try:
            response = [*checked_ids(student, text, f"row {name}: the response"), student.vocabulary.end_id]
        except ForkLeftError as error:
            return self._bad(error)
        sample, tokens = Sample(prompt, response, name), f"row {name}: a prompt of {len(prompt)} tokens"
        if len(response) > min(budget, student.context - len(prompt)):
            return self._too_long(
                f"{tokens} and a response of {len(response)} do not fit into the budget of {budget} (max_new_tokens) "
                f"and the context of {student.context}"
            )
        if fed_tokens(student, sample, budget) > student.context:
            return self._too_long(
                f"{tokens} and the whole budget of {budget} (max_new_tokens), which full attention sees, do not fit "
                f"into the context of {student.context}"
            )
        try:
            student.check_prompt(prompt, len(response), f"row {name}")
        except ForkLeftError as error:
            return self._bad(error)
        return [sample]

    def _text_ids(self, name: str, text: Any) -> list[int]:
        student = self._student
        if not isinstance(text, str):
            raise ForkLeftError(f"row {name}: expected text, found {text!r:.80}")
        # With what the tokenizer puts before a text, if anything.
        ids = student.text_tokenizer.encode(text)
        if ids and ids[-1] in student.vocabulary.stop_ids:
            ids = ids[:-1]
        if ids:
            student.check_prompt(ids[:1], 0, f"row {name}")
            student.vocabulary.check(ids[1:], f"row {name}: the text", student.text_tokenizer)
        return ids

    def _too_long(self, what: str) -> list[Sample]:
        # Cut, a response would end without its stop token, or stop where it should not: it is left out instead.
        if self._config.long_rows == "refuse":
            raise ForkLeftError(
                f"{what}; raise that, or say with long_rows what to do: skip such rows or, with text, cut or split them"
            )
        return self._leave_out(what, "are too long")

    def _bad(self, error: ForkLeftError) -> list[Sample]:
        if self._config.bad_rows == "refuse":
            raise ForkLeftError(f"{error}; or leave such rows out with bad_rows: skip") from error
        return self._leave_out(str(error), "cannot be used")

    def _leave_out(self, what: str, reason: str) -> list[Sample]:
        self.left_out.add(what, reason)
        return []


def _name(number: int, row: Any) -> str:
    """The name of a row: its id, else its number."""
    given = row.get("id") if isinstance(row, Mapping) else None
    return str(number) if given is None else str(given)


def _parts(student: Student, ids: list[int], longest: int) -> list[list[int]]:
    """A text in pieces that end with a whole block, but for the last; a piece begins with the last token of another."""
    family, size = student.family, longest
    if family.attention == "block":
        # The first token of a piece is its prompt. A piece that is shorter than a block stays as it is.
        start, end = family.segment(longest - 1, 1)
        size = start if end > longest and start > 1 else longest
    return [ids[begin : begin + size] for begin in range(0, len(ids) - 1, size - 1)]
