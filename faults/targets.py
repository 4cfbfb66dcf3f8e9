"""All readers of what others write, and what hostile input each is given.

Hypothesis makes the input: what is right, with parts replaced, removed and added, and what was never right.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import strategies as st

from faults import samples
from forkleft.digests import sealed
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import Benchmark, Item, read_benchmarks, read_items
from forkleft.evaluate.results import RECORDS, SUMMARY, read_results
from forkleft.files import read_jsonl
from forkleft.report.gather import Gathered, read_run_folder
from forkleft.report.page import page
from forkleft.report.play.settings import read_settings
from forkleft.students.families import recognise
from forkleft.students.loading import read_sidecar
from forkleft.students.shards import read_json
from forkleft.study.collect import collect
from forkleft.study.names import RESULTS, STUDY
from forkleft.study.results import load_results
from forkleft.study.spec import read_study
from forkleft.teacher import remote, server
from forkleft.teacher.answers import AnswerCache
from forkleft.teacher.connection import Connection
from forkleft.train import checkpoints
from forkleft.train.data import read_examples, read_ids
from forkleft.train.recipes import read_options, recipe_of
from forkleft.train.resume import check_resumable, step_of
from forkleft.train.run_files import RUN_FILE
from forkleft.trust import Trust
from forkleft.verify import Verifier

_ANY_TEXT = st.text(max_size=40)
_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    _ANY_TEXT,
    st.sampled_from(["", "0", "-1", "1e999", "../x", "/dev/zero", "\ud800", "a" * 10_000, "{{x}}", "\0"]),
)
_JSON = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_ANY_TEXT, inner, max_size=4), max_leaves=8
)
# What answers are made of, right and wrong.
_PIECES = st.sampled_from(
    [
        *(r"\boxed{", "}", "{", "\\frac{1}{2}", "\\frac", "\\sqrt[3]{x}", "^", "_", "$", "$$", "\\[", "\\]", "(", ")"),
        *("A", "B", "C", "answer is ", '"answer": "', "**", "#", "7", "12345678901234567890", "0.5", "-", "/", "10^"),
        *("9" * 50, "x", "=", "\\le", "\\cup", "[0,1)", "\\text{", "%", ",", " ", "\n", "е", "１", "∞", "\\infty", "!"),
        "ਊ" * 40,
    ]
)
_ANSWER = st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=30).map("".join)


@dataclass(frozen=True)
class Target:
    """A reader: what it is given, what it does with that, and the errors that it may raise. weight: of its cases.

    right: what it must read without an error, from which hostile input is made. If that were wrong itself, every case
    would end at the first check.
    """

    name: str
    strategy: st.SearchStrategy[Any]
    read: Callable[[Any, Path], object]
    allowed: tuple[type[BaseException], ...] = (ForkLeftError,)
    weight: float = 1.0
    right: Any = None


def targets() -> list[Target]:
    """All readers of what others write."""
    reply = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}
    states = {"data": [{"embed_dtype": "float32", "endianness": "little", "shape": [2, 3], "start": 0, "end": 24}]}
    row = {"id": "q", "question": "1+1?", "answer": "2", "solution": "2"}
    said = {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "1+1?"}], "answer": "2"}
    routed, answered = {"ids": ["a"], "routes": ["CE"]}, sealed({"key": "k", "text": "4", "stopped": True})
    asked = {"question": "q", "max_new_tokens": 4, "verifier": "lab"}
    bad_reply = (ValueError, KeyError, TypeError, IndexError)
    return [
        Target("choice answers", _ANSWER, lambda text, _: Verifier("choice").judge([text], ["A"]), weight=4),
        Target("lab answers", _ANSWER, lambda text, _: Verifier("lab").judge([text], ["1"])),
        Target("math answers", st.tuples(_ANSWER, _ANSWER), _judged, weight=2),
        _changing("recipes", samples.recipe(), _recipe_read, weight=2),
        Target("YAML", st.one_of(st.text(max_size=200), st.binary(max_size=200)), _yaml_read),
        _changing("benchmarks", samples.benchmark(), _benchmark_read),
        _changing("studies", samples.study(), samples.grid_of),
        Target("data rows", st.lists(mutated(row), max_size=4), _rows_read, weight=2, right=[row]),
        Target("conversations", st.lists(mutated(said), max_size=4), _rows_read, right=[said]),
        _of_lines("data files", row, _data_read),
        _of_lines("ids", routed, _ids_read),
        Target(
            "records",
            st.tuples(_lines(mutated(samples.record())), mutated(samples.summary())),
            _records_read,
            right=(_line(samples.record()), samples.summary()),
        ),
        _changing("study results", samples.results(RESULTS), _results_read),
        _changing("noted studies", samples.results(STUDY), _noted_read),
        Target(
            "traces",
            st.tuples(_lines(mutated(samples.trace())), _lines(mutated(samples.metrics())), mutated(samples.recipe())),
            _traces_read,
            right=(_line(samples.trace()), _line(samples.metrics()), samples.recipe()),
        ),
        _of_lines("answer files", answered, _answers_read),
        _changing("answers of a server", reply, lambda said, _: server._parsed(said, ("a",)), bad_reply),
        _changing("models of a server", {"data": [{"id": "m"}]}, _listed_read),
        Target(
            "states of a server",
            st.tuples(mutated(states), st.just(bytes(24)) | st.binary(max_size=30)),
            _states_read,
            bad_reply,
            right=(states, bytes(24)),
        ),
        _changing("manifests", {"model.safetensors": "d"}, _manifest_read),
        _changing("run files", samples.run(), _run_read),
        _changing("states of checkpoints", {"global_step": 2, "log_history": []}, _state_read),
        _changing("model configurations", samples.config(), _config_read),
        _changing("student files", samples.sidecar(), _sidecar_read),
        _changing("playground requests", asked, _settings),
    ]


def _changing(
    name: str,
    right: Any,
    read: Callable[[Any, Path], object],
    allowed: tuple[type[BaseException], ...] = (ForkLeftError,),
    weight: float = 1.0,
) -> Target:
    """A target whose input is a right value with parts changed."""
    return Target(name, mutated(right), read, allowed, weight, right)


def _of_lines(name: str, right: Any, read: Callable[[Any, Path], object]) -> Target:
    """A target whose input is a file of such values, or bytes."""
    return Target(name, st.binary(max_size=300) | _lines(mutated(right)), read, right=_line(right))


# Input.


@st.composite
def mutated(draw: st.DrawFn, valid: Any) -> Any:
    """A right value with up to three of its parts replaced, removed or added; now and then another altogether."""
    if draw(st.integers(0, 9)) == 0:
        return draw(_JSON)
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(0, 3))):
        value = _changed(value, draw)
    return value


def _changed(value: Any, draw: st.DrawFn) -> Any:
    if isinstance(value, dict) and value and draw(st.integers(0, 3)):
        name = draw(st.sampled_from(sorted(value)))
        what = draw(st.sampled_from(["inside", "inside", "replace", "remove", "add"]))
        if what == "remove":
            return {key: inner for key, inner in value.items() if key != name}
        if what == "add":
            return value | {draw(_ANY_TEXT): draw(_JSON)}
        return value | {name: _changed(value[name], draw) if what == "inside" else draw(_JSON)}
    if isinstance(value, list) and value and draw(st.integers(0, 3)):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]
    return draw(_JSON)


def _lines(rows: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """JSON Lines, now and then cut or with thousands of brackets."""
    line = st.one_of(rows.map(lambda row: _line(row)[:-1]), st.just(b"[" * 5000), st.binary(max_size=20))
    return st.lists(line, max_size=4).map(lambda lines: b"\n".join(lines) + b"\n")


def _line(row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


# Readers.


def _judged(said: tuple[str, str], work: Path) -> object:
    response, answer = said
    return Verifier("math").judgements([response, response + r" \boxed{1}"], [answer, "1"])


# As the command line reads files: none of them may have code run.


def _recipe_read(said: Any, work: Path) -> object:
    path = _written(work / "recipe.yaml", yaml.safe_dump(said, allow_unicode=True))
    return recipe_of(read_options(path, trust=Trust()))


def _yaml_read(said: str | bytes, work: Path) -> object:
    path = _written(work / "any.yaml", said)
    for read in (read_options, read_benchmarks, read_study):
        with suppress(ForkLeftError):
            read(path, trust=Trust())
    return None


def _benchmark_read(said: Any, work: Path) -> object:
    path = _written(work / "benchmark.yaml", yaml.safe_dump(said, allow_unicode=True))
    return [_clusters(benchmark) for benchmark in read_benchmarks(path, Trust())]


def _clusters(benchmark: Benchmark) -> object:
    return benchmark.cluster_of(Item("1-zh", "1+1?", "2", language="zh"))


def _rows_read(rows: Any, work: Path) -> object:
    held = [row for row in rows if isinstance(row, dict)]
    return read_examples(held, prompt_template="{question}", reference_template="{solution}", verifier=Verifier("lab"))


def _data_read(said: bytes, work: Path) -> object:
    path = _written(work / "data.jsonl", said)
    return read_jsonl(path), read_items(path)


def _ids_read(said: bytes, work: Path) -> object:
    return read_ids(_written(work / "ids.txt", said)), read_ids(_written(work / "routes.jsonl", said), "CE")


def _records_read(said: tuple[bytes, Any], work: Path) -> object:
    folder = work / "results"
    folder.mkdir(exist_ok=True)
    _written(folder / RECORDS, said[0])
    _written(folder / SUMMARY, json.dumps(said[1]))
    return read_results(folder)


def _results_read(said: Any, work: Path) -> object:
    return load_results(_sealed(work / RESULTS, said))


def _noted_read(said: Any, work: Path) -> object:
    folder = work / "root" / "noted"
    folder.mkdir(parents=True, exist_ok=True)
    _sealed(folder / STUDY, said)
    return collect(folder)


def _sealed(path: Path, said: Any) -> Path:
    # A checksum is no signature: who writes such a file can write that, too.
    return _written(path, json.dumps(sealed(said) if isinstance(said, dict) else said))


def _traces_read(said: tuple[bytes, bytes, Any], work: Path) -> object:
    folder = work / "run"
    folder.mkdir(exist_ok=True)
    traces, metrics, recipe = said
    for name, content in (("traces.jsonl", traces), ("showcase.jsonl", traces), ("metrics.jsonl", metrics)):
        _written(folder / name, content)
    _written(folder / "recipe.yaml", yaml.safe_dump(recipe, allow_unicode=True))
    return page(Gathered(runs=[read_run_folder(folder, "run")]))


def _answers_read(said: bytes, work: Path) -> object:
    return len(AnswerCache(_written(work / "answers.jsonl", said)))


def _listed_read(said: Any, work: Path) -> object:
    connection = Connection("http://localhost:1", "m")
    body = json.dumps(said).encode()
    connection.send = lambda *request: (body, None)  # type: ignore[method-assign, assignment]
    return connection.listed("http://localhost:1/v1/models")


def _states_read(said: tuple[Any, bytes], work: Path) -> object:
    return remote._parsed(said[1], {"metadata": json.dumps(said[0])}, 2, torch.float32)


def _manifest_read(said: Any, work: Path) -> object:
    folder = work / "checkpoint-2"
    folder.mkdir(exist_ok=True)
    _written(folder / checkpoints.MANIFEST, json.dumps(said))
    return checkpoints.fault(folder)


def _run_read(said: Any, work: Path) -> object:
    folder = work / "checkpoint-4"
    folder.mkdir(exist_ok=True)
    _written(folder / RUN_FILE, json.dumps(said))
    (folder / "optimizer.pt").touch()
    report = page(Gathered(runs=[read_run_folder(folder, "run")]))
    return report, check_resumable(folder, samples.run())


def _state_read(said: Any, work: Path) -> object:
    _written(work / "trainer_state.json", json.dumps(said))
    return step_of(work)


def _config_read(said: Any, work: Path) -> object:
    folder = work / "model"
    folder.mkdir(exist_ok=True)
    return recognise(read_json(_written(folder / "config.json", json.dumps(said))))


def _sidecar_read(said: Any, work: Path) -> object:
    _written(work / "forkleft_student.json", json.dumps(said))
    return read_sidecar(work)


def _settings(said: Any, work: Path) -> object:
    return read_settings(said, ["lab"])


def _written(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return path
