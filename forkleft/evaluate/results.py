"""Results on disk: a record for each try as soon as it is known, and a summary at the end.

The folder of a benchmark holds `configuration.json` (what the records depend on) and a `records.part-N.jsonl` for each
process while it works. When all tries are there, it holds `records.jsonl`, in the order of the items, and
`summary.json`.

Lines are only ever appended to a part, and a line counts only if it is whole. So an evaluation may be killed at any
time: only missing, cut or damaged lines are computed again. The process that finds all tries written merges the parts
under a lock; processes need no connection to each other.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from forkleft.digests import differences, is_intact, json_digest, sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import Benchmark, Item
from forkleft.evaluate.statistics import Estimate, accuracy, clustered_mean
from forkleft.files import (
    JSON_ERRORS,
    is_locked,
    lock,
    read_appended,
    read_regular,
    remove_unfinished,
    write_json,
    write_text,
)

if TYPE_CHECKING:
    from forkleft.evaluate.protocols import Reply, Try

# Of configurations. In format 1, `math` was the name of OPDLM's scorer, and written choices were read by other rules.
FORMAT = 2
CONFIGURATION, RECORDS, SUMMARY = "configuration.json", "records.jsonl", "summary.json"
_PARTS = "records.part-*.jsonl"
# What readers of a summary rely on.
_NEEDED: dict[str, type] = {f"results.{name}": int for name in ("items", "expected_items", "samples")}
_NEEDED |= {f"results.accuracy.{name}": float for name in ("value", "low", "high")}
_NEEDED |= {f"configuration.{name}": str for name in ("benchmark", "protocol", "model.kind")}
# The kinds of a record's fields; all others are text.
_KINDS: dict[str, Any] = {"sample": int, "tokens": int, "forwards": int, "correct": bool, "judged": bool}
_KINDS |= {"response": str | None, "extracted": str | None, "stopped": bool | None, "log_probs": dict | None}

# Characters of a value in a message.
_SHOWN = 40

Key = tuple[str, int]


@dataclass(frozen=True)
class Record:
    """What a model did with one try; a line of the results.

    id, sample: the item, and the number of the sample. item, prompt: digests of the question with its answer, and of
    the prompt's ids. cluster: the name that translations of one question share. answer: the right one. The other fields
    are those of `protocols.Reply`. Old records have no `judged`: items without verdict were not marked then.
    """

    id: str
    sample: int
    item: str
    prompt: str
    cluster: str
    answer: str
    response: str | None
    extracted: str | None
    correct: bool
    tokens: int
    forwards: int
    stopped: bool | None
    log_probs: dict[str, float] | None
    judged: bool = True

    @property
    def key(self) -> Key:
        """Which try it is."""
        return self.id, self.sample


@dataclass(frozen=True)
class Results:
    """A finished evaluation of one benchmark."""

    folder: Path
    summary: dict[str, Any]
    records: tuple[Record, ...]


@dataclass(frozen=True)
class Score:
    """How often a model was right on one item (a share of its samples), and the item's cluster."""

    value: float
    cluster: str


def record_of(benchmark: Benchmark, asked: "Try", reply: "Reply") -> Record:
    """The record of a reply."""
    # Imported here, because it loads PyTorch; reading and comparing results does not need that.
    from forkleft.randomness import ids_key

    reply_fields = asdict(reply) | {"prompt": ids_key(reply.prompt)[:16]}
    item = asked.item
    return Record(
        id=item.id,
        sample=asked.sample,
        item=item_digest(benchmark, item),
        cluster=benchmark.cluster_of(item),
        answer=item.answer,
        **reply_fields,
    )


def item_digest(benchmark: Benchmark, item: Item) -> str:
    """A digest of the question as it is asked, and its right answer."""
    return json_digest([benchmark.messages(item), item.answer])[:16]


class ResultFolder:
    """The results of one benchmark while they are being made; see the module's text."""

    def __init__(self, path: Path, configuration: Mapping[str, Any]) -> None:
        """Open or make a folder. Raises ForkLeftError, with what differs, if it has results of another configuration.

        A configuration without any record, as left by a run that failed at once, is replaced.
        """
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        with _disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
        with self._lock():
            with _disk_errors(path):
                remove_unfinished(path)
            if self._in_use():
                self._check_configuration()
            else:
                with _disk_errors(path):
                    write_json(path / CONFIGURATION, self.configuration, ensure_ascii=False)

    def records(self) -> dict[Key, Record]:
        """All whole records there are, by try."""
        # Without the lock, another process could merge and remove the parts while they are read.
        with self._lock():
            return self._records()

    @contextmanager
    def part(self, rank: int) -> Iterator[TextIO]:
        """The file that a process appends its records to. A last line that was cut off is removed.

        Raises ForkLeftError if another process has it open.
        """
        path = self.path / f"records.part-{rank}.jsonl"
        with _disk_errors(self.path):
            file = path.open("a+b")
        with file:
            with self._lock():
                if not lock(file, wait=False):
                    raise ForkLeftError(
                        f"another evaluation is writing to {path}; wait for it to end, or name another folder"
                    )
                # Another run may have replaced the configuration while no part was open.
                self._check_configuration()
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            with (
                _disk_errors(self.path, "make room, and start the same evaluation again"),
                open(file.fileno(), "a", encoding="utf-8", newline="\n", closefd=False) as lines,
            ):
                yield lines

    def finish(self, keys: Sequence[Key], about: Mapping[str, Any], expected_items: int) -> dict[str, Any] | None:
        """Merge the parts and write the summary if all tries are there.

        keys: the tries, in their order. about: what the summary holds beside configuration and results. Returns the
        summary, or None if tries of other processes are missing, or another process has written the summary.
        """
        with self._lock():
            found = self._records()
            if any(key not in found for key in keys):
                return None
            parts = sorted(self.path.glob(_PARTS))
            if not parts and (self.path / SUMMARY).is_file():
                return None
            records = [found[key] for key in keys]
            results = summarise(records, expected_items)
            summary = {**about, "results": results, "configuration": self.configuration}
            with _disk_errors(self.path):
                write_text(self.path / RECORDS, "".join(line_of(record) for record in records))
                write_json(self.path / SUMMARY, sealed(summary), ensure_ascii=False)
            for part in parts:
                part.unlink()
            return summary

    def _records(self) -> dict[Key, Record]:
        """`records`, for callers that hold the lock."""
        found: dict[Key, Record] = {}
        for path in [self.path / RECORDS, *sorted(self.path.glob(_PARTS))]:
            with _disk_errors(self.path):
                records = _read_records(path)
            for record in filter(None, records):
                found.setdefault(record.key, record)
        return found

    def _in_use(self) -> bool:
        """Whether there is a whole record, or a process that is about to write one."""
        with _disk_errors(self.path):
            return bool(self._records()) or any(map(is_locked, self.path.glob(_PARTS)))

    def _check_configuration(self) -> None:
        _check_same(self.path, _as_of_today(_read_object(self.path / CONFIGURATION)), self.configuration)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with _disk_errors(self.path):
            file = (self.path / ".lock").open("w")
        with file:
            lock(file)
            yield


def line_of(record: Record) -> str:
    """A record as a line of the file."""
    return json.dumps(sealed(asdict(record)), ensure_ascii=False, allow_nan=False) + "\n"


def summarise(records: Sequence[Record], expected_items: int) -> dict[str, Any]:
    """The figures of a benchmark; `docs/evaluation.md` says what each means."""
    scores = item_scores(records)
    samples = len(records) // len(scores)
    estimate, interval = accuracy_of(scores, samples)
    tokens, forwards = sum(record.tokens for record in records), sum(record.forwards for record in records)
    figures: dict[str, Any] = {
        "items": len(scores),
        "expected_items": expected_items,
        "complete": len(scores) == expected_items,
        "samples": samples,
        "correct": sum(record.correct for record in records),
        "accuracy": asdict(estimate),
        "interval": interval,
    }
    if samples > 1:
        rights = [round(score.value * samples) for score in scores.values()]
        sizes = [2**power for power in range(samples.bit_length()) if 2**power < samples] + [samples]
        figures[f"avg@{samples}"] = estimate.value
        for k in sizes:
            figures[f"pass@{k}"] = math.fsum(pass_at_k(right, samples, k) for right in rights) / len(rights)
    return figures | {
        "without_answer": sum(record.judged and record.extracted is None for record in records),
        "without_verdict": sum(not record.judged for record in records),
        "cut_by_budget": sum(record.stopped is False for record in records),
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": tokens / forwards,
    }


def item_scores(records: Sequence[Record]) -> dict[str, Score]:
    """The score of each item, in the records' order."""
    verdicts: dict[str, list[bool]] = {}
    clusters: dict[str, str] = {}
    for record in records:
        verdicts.setdefault(record.id, []).append(record.correct)
        clusters[record.id] = record.cluster
    return {name: Score(sum(found) / len(found), clusters[name]) for name, found in verdicts.items()}


def accuracy_of(scores: Mapping[str, Score], samples: int) -> tuple[Estimate, str]:
    """The mean score and its 95% interval, and which kind it is.

    `wilson` for one verdict on each of independent items; `clustered bootstrap` for shares (avg@k), and for items in
    clusters. With a single cluster, which says nothing about others, the interval is all of [0, 1].
    """
    values = [score.value for score in scores.values()]
    clusters = [score.cluster for score in scores.values()]
    if samples == 1 and not clustered(scores):
        return accuracy([int(value) for value in values]), "wilson"
    if len(set(clusters)) < 2:
        return Estimate(math.fsum(values) / len(values), 0.0, 1.0), "clustered bootstrap"
    return clustered_mean(values, clusters), "clustered bootstrap"


def clustered(scores: Mapping[str, Score]) -> bool:
    """Whether some items share a cluster, or could: its name is not the item's id."""
    return any(score.cluster != name for name, score in scores.items())


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """The chance that one of k of the samples is right, 1 − C(n−c, k) / C(n, k): unbiased for k fresh samples."""
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ForkLeftError(f"expected 0 <= correct <= samples and 1 <= k <= samples, found {correct}, {samples}, {k}")
    return 1 - math.comb(samples - correct, k) / math.comb(samples, k)


def read_results(folder: str | Path) -> dict[str, Results]:
    """The finished results in a folder, or in the folders in it, by benchmark.

    Raises ForkLeftError if there are none, or if one of them is damaged.
    """
    folder = Path(folder)
    found: dict[str, Results] = {}
    for path in [folder / SUMMARY, *sorted(folder.glob(f"*/{SUMMARY}"))]:
        if path.is_file():
            results = _read_finished(path.parent)
            name = results.summary["configuration"]["benchmark"]
            if name in found:
                raise ForkLeftError(f"{folder} holds two results of {name}: {found[name].folder} and {results.folder}")
            found[name] = results
    if not found:
        begun = unfinished(folder)
        hint = f"unfinished: {', '.join(begun)}; start the same evaluation again" if begun else "name its --output"
        raise ForkLeftError(f"expected results of `forkleft eval` in {folder}, found no {SUMMARY}; {hint}")
    return found


def unfinished(folder: str | Path) -> list[str]:
    """The benchmarks in a folder of results that were begun and have not ended. It may be a benchmark's own folder."""
    # So that `.` has a name, too.
    folder = Path(folder).resolve()
    begun = [path for path in [folder, *sorted(folder.glob("*"))] if (path / CONFIGURATION).is_file()]
    return [path.name for path in begun if not (path / SUMMARY).is_file()]


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """The leaves of nested objects, by their path: `sampler.seed`."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        found |= flat(inner, f"{before}{name}.") if isinstance(inner, dict) else {f"{before}{name}": inner}
    return found


def _read_finished(folder: Path) -> Results:
    summary = _read_object(folder / SUMMARY)
    path = folder / RECORDS
    lines = _read_records(path)
    records = [record for record in lines if record is not None]
    leaves = flat(summary)
    if wrong := [name for name, kind in _NEEDED.items() if not isinstance(leaves.get(name), kind)]:
        raise ForkLeftError(
            f"{folder / SUMMARY} is damaged: expected {wrong[0]}, found {leaves.get(wrong[0])!r:.40}; evaluate again "
            "into a new folder"
        )
    tries = leaves["results.items"] * leaves["results.samples"]
    if len(records) != len(lines) or len({record.key for record in records}) != tries or len(records) != tries:
        raise ForkLeftError(
            f"{path} is damaged: expected {tries} whole records, each of another try, found "
            f"{len(records)}; remove {SUMMARY} and start the same evaluation again"
        )
    summary["configuration"] = _as_of_today(summary["configuration"])
    return Results(folder, summary, tuple(records))


def _read_records(path: Path) -> list[Record | None]:
    """The records of a file, if there is one; None for a line that is not whole."""
    return [_record(row) for _, row in read_appended(path)] if path.is_file() else []


def _record(row: dict[str, Any] | None) -> Record | None:
    if row is None:
        return None
    names = [field.name for field in fields(Record) if field.default is MISSING or field.name in row]
    if not all(name in row and isinstance(row[name], _KINDS.get(name, str)) for name in names):
        return None
    return Record(**{name: row[name] for name in names})


def _check_same(folder: Path, there: dict[str, Any], now: dict[str, Any]) -> None:
    differing = {name: (old, new) for name, old, new in differences(there, now)}
    if differing:
        if "items.count" in differing:
            # If the counts differ, the digest adds nothing.
            differing.pop("items.digest", None)
        listed = ", ".join(
            f"{name} ({_short(old)} there, {_short(new)} now)" for name, (old, new) in sorted(differing.items())
        )
        raise ForkLeftError(
            f"{folder} holds results of another configuration; they differ in {listed}; name another folder, or remove "
            "it"
        )


def _short(value: Any) -> str:
    """A value for a message. A long text is cut, inside its quotes."""
    if isinstance(value, str) and len(value) > _SHOWN:
        return repr(f"{value[: _SHOWN - 1]}…")
    text = repr(value)
    return text if len(text) <= _SHOWN + 2 else f"{text[: _SHOWN + 1]}…"


def _as_of_today(configuration: dict[str, Any]) -> dict[str, Any]:
    """A configuration of an earlier format in the words of this one.

    So older results can be compared with new ones of the same scorer, and continued. The exception are letters that
    were read by the older rules: they get a verifier that no new evaluation has.
    """
    if configuration.get("format") != 1:
        return configuration
    names: dict[Any, str] = {"math": "opdlm"}
    if configuration.get("protocol") == "generated":
        names["choice"] = "choice (format 1)"
    verifier = configuration.get("verifier")
    return configuration | {"format": FORMAT, "verifier": names.get(str(verifier), verifier)}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path))
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        if not is_intact(value):
            raise ValueError("it is not as it was written")
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} is damaged ({error}); evaluate again into a new folder") from error
    return unsealed(value)


@contextmanager
def _disk_errors(folder: Path, hint: str = "name another folder") -> Iterator[None]:
    """Turn an OSError into a ForkLeftError that names the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise ForkLeftError(f"cannot keep results in {folder}: {error.strerror}; {hint}") from error
