"""Where the hub keeps the benchmarks, and how each data set there is read into our fields.

    from forkleft.evaluate.hub import SOURCES, HubData, hub_rows
    hub_rows(SOURCES["gsm8k"])
    hub_rows(HubData("owner/name", split="validation"))

Every data set has its own columns, so each has a function that turns one of its rows into rows of ours. Data sets whose
columns already have our names use `plain`.
"""

import ast
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.evaluate.prompts import letters_of

# How often the hub's client asks again before it says that there is no connection.
_RETRIES = 1

HubRow = Mapping[str, Any]
# From the subset of a row, its number there, and the row, to one row of ours or several.
Reader = Callable[[str | None, int, HubRow], list[dict[str, Any]]]


def plain(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    """Columns named as our fields. A row without an id gets its number; an answer that is the index of a choice becomes
    its letter."""
    answer, choices = row.get("answer"), row.get("choices")
    ours = dict(row)
    if row.get("id") is None:
        ours["id"] = str(number) if subset is None else f"{subset}-{number}"
    if isinstance(answer, int) and choices:
        ours["answer"] = _letter(answer, choices)
    return [ours]


def _gsm8k(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    solution = row["answer"]
    answer = solution.rpartition("####")[2].strip().replace(",", "")
    return [{"id": str(number), "question": row["question"], "answer": answer, "solution": solution}]


def _math500(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    return [{**row, "id": row["unique_id"], "question": row["problem"]}]


def _aime(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    return [{"id": str(row.get("id", number)), "question": row["problem"], "answer": row["answer"]}]


def _livemathbench(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    language = (subset or "").rpartition("_")[2]
    answer = row["answer"].strip()
    if answer.startswith("$") and answer.endswith("$") and answer.count("$") == 2:
        answer = answer[1:-1]
    question = {"id": f"{language}-{number:02}", "question": row["question"], "answer": answer, "language": language}
    return [question | {"subject": row["question_type"]}]


def _mt_aime(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    """One row is a question in all its languages, a column each."""
    shared = {"answer": row["answer"], "cluster": f"{number:02}"}
    return [
        {"id": f"{language}-{number:02}", "question": text, "language": language} | shared
        for language, text in row.items()
        if language != "answer"
    ]


def _gpqa(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    """The right answer comes first in the data; the options are shuffled, in the same order for everyone."""
    # Imported here, because the list of benchmarks does not need PyTorch.
    import torch

    from forkleft.randomness import keyed_generator

    name = row["Record ID"]
    options = [row["Correct Answer"], *(row[f"Incorrect Answer {wrong}"] for wrong in (1, 2, 3))]
    order = torch.randperm(len(options), generator=keyed_generator(0, "gpqa", name)).tolist()
    asked = {"id": name, "question": row["Question"].strip(), "subject": row["Subdomain"]}
    return [asked | {"choices": [options[place].strip() for place in order], "answer": _letter(order.index(0), order)}]


def _mlogiqa(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    # The options are a list, written as text.
    choices = ast.literal_eval(row["options"])
    asked = {"id": f"{subset}-{number:02}", "question": f"{row['context']}\n{row['question']}", "language": subset}
    return [asked | {"choices": choices, "answer": _letter(int(row["answer"]), choices)}]


def _ceval(subset: str | None, number: int, row: HubRow) -> list[dict[str, Any]]:
    choices = [row[letter] for letter in "ABCD"]
    asked = {"id": f"{subset}-{number:03}", "question": row["question"], "subject": subset, "language": "zh"}
    return [asked | {"choices": choices, "answer": row["answer"]}]


def _letter(place: int, choices: list) -> str | None:
    return letters_of(choices)[place : place + 1] or None


@dataclass(frozen=True)
class HubData:
    """A data set of the hub: all rows of one split of its subsets (None: of its only one), read by `read`."""

    path: str
    subsets: tuple[str | None, ...] = (None,)
    split: str = "test"
    read: Reader = plain


_MLOGIQA_LANGUAGES = ("en", "zh", "ar", "es", "fr", "ja", "ko", "pt", "th", "vi")
_CEVAL_SUBJECTS = (
    *("accountant", "advanced_mathematics", "art_studies", "basic_medicine", "business_administration"),
    *("chinese_language_and_literature", "civil_servant", "clinical_medicine", "college_chemistry"),
    *("college_economics", "college_physics", "college_programming", "computer_architecture", "computer_network"),
    *("discrete_mathematics", "education_science", "electrical_engineer"),
    *("environmental_impact_assessment_engineer", "fire_engineer", "high_school_biology", "high_school_chemistry"),
    *("high_school_chinese", "high_school_geography", "high_school_history", "high_school_mathematics"),
    *("high_school_physics", "high_school_politics", "ideological_and_moral_cultivation", "law", "legal_professional"),
    *("logic", "mao_zedong_thought", "marxism", "metrology_engineer", "middle_school_biology"),
    *("middle_school_chemistry", "middle_school_geography", "middle_school_history", "middle_school_mathematics"),
    *("middle_school_physics", "middle_school_politics", "modern_chinese_history", "operating_system", "physician"),
    *("plant_protection", "probability_and_statistics", "professional_tour_guide", "sports_science"),
    *("tax_accountant", "teacher_qualification", "urban_and_rural_planner", "veterinary_medicine"),
)

SOURCES = {
    "gsm8k": HubData("openai/gsm8k", ("main",), read=_gsm8k),
    "math500": HubData("HuggingFaceH4/MATH-500", read=_math500),
    "aime24": HubData("HuggingFaceH4/aime_2024", split="train", read=_aime),
    "aime25": HubData("math-ai/aime25", read=_aime),
    "livemathbench-hard": HubData(
        "opencompass/LiveMathBench", ("v202412_hard_en", "v202412_hard_cn"), read=_livemathbench
    ),
    "mt-aime2024": HubData("amphora/MCLM", ("MT-AIME2024",), read=_mt_aime),
    # Its authors ask users to accept their terms there first.
    "gpqa-diamond": HubData("Idavidrein/gpqa", ("gpqa_diamond",), split="train", read=_gpqa),
    "mlogiqa": HubData("swiss-ai/mlogiqa", _MLOGIQA_LANGUAGES, read=_mlogiqa),
    "ceval": HubData("ceval/ceval-exam", _CEVAL_SUBJECTS, split="val", read=_ceval),
    "mmlu": HubData("cais/mmlu", ("all",)),
}


def hub_rows(hub: HubData) -> Iterator[tuple[str, dict[str, Any]]]:
    """Where each row is from, for messages, and the row in our fields.

    Raises ForkLeftError if the data set cannot be loaded, or does not have the columns that its reader expects.
    """
    from datasets import load_dataset

    for subset in hub.subsets:
        named = hub.path if subset is None else f"{hub.path}, {subset}"
        try:
            with _impatient():
                rows = load_dataset(hub.path, subset, split=hub.split)
        except Exception as error:  # no network, no such data set, no permission: each its own class
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ForkLeftError(f"cannot load {named} (split {hub.split}) from the hub: {reason}") from error
        for number, row in enumerate(rows):
            where = f"{named}, row {number}"
            try:
                read = hub.read(subset, number, row)
            except (AttributeError, KeyError, TypeError, ValueError, SyntaxError) as error:
                raise ForkLeftError(
                    f"{where}: expected the columns that this data set had when its reader was written, found "
                    f"{', '.join(map(str, row)):.200} ({type(error).__name__}: {error}); give the questions as JSON "
                    "Lines instead"
                ) from error
            for ours in read:
                yield where, ours


@contextmanager
def _impatient() -> Iterator[None]:
    """Let the hub's client give up after a few seconds without logging each try: the error says it in a line."""
    from huggingface_hub.utils import http_backoff

    log, usual = logging.getLogger("huggingface_hub.utils._http"), http_backoff.__kwdefaults__
    level = log.level
    log.setLevel(logging.ERROR)
    http_backoff.__kwdefaults__ = {**(usual or {}), "max_retries": _RETRIES}
    try:
        yield
    finally:
        log.setLevel(level)
        http_backoff.__kwdefaults__ = usual
