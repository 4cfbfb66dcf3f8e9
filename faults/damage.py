"""Damage: a file of ours, cut anywhere or with one bit changed, is never silently used.

Whoever reads it finds out (an error that names the file), leaves out what is damaged, or reads what was written: a bit
in a checksum, or a cut behind the last line, changes nothing that is said.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from faults.tally import Tallies, Tally
from forkleft.errors import ForkLeftError
from forkleft.evaluate.results import CONFIGURATION, RECORDS, SUMMARY, Record, ResultFolder, line_of, read_results
from forkleft.files import read_appended, write_json
from forkleft.objective.routes import Route
from forkleft.study.cells import CellFolder
from forkleft.study.collect import collect, note_study, read_noted
from forkleft.study.grid import Place, make_grid
from forkleft.study.names import STUDY
from forkleft.study.results import ArmFacts, CellResults, Items, Measured, StudyResults, load_results, save_results
from forkleft.study.spec import read_study
from forkleft.teacher.answers import Answer, AnswerCache
from forkleft.train import checkpoints
from forkleft.train.data import read_routes
from forkleft.train.metrics import StepFile
from forkleft.train.run_files import write_run


@dataclass(frozen=True)
class Subject:
    """A kind of files: how they are made in a folder, and what a reader gets of them.

    read: gives parts by name. A part may be missing after damage, and must never be another. make: gives the files that
    may be damaged.
    """

    name: str
    make: Callable[[Path], list[Path]]
    read: Callable[[Path], dict[Any, Any]]


def run(work: Path, cases: int, seed: int) -> list[Tally]:
    """So many damages of each kind of file."""
    tallies = Tallies()
    for subject in SUBJECTS:
        folder = work / subject.name.replace(" ", "-")
        lost = damaged_silently(subject, folder, cases, random.Random(seed))
        tallies.add(f"damaged {subject.name}", lost, cases)
    return tallies.all()


def damaged_silently(subject: Subject, folder: Path, cases: int, draw: random.Random) -> list[str]:
    """Damage files so many times, and read them. What was read that had not been written, in words."""
    folder.mkdir(parents=True, exist_ok=True)
    files = subject.make(folder)
    whole = {path: path.read_bytes() for path in files}
    written = subject.read(folder)
    lost = []
    for _ in range(cases):
        path = draw.choice(files)
        how, content = damaged(whole[path], draw)
        path.write_bytes(content)
        try:
            found = subject.read(folder)
            if wrong := [name for name, value in found.items() if name not in written or written[name] != value]:
                lost.append(f"{path.name}, {how}: {wrong[0]!r:.60} was read as {found[wrong[0]]!r:.80}")
        except ForkLeftError:
            pass
        except Exception as error:
            lost.append(f"{path.name}, {how}: {type(error).__name__}: {error}"[:300])
        path.write_bytes(whole[path])
    return lost


def damaged(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """A content with one bit changed, or cut; and what was done."""
    at = draw.randrange(len(content))
    if draw.random() < 0.3:
        return f"cut at {at}", content[:at]
    bit = draw.randrange(8)
    return f"bit {bit} of byte {at}", content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]


# The kinds of files.


def _checkpoint(folder: Path) -> list[Path]:
    staged = folder / "staged"
    staged.mkdir()
    for name in ("model.safetensors", "optimizer.pt", "trainer_state.json"):
        (staged / name).write_bytes(name.encode() * 50)
    checkpoints.publish(staged, folder / "checkpoint-2")
    return sorted((folder / "checkpoint-2").iterdir())


def _read_checkpoint(folder: Path) -> dict[Any, Any]:
    checkpoint = checkpoints.newest_whole(folder)
    return {path.name: path.read_bytes() for path in checkpoint.iterdir() if path.name != checkpoints.MANIFEST}


def _answers(folder: Path) -> list[Path]:
    path = folder / "teacher_answers.jsonl"
    AnswerCache(path).put({f"key {k}": Answer(f"the answer is {k}", k % 2 == 0) for k in range(5)})
    return [path]


def _read_answers(folder: Path) -> dict[Any, Any]:
    cache = AnswerCache(folder / "teacher_answers.jsonl")
    return {key: answer for key in (f"key {k}" for k in range(5)) if (answer := cache.get(key)) is not None}


def _records(folder: Path, *, finished: bool = False, benchmark: str = "b") -> list[Path]:
    configuration = _configuration(benchmark)
    results = ResultFolder(folder / benchmark, configuration)
    made = [
        Record(f"item {k}", 0, "d", "p", f"item {k}", str(k), f"so {k}", str(k), k % 2 == 0, 9, 9, True, None)
        for k in range(5)
    ]
    with results.part(0) as part:
        part.writelines(map(line_of, made))
    if finished:
        results.finish([record.key for record in made], {"model": "m"}, 5)
        return [folder / benchmark / name for name in (RECORDS, SUMMARY)]
    return [folder / benchmark / name for name in ("records.part-0.jsonl", CONFIGURATION)]


def _configuration(benchmark: str) -> dict[str, Any]:
    about = {"protocol": "generated", "model": {"kind": "diffusion"}, "sampler": {}, "items": {"digest": "d" * 16}}
    return {"benchmark": benchmark} | about


def _read_parts(folder: Path) -> dict[Any, Any]:
    return dict(ResultFolder(folder / "b", _configuration("b")).records())


def _read_finished(folder: Path) -> dict[Any, Any]:
    results = read_results(folder)["b"]
    return {record.key: record for record in results.records} | {"results": results.summary["results"]}


def _steps(name: str) -> Callable[[Path], list[Path]]:
    def make(folder: Path) -> list[Path]:
        file = StepFile(folder / name, sealed=True)
        for step in range(1, 6):
            file.write({"step": step, "ids": [f"q{step}"], "routes": [str(Route.CE)], "entropy": [0.5 * step]})
        return [file.path]

    return make


def _read_traces(folder: Path) -> dict[Any, Any]:
    rows = [row for _, row in read_appended(folder / "traces.jsonl") if row is not None]
    return {number: {name: row.get(name) for name in ("step", "ids", "routes", "entropy")} for number, row in _by(rows)}


def _by(rows: list[dict[str, Any]]) -> list[tuple[Any, dict[str, Any]]]:
    return [(row.get("step"), row) for row in rows]


def _read_routes(folder: Path) -> dict[Any, Any]:
    return dict(enumerate(read_routes(folder / "routes.jsonl")))


def study_results(folder: Path) -> list[Path]:
    """Write the results of a small study."""
    verdicts = np.array([True, False, True, True, False])
    cell = CellResults("train", "main, seed 1", (Measured("static", None, "b", verdicts, 40, 40),))
    results = StudyResults(
        name="s",
        about="A study.",
        shared={},
        seeds=(1,),
        benchmarks=("b",),
        limit=None,
        decoding={"static": {}},
        curve=False,
        compare=(),
        effects={},
        arms={"main": ArmFacts({}, ("student",), "teacher", 4)},
        places=(Place("main", 1, "c", "base", "teacher"),),
        items={"b": Items(5, "d", None)},
        cells={"c": cell},
    )
    save_results(folder / "results.json", results)
    return [folder / "results.json"]


def _read_study(folder: Path) -> dict[Any, Any]:
    return {"results": repr(load_results(folder / "results.json"))}


def _cells(folder: Path) -> list[Path]:
    """A study with its first training: routes, and an evaluation."""
    recipe = {"student": "lab:student-block", "teacher": "lab:teacher-strong", "train_data": "lab:train"}
    said = {"name": "s", "base": "base.yaml", "arms": {"a": {}}, "seeds": [1, 2], "benchmarks": ["lab-chain-2"]}
    write_json(folder / "base.yaml", recipe | {"output_dir": "out"})
    write_json(folder / "study.yaml", said)
    grid = make_grid(read_study(folder / "study.yaml"))
    note_study(folder / "s", grid)
    cell = grid.cells[grid.places[0].cell]
    made = CellFolder(folder, cell)
    made.train.mkdir(parents=True)
    # Of a run that has ended.
    write_run(made.train, {"max_steps": 5})
    (made.train / "README.md").touch()
    (evaluation,) = cell.evaluations
    measured = _records(made.evaluation(evaluation), finished=True, benchmark="lab-chain-2")
    return [folder / "s" / STUDY, *_steps("routes.jsonl")(made.train), *measured]


def _read_cells(folder: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = dict(read_noted(folder / "s") or {})
    for digest, cell in collect(folder / "s").cells.items():
        found |= {(digest, measured.benchmark): repr(measured) for measured in cell.measured}
        found |= {} if cell.routes is None else {(digest, "routes"): cell.routes}
    return found


SUBJECTS = (
    Subject("checkpoints", _checkpoint, _read_checkpoint),
    Subject("answers", _answers, _read_answers),
    Subject("records", _records, _read_parts),
    Subject("results", lambda folder: _records(folder, finished=True), _read_finished),
    Subject("traces", _steps("traces.jsonl"), _read_traces),
    Subject("routes", _steps("routes.jsonl"), _read_routes),
    Subject("study results", study_results, _read_study),
    Subject("cells of a study", _cells, _read_cells),
)
