"""Benchmarks as data: what is asked, how it is measured, and where the questions come from.

    from forkleft.evaluate.benchmarks import BENCHMARKS, load_benchmark
    loaded = load_benchmark(BENCHMARKS["gsm8k"], "data/gsm8k_test.jsonl")

The questions are JSON Lines, plain or gzipped, with `id`, `question` and `answer`, and where they apply `solution`,
`choices`, `subject`, `language` and `cluster`; or a data set of the hub. Without a source they are looked for in the
folder that the environment variable FORKLEFT_DATA names, then on the hub.

Adding a benchmark is making a `Benchmark`. One whose items are made rather than read, such as the lab's, takes them
through `item_set`.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forkleft.errors import ForkLeftError
from forkleft.evaluate import prompts
from forkleft.evaluate.hub import SOURCES, HubData, hub_rows
from forkleft.files import read_jsonl
from forkleft.verify import LETTERS, Verifier

Protocol = Literal["generated", "slot"]
DATA_FOLDER = "FORKLEFT_DATA"
FIELDS = ("id", "question", "answer", "solution", "choices", "subject", "language", "cluster")

# `owner/name`, and not the name of a file.
_HUB_ID = re.compile(r"[\w-]+/(?!.*\.(?:jsonl?|gz|zip|txt|csv|tsv|ya?ml|parquet|arrow)$)[\w.-]+")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One question. `answer` is the letter of the right one where there are `choices`. `cluster`: what it shares with
    its translations."""

    id: str
    question: str
    answer: str
    solution: str | None = None
    choices: tuple[str, ...] | None = None
    subject: str | None = None
    language: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Benchmark:
    """A set of questions and how a model is measured on it.

    `protocol` is `generated` (the model writes, the verifier judges) or `slot` (likelihood of the offered letters).
    `verifier` is `opdlm` for the paper's mathematical benchmarks: their figures depend on its scorer. A kind's name or
    a function will do (`Verifier.of`).
    `templates` are prompts for some languages, `template` is for the others. `files` are names in the data folder, the
    first that is there counts. `cluster` is a pattern that finds in an id what translations of one question share,
    for items that do not say it themselves.
    `made`: its items are made, not read from anywhere.
    """

    name: str
    items: int
    protocol: Protocol
    verifier: Verifier
    template: str
    licence: str
    max_new_tokens: int = 2048
    files: tuple[str, ...] = ()
    hub: HubData | None = None
    templates: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None
    made: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", Verifier.of(self.verifier))

    def messages(self, item: Item) -> list[dict[str, str]]:
        """The conversation that asks the item: one user turn."""
        template = self.templates.get(item.language or "", self.template)
        return [{"role": "user", "content": prompts.user_turn(template, item.question, item.choices)}]

    def cluster_of(self, item: Item) -> str:
        """What the item shares with those that are no independent evidence; its own id if there are none."""
        if item.cluster is not None or self.cluster is None:
            return item.cluster or item.id
        found = re.search(self.cluster, item.id)
        if found is None:
            raise ForkLeftError(
                f"{self.name}: expected an id that matches {self.cluster!r}, found {item.id!r}; rename it, or say in "
                "the field cluster which translations belong together"
            )
        return found[0]


@dataclass(frozen=True)
class ItemSet:
    """The items of a benchmark, and where they came from."""

    benchmark: Benchmark
    items: tuple[Item, ...]
    source: str

    @property
    def complete(self) -> bool:
        """Whether there are as many items as the benchmark has."""
        return len(self.items) == self.benchmark.items

    @property
    def count(self) -> str:
        """`1319 items`, or `21 of 45 items`."""
        return f"{len(self.items)} items" if self.complete else f"{len(self.items)} of {self.benchmark.items} items"


BENCHMARKS: dict[str, Benchmark] = {
    one.name: one
    for one in (
        Benchmark(
            *("gsm8k", 1319, "generated", "opdlm", prompts.MATH, "MIT"),
            files=("gsm8k_test.jsonl",),
            hub=SOURCES["gsm8k"],
        ),
        Benchmark(
            *("math500", 500, "generated", "opdlm", prompts.MATH, "MIT (disputed)"),
            files=("math500.jsonl",),
            hub=SOURCES["math500"],
        ),
        Benchmark(
            *("aime24", 30, "generated", "opdlm", prompts.MATH, "MIT (compilation)"),
            files=("aime24.jsonl",),
            hub=SOURCES["aime24"],
        ),
        Benchmark(
            *("aime25", 30, "generated", "opdlm", prompts.MATH, "Apache-2.0 (compilation)"),
            files=("aime25.jsonl",),
            hub=SOURCES["aime25"],
        ),
        Benchmark(
            *("livemathbench-hard", 45, "generated", "opdlm", prompts.LIVEMATHBENCH, "CC-BY-4.0"),
            files=("livemathbench_hard.jsonl", "livemathbench_hard_en.jsonl"),
            hub=SOURCES["livemathbench-hard"],
            templates={"zh": prompts.LIVEMATHBENCH_CHINESE, "cn": prompts.LIVEMATHBENCH_CHINESE},
        ),
        Benchmark(
            *("mt-aime2024", 1650, "generated", "opdlm", prompts.MATH, "MIT (compilation)"),
            max_new_tokens=4096,
            files=("mt_aime2024.jsonl",),
            hub=SOURCES["mt-aime2024"],
            # 55 translations of 30 questions: mt-aime24-welsh-II-09.
            cluster=r"I{1,2}-\d+$",
        ),
        Benchmark(
            *("gpqa-diamond", 198, "slot", "choice", prompts.CHOICE, "CC-BY-4.0 (keep offline)"),
            files=("gpqa_diamond.jsonl",),
            hub=SOURCES["gpqa-diamond"],
        ),
        Benchmark(
            *("mlogiqa", 800, "slot", "choice", prompts.CHOICE, "Apache-2.0"),
            files=("mlogiqa.jsonl", "mlogiqa_en_ko_zh.jsonl"),
            hub=SOURCES["mlogiqa"],
            # 80 questions in 10 languages: mlogiqa-en-00. English and Chinese have one order, so that a number names
            # one question; Korean has another, and the other seven were not at hand: there every item is its own.
            cluster=r"^(?!.*\b(?:en|zh)-\d+$).+$|\d+$",
        ),
        Benchmark(
            *("ceval", 1346, "slot", "choice", prompts.CHOICE, "CC-BY-NC-SA-4.0"),
            files=("ceval_val.jsonl",),
            hub=SOURCES["ceval"],
        ),
        Benchmark(
            *("mmlu", 14042, "slot", "choice", prompts.CHOICE, "MIT"),
            files=("mmlu_test.jsonl.gz", "mmlu_test.jsonl"),
            hub=SOURCES["mmlu"],
        ),
    )
}


def load_benchmark(benchmark: Benchmark, source: str | Path | HubData | None = None) -> ItemSet:
    """The items of a benchmark from a file, from a folder with one of its files, or from the hub (`owner/name`).

    Without a source: the folder FORKLEFT_DATA, then the hub. A data set of the hub that is named has our fields, in a
    split `test`; one with other columns is a `HubData`. Another number of items than the benchmark has is logged
    as a warning and told by `ItemSet.count`. Raises ForkLeftError if there is nothing to read, for a benchmark whose
    items are made, for lines that are not JSON, missing or unusable fields, an answer that is not among the choices,
    and repeated ids.
    """
    if benchmark.made:
        raise ForkLeftError(f"{benchmark.name}: its items are made, not read; take those of the lab from lab_items")
    if source is None:
        source = data_at_hand(benchmark) or benchmark.hub
        if source is None:
            files = " or ".join(benchmark.files)
            raise ForkLeftError(
                f"{benchmark.name}: found no data; name a JSON Lines file or a hub data set with the fields "
                + ", ".join(FIELDS[:3])
                + (f", or set {DATA_FOLDER} to a folder with {files}" if files else "")
            )
    if isinstance(source, HubData):
        return item_set(benchmark, _hub_items(benchmark, source), source.path)
    path = Path(source).expanduser()
    # The hub takes half a minute to say that it cannot be reached: not for a file that is missing here.
    if not path.exists() and not path.parent.is_dir() and _HUB_ID.fullmatch(str(source)):
        try:
            return load_benchmark(benchmark, HubData(str(source)))
        except ForkLeftError as error:
            raise ForkLeftError(f"there is no file or folder {source}, and {error}") from error
    if path.is_dir():
        path = _in_folder(benchmark, path) or path / " or ".join(benchmark.files)
    return item_set(benchmark, read_items(path), str(path))


def data_at_hand(benchmark: Benchmark, folder: str | Path | None = None) -> Path | None:
    """The benchmark's file in a folder, by default FORKLEFT_DATA, or None."""
    folder = folder or os.environ.get(DATA_FOLDER)
    return _in_folder(benchmark, Path(folder)) if folder else None


def read_items(path: str | Path) -> list[Item]:
    """The items of a JSON Lines file, plain or gzipped (`.gz`)."""
    return [_item(where, row) for where, row in read_jsonl(path)]


def item_set(benchmark: Benchmark, items: Iterable[Item], source: str) -> ItemSet:
    """Items checked against their benchmark. Raises ForkLeftError; another count is only said."""
    items = tuple(items)
    where = f"{benchmark.name} from {source}"
    if not items:
        raise ForkLeftError(f"{where}: expected {benchmark.items} items, found none")
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise ForkLeftError(
                f"{where}: id {item.id!r} occurs twice; ids name the results of an item, make them unique"
            )
        seen.add(item.id)
        benchmark.cluster_of(item)
        if item.choices is None:
            if benchmark.protocol == "slot":
                raise ForkLeftError(
                    f"{where}: item {item.id!r} has no choices to compare; add the field choices, or let the model "
                    "write its answers (--protocol generated)"
                )
            if benchmark.verifier.kind != "choice":
                continue
        # Where the question itself holds its options, the verifier looks for the usual letters.
        letters = LETTERS if item.choices is None else prompts.letters_of(item.choices)
        if len(item.answer) != 1 or item.answer not in letters:
            raise ForkLeftError(
                f"{where}: item {item.id!r} offers {letters}, and its answer is {item.answer!r:.40}; expected one of "
                "the letters"
            )
    loaded = ItemSet(benchmark, items, source)
    if not loaded.complete:
        _log.warning("%s: %s", where, loaded.count)
    return loaded


def _in_folder(benchmark: Benchmark, folder: Path) -> Path | None:
    return next((folder / name for name in benchmark.files if (folder / name).is_file()), None)


def _hub_items(benchmark: Benchmark, hub: HubData) -> list[Item]:
    try:
        return [_item(where, row) for where, row in hub_rows(hub)]
    except ForkLeftError as error:
        files = " or ".join(benchmark.files) or "a file"
        raise ForkLeftError(
            f"{benchmark.name}: {error}; or put {files} into the folder that {DATA_FOLDER} names"
        ) from error


def _item(where: str, row: Any) -> Item:
    if not isinstance(row, Mapping) or not {"id", "question", "answer"} <= row.keys():
        found = ", ".join(map(str, row)) if isinstance(row, Mapping) else repr(row)
        raise ForkLeftError(
            f"{where}: expected the fields id, question and answer, found {found:.80}; rename the fields"
        )
    known = {name: row[name] for name in FIELDS if row.get(name) is not None}
    choices = known.pop("choices", None)
    for name, value in known.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            raise ForkLeftError(f"{where}: expected text in {name}, found {value!r:.60}")
    missing = [name for name in FIELDS[:3] if name not in known]
    if missing:
        raise ForkLeftError(f"{where}: expected text in {missing[0]}, found null")
    if choices is not None and not (
        isinstance(choices, list) and 2 <= len(choices) <= 26 and all(isinstance(one, str) for one in choices)
    ):
        raise ForkLeftError(f"{where}: expected a list of 2 to 26 texts in choices, found {choices!r:.60}")
    texts = {name: str(value) for name, value in known.items()}
    for name, text in [*texts.items(), *(("choices", one) for one in choices or ())]:
        # JSON can hold half of a pair, which no tokenizer takes and no file of results.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ForkLeftError(f"{where}: expected Unicode text in {name}, found a lone surrogate in {text!r:.60}")
    return Item(**texts, choices=None if choices is None else tuple(choices))
