"""Benchmarks as data: what is asked, how it is measured, and where the questions come from.

    from forkleft.evaluate.benchmarks import BENCHMARKS, load_benchmark
    loaded = load_benchmark(BENCHMARKS["gsm8k"], "data/gsm8k_test.jsonl")

The questions are JSON Lines, plain or gzipped, with `id`, `question` and `answer`, and where they apply `solution`,
`choices`, `subject`, `language` and `cluster`; or a data set of the hub. If no source is given, they are looked for in
the folder that the environment variable FORKLEFT_DATA names, then on the hub.

To add a benchmark, describe it in a YAML file (`read_benchmarks`), as `benchmarks.yaml` describes the built-in ones, or
make a `Benchmark`. A benchmark whose items are made rather than read, such as the lab's, has a `source`.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from forkleft.errors import ForkLeftError, nearest
from forkleft.evaluate import prompts
from forkleft.evaluate.hub import SOURCES, HubData, hub_rows
from forkleft.files import JSON_ERRORS, YamlLoader, read_jsonl, read_regular
from forkleft.trust import EVERYTHING, Trust
from forkleft.verify import LETTERS, Verifier

Protocol = Literal["generated", "slot"]
DATA_FOLDER = "FORKLEFT_DATA"
FIELDS = ("id", "question", "answer", "solution", "choices", "subject", "language", "cluster")

# `owner/name`, and not the name of a file.
_HUB_ID = re.compile(r"[\w-]+/(?!.*\.(?:jsonl?|gz|zip|txt|csv|tsv|ya?ml|parquet|arrow)$)[\w.-]+")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Item:
    """One question. `answer`: with `choices`, the letter of the right one. `cluster`: a name that the question shares
    with its translations."""

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
    `verifier` may be given as the name of a kind or as a function (`Verifier.of`). It is `opdlm` for the paper's
    mathematical benchmarks: their figures depend on that scorer.
    `templates` are prompts for some languages, `template` is for the others. `files` are names in the data folder; the
    first that exists is used. `cluster` is a pattern that finds in an id what the translations of one question share,
    for items without a cluster of their own.
    `source` makes the items, if they are not read. `home` is the folder of the file that describes the benchmark.
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
    source: Callable[["Benchmark"], "ItemSet"] | None = None
    home: Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "verifier", Verifier.of(self.verifier))

    def messages(self, item: Item) -> list[dict[str, str]]:
        """The conversation that asks the item: one user turn."""
        template = self.templates.get(item.language or "", self.template)
        return [{"role": "user", "content": prompts.user_turn(template, item.question, item.choices)}]

    def cluster_of(self, item: Item) -> str:
        """The name that the item shares with its translations; its own id if it has none."""
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


def read_benchmarks(path: str | Path, trust: Trust = EVERYTHING) -> list[Benchmark]:
    """The benchmarks that a YAML file describes, one in each document.

    `name`, `items`, `protocol` and `template` (a text with {question}, or a name of `prompts.TEMPLATES`) are required.
    `data` is one file or several, beside the YAML file or in FORKLEFT_DATA (the first that exists is used), or a data
    set of the hub. `verifier` may name a function of the user's, which is imported if `trust` allows it. Raises
    ForkLeftError if not, for a file that cannot be read, for unknown or missing fields, and for values of the wrong
    kind.
    """
    path = Path(path).expanduser()
    try:
        documents = list(yaml.load_all(read_regular(path), YamlLoader))
    except FileNotFoundError:
        raise ForkLeftError(f"there is no file {path} that describes a benchmark") from None
    except (OSError, yaml.YAMLError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} is no YAML file: {error}") from error
    return [_described(path, document, trust) for document in documents or [None]]


class _BuiltIn(Mapping[str, Benchmark]):
    """The benchmarks of the package by name, read when the first is asked for."""

    @cached_property
    def _read(self) -> dict[str, Benchmark]:
        benchmarks = read_benchmarks(Path(__file__).with_name("benchmarks.yaml"))
        return {benchmark.name: replace(benchmark, hub=SOURCES[benchmark.name], home=None) for benchmark in benchmarks}

    def __getitem__(self, name: str) -> Benchmark:
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


BENCHMARKS: Mapping[str, Benchmark] = _BuiltIn()


def load_benchmark(benchmark: Benchmark, source: str | Path | HubData | None = None) -> ItemSet:
    """The items of a benchmark from a file, from a folder with one of its files, or from the hub (`owner/name`).

    If no source is given, a benchmark that makes its items makes them; for others the folder of the file that describes
    it is searched, then the folder FORKLEFT_DATA, then the hub. A data set that is given by its name must have our
    fields and a split `test`; give one with other columns as a `HubData`. If the number of items is not the
    benchmark's, a warning is logged and `ItemSet.count` says so. Raises ForkLeftError if there is nothing to read, if a
    source is given for items that are made, for lines that are not JSON, missing or unusable fields, an answer that is
    not among the choices, and repeated ids.
    """
    if benchmark.source is not None:
        if source is not None:
            raise ForkLeftError(f"{benchmark.name}: its items are made, not read; leave out {source}")
        return benchmark.source(benchmark)
    if source is None:
        source = data_at_hand(benchmark) or benchmark.hub
        if source is None:
            files = " or ".join(benchmark.files)
            raise ForkLeftError(
                f"{benchmark.name}: found no data; name a JSON Lines file or a hub data set with the fields "
                + ", ".join(FIELDS[:3])
                + (f", or set {DATA_FOLDER} to a folder with {files}" if files else "")
                + (f", or put {files} into {benchmark.home}" if files and benchmark.home else "")
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
    """The benchmark's file in a folder, by default that of its description or FORKLEFT_DATA, or None.

    Raises ForkLeftError if FORKLEFT_DATA names a folder that is not there.
    """
    named = os.environ.get(DATA_FOLDER)
    if not folder and named and not Path(named).is_dir():
        raise ForkLeftError(f"{DATA_FOLDER} names the folder {named}, which is not there; correct it, or unset it")
    folders = [folder] if folder else [benchmark.home, named]
    return next(
        (found for candidate in folders if candidate and (found := _in_folder(benchmark, Path(candidate)))), None
    )


def read_items(path: str | Path) -> list[Item]:
    """The items of a JSON Lines file, plain or gzipped (`.gz`)."""
    return [_item(where, row) for where, row in read_jsonl(path)]


def item_set(benchmark: Benchmark, items: Iterable[Item], source: str) -> ItemSet:
    """Items checked against their benchmark. Raises ForkLeftError; another number of items is only logged."""
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


_KINDS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "items": (int,),
    "protocol": (str,),
    "template": (str,),
    "verifier": (str,),
    "licence": (str,),
    "data": (str, list),
    "cluster": (str,),
    "max_new_tokens": (int,),
    "templates": (dict,),
}
_NEEDED = ("name", "items", "protocol", "template")
_WORDS = {str: "text", int: "a whole number from 1 on", list: "a list of texts", dict: "a text for each language"}


def _described(path: Path, values: Any, trust: Trust) -> Benchmark:
    """The benchmark of one document of a YAML file."""
    if not isinstance(values, Mapping):
        raise ForkLeftError(f"{path}: expected the fields of a benchmark, as in `name: mine`, found {values!r:.60}")
    for name, value in values.items():
        if name not in _KINDS:
            near = nearest(str(name), _KINDS)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(_KINDS)}"
            raise ForkLeftError(f"{path}: there is no field {name!r} of a benchmark; {hint}")
        texts = value if type(value) is list else value.values() if type(value) is dict else [value or None]
        inner = int if int in _KINDS[name] else str
        if type(value) not in _KINDS[name] or not texts or not all(type(text) is inner for text in texts):
            wanted = " or ".join(_WORDS[kind] for kind in _KINDS[name])
            raise ForkLeftError(f"{path}: {name}: expected {wanted}, found {value!r:.60}")
        if inner is int and value < 1:
            raise ForkLeftError(f"{path}: {name}: expected {_WORDS[int]}, found {value}")
    if missing := [name for name in _NEEDED if name not in values]:
        raise ForkLeftError(f"{path}: expected the fields {', '.join(_NEEDED)}, {', '.join(missing)} missing; add them")
    trust.check(values, str(path))
    given: dict[str, Any] = dict(values)
    if given["protocol"] not in get_args(Protocol):
        raise ForkLeftError(f"{path}: protocol: expected generated or slot, found {given['protocol']!r:.60}")
    try:
        re.compile(given.get("cluster", ""))
    except re.error as error:
        raise ForkLeftError(f"{path}: cluster: {given['cluster']!r} is no pattern: {error}") from error
    data = given.pop("data", [])
    files = tuple([data] if isinstance(data, str) else data)
    hub = None
    if isinstance(data, str) and _HUB_ID.fullmatch(data) and not (path.parent / data).exists():
        files, hub = (), HubData(data)
    try:
        verifier = Verifier.of(given.pop("verifier", "choice" if given["protocol"] == "slot" else "math"))
    except ForkLeftError as error:
        raise ForkLeftError(f"{path}: verifier: {error}") from error
    if given["protocol"] == "slot" and verifier.kind != "choice":
        raise ForkLeftError(f"{path}: verifier: letters are compared in a slot, expected choice, found {verifier.kind}")
    given["template"] = _template(path, given["template"])
    given["templates"] = {name: _template(path, text) for name, text in given.get("templates", {}).items()}
    licence = given.pop("licence", "not said")
    return Benchmark(**given, verifier=verifier, licence=licence, files=files, hub=hub, home=path.absolute().parent)


def _template(path: Path, said: str) -> str:
    text = prompts.TEMPLATES.get(said, said)
    if "{question}" not in text:
        known = ", ".join(prompts.TEMPLATES)
        raise ForkLeftError(
            f"{path}: template: expected a text with {{question}}, or one of {known}, found {said!r:.60}"
        )
    return text


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
        isinstance(choices, list) and 2 <= len(choices) <= 26 and all(isinstance(choice, str) for choice in choices)
    ):
        raise ForkLeftError(f"{where}: expected a list of 2 to 26 texts in choices, found {choices!r:.60}")
    texts = {name: str(value) for name, value in known.items()}
    for name, text in [*texts.items(), *(("choices", choice) for choice in choices or ())]:
        # JSON can hold half of a surrogate pair. No tokenizer accepts that, and it cannot be written to a file.
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ForkLeftError(f"{where}: expected Unicode text in {name}, found a lone surrogate in {text!r:.60}")
    return Item(**texts, choices=None if choices is None else tuple(choices))
