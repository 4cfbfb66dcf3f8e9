"""Hostile input: whatever a file or a server says, a reader gives a value or raises the error that it promises.

Hypothesis makes the input: what is right, with parts replaced, removed and added, and what was never right. A case that
raises something else, or does not come back, is lost.
"""

import json
import logging
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from faults.tally import Tallies, Tally
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import read_benchmarks, read_items
from forkleft.evaluate.results import RECORDS, SUMMARY, read_results
from forkleft.files import read_jsonl
from forkleft.report.gather import Gathered, read_run_folder
from forkleft.report.page import page
from forkleft.report.play.settings import read_settings
from forkleft.students.families import recognise
from forkleft.students.loading import read_sidecar
from forkleft.students.shards import read_json
from forkleft.study.results import load_results
from forkleft.study.spec import read_study
from forkleft.teacher import remote, server
from forkleft.teacher.answers import AnswerCache
from forkleft.teacher.connection import Connection
from forkleft.train import checkpoints
from forkleft.train.data import read_examples, read_ids
from forkleft.train.recipes import read_options, recipe_of
from forkleft.verify import Verifier

# Seconds for one case; only what hangs takes so long.
_BOUND = 120
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
    ]
)
_ANSWER = st.lists(st.one_of(_PIECES, st.text(max_size=8)), max_size=30).map("".join)


@dataclass(frozen=True)
class Target:
    """A reader: what it is given, what it does with that, and the errors that it may raise. weight: of its cases."""

    name: str
    strategy: st.SearchStrategy[Any]
    read: Callable[[Any, Path], object]
    allowed: tuple[type[BaseException], ...] = (ForkLeftError,)
    weight: float = 1.0


def run(cases: int, seed: int) -> list[Tally]:
    """So many cases, divided among all targets."""
    tallies = Tallies()
    chosen = targets()
    total = sum(target.weight for target in chosen)
    with tempfile.TemporaryDirectory() as folder:
        for target in chosen:
            count = max(1, round(cases * target.weight / total))
            done, lost = attacked(target, Path(folder), count, seed)
            tallies.add(f"hostile {target.name}", lost, done)
    return tallies.all()


def attacked(target: Target, work: Path, cases: int, seed: int) -> tuple[int, list[str]]:
    """How many cases were tried, and what was lost."""
    done, lost = 0, []

    @seeded(seed)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(target.strategy)
    def case(value: Any) -> None:
        nonlocal done
        done += 1
        try:
            with _bounded():
                target.read(value, work)
        except target.allowed:
            pass
        except Exception as error:
            lost.append(f"{type(error).__name__}: {error!s:.200} on {value!r:.300}")

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        case()
    finally:
        logging.disable(level)
    return done, lost


@contextmanager
def _bounded() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {_BOUND} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(_BOUND)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def targets() -> list[Target]:
    """All readers of what others write."""
    reply = {"choices": [{"message": {"content": "4"}, "finish_reason": "stop"}]}
    listed = {"data": [{"id": "m"}]}
    states = {"data": [{"embed_dtype": "float32", "endianness": "little", "shape": [2, 3], "start": 0, "end": 24}]}
    bad_reply = (ValueError, KeyError, TypeError, IndexError)
    row = {"id": "q", "question": "1+1?", "answer": "2", "solution": "2"}
    return [
        Target("choice answers", _ANSWER, lambda text, _: Verifier("choice").judge([text], ["A"]), weight=4),
        Target("lab answers", _ANSWER, lambda text, _: Verifier("lab").judge([text], ["1"])),
        Target("math answers", st.tuples(_ANSWER, _ANSWER), _judged, weight=2),
        Target("recipes", mutated(_recipe()), _recipe_read, weight=2),
        Target("YAML", st.one_of(st.text(max_size=200), st.binary(max_size=200)), _yaml_read),
        Target("benchmarks", mutated(_benchmark()), _benchmark_read),
        Target("studies", mutated(_study()), _study_read),
        Target("data rows", st.lists(mutated(row), max_size=4), _rows_read, weight=2),
        Target("data files", st.binary(max_size=300) | _lines(mutated(row)), _data_read),
        Target("ids", st.binary(max_size=200) | _lines(mutated({"ids": ["a"], "routes": ["CE"]})), _ids_read),
        Target("records", st.tuples(_lines(mutated(_record())), mutated(_summary())), _records_read),
        Target("study results", mutated({"format": 1, "name": "s", "cells": {}, "items": {}}), _results_read),
        Target("traces", st.tuples(_lines(mutated(_trace())), _lines(mutated(_metrics()))), _traces_read),
        Target("answer files", st.binary(max_size=300) | _lines(mutated({"key": "k", "sum": "s"})), _answers_read),
        Target("answers of a server", mutated(reply), lambda said, _: server._parsed(said, ("a",)), bad_reply),
        Target("models of a server", mutated(listed), _listed_read),
        Target("states of a server", st.tuples(mutated(states), st.binary(max_size=30)), _states_read, bad_reply),
        Target("manifests", mutated({"model.safetensors": "d"}), _manifest_read),
        Target("model configurations", mutated(_config()), _config_read),
        Target("student files", mutated({"format": 1, "family": {"attention": "block"}}), _sidecar_read),
        Target("playground requests", mutated({"question": "q", "max_new_tokens": 4, "verifier": "lab"}), _settings),
    ]


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
    line = st.one_of(rows.map(lambda row: json.dumps(row).encode()), st.just(b"[" * 5000), st.binary(max_size=20))
    return st.lists(line, max_size=4).map(lambda lines: b"\n".join(lines) + b"\n")


def _recipe() -> dict[str, Any]:
    return {
        **{"student": "lab:student-block", "teacher": "lab:teacher-strong", "train_data": "lab:train"},
        **{
            "output_dir": "runs/x",
            "max_steps": 4,
            "learning_rate": 1e-4,
            "rho": 0.5,
            "verifier": "lab",
            "letters": "AB",
        },
        **{"save_at": [1, 2], "columns": {"question": "q"}, "questions_per_update": 4, "use_cpu": True, "passes": 2},
        **{"answers_url": "http://localhost:1/v1", "answers_timeout": 5.0, "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    }


def _benchmark() -> dict[str, Any]:
    return {"name": "mine", "items": 10, "protocol": "generated", "verifier": "math", "prompt": "{question}"}


def _study() -> dict[str, Any]:
    return {
        **{"name": "s", "about": "A.", "base": "base.yaml", "arms": {"a": {}, "b": {"rho": 0.5}}, "seeds": [1, 2]},
        **{"benchmarks": ["lab-chain-2"], "compare": [["a", "b"]], "limit": 4, "curve": ["50%"], "set": {"passes": 4}},
        **{"effects": {"f": {"x": ["a"], "y": ["b"]}}, "decoding": {"static": {}}},
    }


def _record() -> dict[str, Any]:
    return {
        **{"id": "a", "sample": 0, "item": "d", "prompt": "p", "cluster": "a", "answer": "1", "response": "1"},
        **{"extracted": "1", "correct": True, "tokens": 1, "forwards": 1, "stopped": True, "log_probs": None},
    }


def _summary() -> dict[str, Any]:
    accuracy = {"value": 1.0, "low": 0.2, "high": 1.0}
    results = {"items": 1, "expected_items": 1, "samples": 1, "accuracy": accuracy}
    return {"results": results, "configuration": {"benchmark": "b", "protocol": "generated", "model": {"kind": "x"}}}


def _trace() -> dict[str, Any]:
    return {
        **{"step": 1, "id": "q", "route": "LEFTOPD", "messages": [{"role": "user", "content": "1"}], "prompt": "1"},
        **{"tokens": ["a", "b"], "entropy": [0.1, 0.2], "confidence": [0.5, 0.5], "commit_pass": [1, 2]},
        **{"block_starts": [0], "positions": [1], "kl": [0.1], "contrast": [0.1], "left_entropy": [0.9]},
        **{"student_alternatives": [[["a", 0.5]]], "teacher_alternatives": [[["b", 0.5]]], "student_right": False},
    }


def _metrics() -> dict[str, Any]:
    return {
        **{"step": 1, "loss": 0.1, "questions": 4, "route_ce": 1, "route_leftopd": 1, "route_gold": 1},
        **{"route_exclude": 1, "student_accuracy": 0.5, "teacher_accuracy": 0.5, "eval_accuracy": 0.5, "kl": 0.1},
    }


def _config() -> dict[str, Any]:
    return {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 4, "mask_token_id": 9}


# Readers.


def _judged(said: tuple[str, str], work: Path) -> object:
    response, answer = said
    return Verifier("math").judgements([response, response + r" \boxed{1}"], [answer, "1"])


def _recipe_read(said: Any, work: Path) -> object:
    return recipe_of(read_options(_written(work / "recipe.yaml", yaml.safe_dump(said, allow_unicode=True))))


def _yaml_read(said: str | bytes, work: Path) -> object:
    return read_options(_written(work / "recipe.yaml", said))


def _benchmark_read(said: Any, work: Path) -> object:
    return read_benchmarks(_written(work / "benchmark.yaml", yaml.safe_dump(said, allow_unicode=True)))


def _study_read(said: Any, work: Path) -> object:
    _written(work / "base.yaml", yaml.safe_dump(_recipe()))
    return read_study(_written(work / "study.yaml", yaml.safe_dump(said, allow_unicode=True)))


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
    return load_results(_written(work / "results.json", json.dumps(said)))


def _traces_read(said: tuple[bytes, bytes], work: Path) -> object:
    folder = work / "run"
    folder.mkdir(exist_ok=True)
    for name, content in zip(("traces.jsonl", "metrics.jsonl"), said, strict=True):
        _written(folder / name, content)
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
