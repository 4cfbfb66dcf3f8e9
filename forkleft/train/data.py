"""Training data: from the rows of a data set to examples with messages, answer and reference.

A row has a `question` (or `messages`, for system prompts and longer conversations) and an `answer`; it may have a
`solution` and an `id`. Real sets have gaps: a blank solution counts as none, and a row with a blank answer is left out.
"""

import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from forkleft.digests import is_intact, json_digest
from forkleft.errors import ForkLeftError, check_choice
from forkleft.files import JSON_ERRORS, read_jsonl, read_regular
from forkleft.objective.routes import Route
from forkleft.prompts import Message, read_conversation
from forkleft.train.folders import in_main_process
from forkleft.train.run_files import is_finished, last_update
from forkleft.verify import Verifier
from forkleft.verify.kept import kept_verdicts

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Example:
    """A question to learn from. `reference` is the solution as the student should write it.

    prompt, teacher_prompt, reference_ids: the same as ids, each by its own model's tokenizer. They are made once, by
    `prepare_examples`; `reference_ids` ends with a stop id if that fits the response budget, and is cut there if not.
    """

    id: str
    messages: tuple[Message, ...]
    answer: str
    reference: str | None
    prompt: Sequence[int] = ()
    teacher_prompt: Sequence[int] = ()
    reference_ids: Sequence[int] | None = None


def read_examples(
    rows: Iterable[Mapping[str, Any]],
    *,
    prompt_template: str,
    reference_template: str,
    verifier: Verifier,
    verdicts: Path | None = None,
) -> list[Example]:
    """The examples of a data set, in its order.

    verdicts: a file that keeps the verdicts on solutions. Then only the main process of a run verifies them, for all
    processes, each of which must call this.

    A row without an id is named by a digest of its messages and answer. If the verifier does not find the answer in a
    solution, the solution is put into `reference_template`: a reference must not unteach the form that the verifier
    needs. A blank solution counts as none. Rows with a blank answer cannot be verified: they are left out, with one
    warning.

    Raises ForkLeftError for a data set that is empty or has no answers, missing columns or values of the wrong kind,
    and for one id with two different questions or answers.
    """
    numbered = dict(enumerate(rows))
    if not numbered:
        raise ForkLeftError("the data set is empty; expected rows with question (or messages) and answer")
    blank = [number for number, row in numbered.items() if "answer" in row and is_blank(row["answer"])]
    if len(blank) == len(numbered):
        raise ForkLeftError(f"expected answers, found none in {len(blank)} row(s); name the column that has them")
    if blank:
        _LOG.warning(
            "left out %d of %d rows: their answer is blank; the first: row %d", len(blank), len(numbered), blank[0]
        )
    for number in blank:
        del numbered[number]
    examples = [example_of(str(number), row, prompt_template) for number, row in numbered.items()]
    named: dict[str, Example] = {}
    for example in examples:
        known = named.setdefault(example.id, example)
        if (known.messages, known.answer) != (example.messages, example.answer):
            what = "answers" if known.messages == example.messages else "questions"
            raise ForkLeftError(
                f"id {example.id!r} has two {what}, {known.answer!r} and {example.answer!r} to be answered; "
                "an id must name one question"
            )
    return stating_answers(examples, reference_template, verifier, verdicts)


def stating_answers(
    examples: Sequence[Example], reference_template: str, verifier: Verifier, verdicts: Path | None = None
) -> list[Example]:
    """The examples, with every reference in which the verifier does not find the answer put into the template.

    verdicts: as for `read_examples`.
    """
    solved = [example for example in examples if example.reference is not None]
    references, answers = [example.reference or "" for example in solved], [example.answer for example in solved]
    names = [example.id for example in solved]
    if verdicts is None:
        right = verifier.judge(references, answers, ids=names)
    else:
        right = in_main_process(partial(kept_verdicts, verdicts, verifier, references, answers, ids=names))
    unmarked = {id(example) for example, good in zip(solved, right, strict=True) if not good}
    return [_marked(example, reference_template) if id(example) in unmarked else example for example in examples]


def read_ids(path: str | Path, route: str | None = None) -> list[str]:
    """The ids of questions in a file: a JSON list, one id a line, or the `routes.jsonl` of a run.

    route: of a `routes.jsonl`, take the ids that were on this route when the run first visited them. Raises
    ForkLeftError if there is no such file, if it has no ids, or if a route is missing, or given for another kind.
    """
    path = Path(path)
    visited = path.name.endswith(".jsonl")
    if visited != (route is not None):
        expected = "expected train_route, one of " + ", ".join(Route) if visited else "a train_route has no meaning"
        raise ForkLeftError(f"{path}: {expected}; it says which ids to take from the routes.jsonl of a run")
    if visited:
        check_choice("train_route", route, Route)
        first: dict[str, str] = {}
        for routed in read_routes(path):
            for name, found in routed:
                first.setdefault(name, found)
        names = [name for name, found in first.items() if found == route]
    else:
        names = _listed_ids(path)
    if not names:
        raise ForkLeftError(f"{path}: expected ids of questions, found none" + (f" on route {route}" if route else ""))
    return names


def read_routes(path: Path) -> list[list[tuple[str, str]]]:
    """The rows of a `routes.jsonl`: for each update, the ids of its questions with their routes.

    Raises ForkLeftError if the file is damaged.
    """
    rows = []
    for where, row in read_jsonl(path):
        ids, routes = row.get("ids"), row.get("routes")
        if not (isinstance(ids, list) and isinstance(routes, list) and len(ids) == len(routes)):
            raise ForkLeftError(f"{where}: expected ids and routes, equally many, found {row!s:.60}")
        texts = all(isinstance(text, str) for text in (*ids, *routes))
        if not is_intact(row) or not texts or not set(routes) <= set(Route):
            raise ForkLeftError(f"{where} is damaged: it is not as it was written; take the file of another run")
        rows.append(list(zip(ids, routes, strict=True)))
    # A file that was cut at the end of a line looks whole.
    updates = last_update(path.parent)
    if len(rows) < updates and is_finished(path.parent):
        raise ForkLeftError(
            f"{path} is damaged: expected the routes of {updates} updates, found those of {len(rows)}; take the file "
            "of another run"
        )
    return rows


def _listed_ids(path: Path) -> list[str]:
    try:
        text = read_regular(path).strip()
        listed = json.loads(text) if text.startswith("[") else text.splitlines()
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path}: expected a JSON list of ids or one id a line, cannot read it: {error}") from error
    return [str(name).strip() for name in listed if str(name).strip()]


def rows_named(
    rows: Iterable[Mapping[str, Any]], names: Iterable[str], prompt_template: str, *, source: str
) -> list[Mapping[str, Any]]:
    """The rows of the questions with these ids, in the data's order.

    source: where the ids come from, for the message. Raises ForkLeftError, naming them, if ids are not in the data.
    """
    wanted, found, kept = dict.fromkeys(names), set(), []
    for number, row in enumerate(rows):
        if "answer" in row and is_blank(row["answer"]):
            continue
        name = example_of(str(number), row, prompt_template).id
        if name in wanted:
            found.add(name)
            kept.append(row)
    if missing := [name for name in wanted if name not in found]:
        named = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ForkLeftError(
            f"{source}: {len(missing)} of {len(wanted)} ids are not in the data: {named}; take the data that they are "
            "of, with all its questions (train_questions)"
        )
    return kept


def fill(template: str, values: Mapping[str, str]) -> str:
    """Replace `{name}` by its value, once. Not `str.format`: templates and values are full of LaTeX braces."""
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda found: values[found[1]], template)


def example_of(name: str, row: Mapping[str, Any], prompt_template: str) -> Example:
    """The example of a row, with its solution as it stands. name: of the row, for errors.

    Raises ForkLeftError for missing columns and values of the wrong kind.
    """
    if "answer" not in row or not {"question", "messages"} & row.keys():
        raise ForkLeftError(
            f"the data set needs the columns answer and question (or messages), found {', '.join(sorted(row))}; "
            "rename its columns"
        )
    if row.get("messages") is not None:
        messages = tuple(read_conversation(row["messages"], f"row {name}"))
    else:
        messages = ({"role": "user", "content": fill(prompt_template, {"question": _text(name, row, "question")})},)
    answer = _text(name, row, "answer")
    solution = None if is_blank(row.get("solution")) else _text(name, row, "solution")
    given = str(row["id"]) if row.get("id") is not None else _digest(messages, answer)
    return Example(given, messages, answer, solution)


def is_blank(value: Any) -> bool:
    """Whether a value of a row is missing or only white space."""
    return value is None or (isinstance(value, str) and not value.strip())


def _text(name: str, row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or is_blank(value):
        raise ForkLeftError(f"row {name}: expected text in {column}, found {value!r:.80}")
    return str(value)


def _marked(example: Example, template: str) -> Example:
    return replace(example, reference=fill(template, {"solution": example.reference or "", "answer": example.answer}))


def _digest(messages: Sequence[Message], answer: str) -> str:
    return json_digest([list(messages), answer])[:16]
