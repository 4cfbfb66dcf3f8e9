"""Small runs of the lab that can be killed and started again, and what must be the same in the end.

Each is a real `forkleft` command with files as it writes them, of a few seconds.
"""

import hashlib
import json
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file

from faults.spawner import ROOT
from forkleft.errors import ForkLeftError
from forkleft.train import checkpoints

LAB = ROOT / "recipes" / "lab.yaml"
UPDATES, SAVE_STEPS, QUESTIONS, ITEMS = 4, 2, 8, 12
TINY: dict[str, Any] = {
    **{"max_steps": UPDATES, "save_steps": SAVE_STEPS, "train_questions": QUESTIONS, "questions_per_update": 4},
    **{"per_device_train_batch_size": 4, "rollout_batch_size": 4, "teacher_batch_size": 2, "warmup_steps": 0},
    **{"passes": 4, "max_new_tokens": 32, "teacher_max_new_tokens": 32, "eval_questions": 2, "eval_steps": 2},
    **{"trace_steps": 2, "showcase_questions": 1, "use_cpu": True, "dataloader_pin_memory": False},
}
# Of a row of metrics, what no two runs have in common.
_TIMED = ("seconds", "runtime", "per_second", "memory")


@dataclass(frozen=True)
class Scenario:
    """A run that can be interrupted.

    words: of the command that starts it in a folder, or goes on with it. differences: what is not as in the folder of a
    run that was left alone, in words.
    """

    name: str
    words: Callable[[Path], list[str]]
    differences: Callable[[Path, Path], list[str]]
    # Whether its commands are processes of their own, which are killed with it.
    has_commands: bool = False
    processes: int = 1
    # What it asked a server for, if it did.
    asked: "Asked | None" = None


def training(name: str = "train", processes: int = 1) -> Scenario:
    """`forkleft train`."""

    def words(folder: Path) -> list[str]:
        said = ["train", "--config", str(LAB), "--output_dir", str(folder), *_flags(TINY)]
        return said + (["--resume_from_checkpoint", "true"] if _resumable(folder) else [])

    return Scenario(name, words, trained_otherwise, processes=processes)


def evaluation() -> Scenario:
    """`forkleft eval`."""

    def words(folder: Path) -> list[str]:
        said = ["eval", "--model", "lab:student-block", "--benchmark", "lab-chain-2", "--output", str(folder)]
        return [*said, "--limit", str(ITEMS), "--batch-size", "2", "--max-new-tokens", "32", "--device", "cpu"]

    return Scenario("eval", words, evaluated_otherwise)


def answering(asked: "Asked") -> Scenario:
    """`forkleft answer`, of a server that counts what it is asked."""

    def words(folder: Path) -> list[str]:
        settings = TINY | {"answers_url": asked.url, "answers_concurrency": 2, "output_dir": folder}
        return ["answer", "--config", str(LAB), *_flags(settings)]

    return Scenario("answer", words, answered_otherwise, asked=asked)


def study(work: Path) -> Scenario:
    """`forkleft study run`: a training, its teacher's answers and evaluations. work: a folder for the study's file."""
    file = work / "small.yaml"
    said = {
        **{"name": "small", "about": "A small study.", "base": str(LAB), "set": TINY | {"eval_strategy": "no"}},
        **{"arms": {"main": {}}, "seeds": [1], "limit": 4, "benchmarks": ["lab-chain-2"], "curve": ["50%"]},
    }
    file.write_text(yaml.safe_dump(said), encoding="utf-8")

    def words(folder: Path) -> list[str]:
        return ["study", "run", str(file), "--output", str(folder), "--jobs", "1"]

    return Scenario("study", words, studied_otherwise, has_commands=True)


def _flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def _resumable(folder: Path) -> bool:
    try:
        checkpoints.newest_whole(folder, digests=False)
    except ForkLeftError:
        return False
    return True


# What must be the same.


def trained_otherwise(whole: Path, folder: Path) -> list[str]:
    """Weights, optimiser, metrics, routes, traces, showcase and answers of two runs; and that a report is there."""
    found = [f"{name} differs" for name in ("model.safetensors",) if not _same_tensors(load_file, whole, folder, name)]
    last = f"checkpoint-{UPDATES}"
    for name in (f"{last}/optimizer.pt", f"{last}/scheduler.pt"):
        if not _same_tensors(lambda path: torch.load(path, weights_only=True), whole, folder, name):
            found.append(f"{name} differs")
    for name in ("metrics.jsonl", "routes.jsonl", "traces.jsonl", "showcase.jsonl"):
        ours, theirs = (_rows(root / name) for root in (whole, folder))
        if ours != theirs:
            steps = [row.get("step") for row in theirs]
            found.append(f"{name} differs: {len(ours)} rows expected, found those of the updates {steps}")
    counts = Counter(row["step"] for row in _rows(folder / "metrics.jsonl") if "loss" in row)
    if counts != Counter(range(1, UPDATES + 1)):
        found.append(f"metrics.jsonl has holes or repeats: {dict(counts)}")
    found += _answers_differ(whole / "teacher_answers.jsonl", folder / "teacher_answers.jsonl")
    if not (folder / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>"):
        found.append("report.html is cut")
    return found + _leftovers(folder)


def evaluated_otherwise(whole: Path, folder: Path) -> list[str]:
    """Records and summary of two evaluations, and that each item was scored once."""
    found = [
        f"{name} differs"
        for name in ("records.jsonl", "summary.json", "configuration.json")
        if (whole / "lab-chain-2" / name).read_bytes() != (folder / "lab-chain-2" / name).read_bytes()
    ]
    counts = Counter((row["id"], row["sample"]) for row in _rows(folder / "lab-chain-2" / "records.jsonl"))
    if len(counts) != ITEMS or set(counts.values()) != {1}:
        found.append(f"expected {ITEMS} items, each scored once, found {sorted(counts.values())}")
    return found + _leftovers(folder)


def answered_otherwise(whole: Path, folder: Path) -> list[str]:
    """The answers of two files, in whatever order they came."""
    return _answers_differ(whole / "teacher_answers.jsonl", folder / "teacher_answers.jsonl") + _leftovers(folder)


def studied_otherwise(whole: Path, folder: Path) -> list[str]:
    """Results, table and figure of two studies."""
    return [
        f"{name} differs"
        for name in ("results.json", "table.md", "accuracy.svg")
        if (whole / "small" / name).read_bytes() != (folder / "small" / name).read_bytes()
    ] + _leftovers(folder)


def _same_tensors(load: Callable[[Any], Any], whole: Path, folder: Path, name: str) -> bool:
    return _plain(load(whole / name)) == _plain(load(folder / name))


def _plain(value: Any) -> Any:
    """A value whose tensors are compared bit for bit."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.shape, value.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def _rows(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in row.items() if not any(word in key for word in _TIMED)} for row in rows]


def _answers_differ(whole: Path, path: Path) -> list[str]:
    ours, theirs = (Counter(file.read_text(encoding="utf-8").splitlines()) for file in (whole, path))
    return [] if ours == theirs else [f"{path.name} differs: {len(ours)} answers expected, found {dict(theirs)!s:.200}"]


def _leftovers(folder: Path) -> list[str]:
    """Names that only an unfinished run may have: parts of records, staged checkpoints and files, errors of cells."""
    patterns = ("**/records.part-*", f"**/{checkpoints.STAGING}", "cells/*/failed.json", "**/.*.*-[0-9]*")
    return [f"{path.relative_to(folder)} is left" for pattern in patterns for path in folder.glob(pattern)]


# A server that counts.


@dataclass
class Asked:
    """What a server was asked, in order; and which answers were on disk when it was asked."""

    url: str
    questions: list[str] = field(default_factory=list)
    # What it was let in with.
    keys: set[str | None] = field(default_factory=set)

    def repeated(self, since: int, kept: Sequence[str]) -> list[str]:
        """The questions asked since the request with that number whose answer was kept on disk already."""
        return sorted(set(self.questions[since:]) & set(kept))


@contextmanager
def answer_server() -> Iterator[Asked]:
    """A server whose answer to a question is the digest of the question."""
    asked = Asked("")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({"data": [{"id": "lab:teacher-strong"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name = _digest(body["messages"][-1]["content"])
            asked.questions.append(name)
            asked.keys.add(self.headers["Authorization"])
            self._reply({"choices": [{"message": {"content": name}, "finish_reason": "stop"}]})

        def _reply(self, value: Any) -> None:
            self.send_response(200)
            self.end_headers()
            # The process that asked may have been killed.
            with suppress(OSError):
                self.wfile.write(json.dumps(value).encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    asked.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()


def kept_answers(path: Path) -> list[str]:
    """The answers on disk, in whole lines."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [json.loads(line)["text"] for line in lines if line.startswith(b"{") and line.endswith(b"}")]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fresh(folder: Path) -> Path:
    """An empty place for a run."""
    shutil.rmtree(folder, ignore_errors=True)
    return folder
