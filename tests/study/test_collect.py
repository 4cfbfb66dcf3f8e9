import io
import json

import pytest
from rich.console import Console
from studies import ITEMS, PROGRAM, study_file

from forkleft.digests import sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.study.cells import CellFolder
from forkleft.study.collect import collect, note_study
from forkleft.study.grid import make_grid
from forkleft.study.progress import GridProgress
from forkleft.study.runner import run_cells
from forkleft.study.spec import read_study
from forkleft.study.timing import Rates


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a study that the made-up program ran; tests change nothing in it but what they put back."""
    folder = tmp_path_factory.mktemp("study")
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setenv("FAKE_CALLS", str(folder / "calls.jsonl"))
    grid = make_grid(read_study(study_file(folder)))
    note_study(folder / "small", grid)
    progress = GridProgress(Console(file=io.StringIO()), len(grid.cells), Rates(), jobs=2)
    assert not run_cells(grid.cells, folder, progress, jobs=2, program=PROGRAM)
    monkeypatch.undo()
    return folder, grid


def test_results_are_read_from_the_cells(finished):
    folder, grid = finished
    results = collect(folder / "small")
    assert not results.holes
    assert results.shared["max_steps"] == 10 and "rollout_order" not in results.shared
    assert results.arms["L-low"].options == {"rollout_order": "low_entropy"}
    assert (results.arms["L-low"].students, results.arms["L-low"].updates) == (("lab:student-block",), 10)
    for place in grid.places:
        for name in ("lab-chain-3", "lab-chain-4"):
            path = folder / "cells" / place.cell / "eval" / f"limit-{ITEMS}" / name / "records.jsonl"
            right = [json.loads(line)["correct"] for line in path.read_text().splitlines()]
            assert results.of_arm(place.arm, "static")[place.seed][name].tolist() == right
    assert results.items["lab-chain-3"].count == ITEMS and results.items["lab-chain-3"].clusters is None
    routes = results.cells[grid.places[0].cell].routes
    assert routes.first == (4, 4, 0, 0) and routes.parts == ((4, 4, 0, 0),) * 10
    assert len(results.of_teacher("L-high")) == len(results.of_base("L-high", "static")) == 2


def test_a_noted_study_knows_the_files_of_its_benchmarks(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\nitems: 7\nprotocol: generated\ntemplate: plain\n")
    note_study(tmp_path / "small", make_grid(read_study(study_file(tmp_path, benchmarks=["lab-chain-3", "mine.yaml"]))))
    results = collect(tmp_path / "small")
    assert results.benchmarks == ("lab-chain-3", "mine")
    base = next(hole for hole in results.holes if hole.label.startswith("base "))
    assert f"--benchmark lab-chain-3 {mine} " in base.command


def test_what_is_missing_is_a_hole_with_its_command(finished, tmp_path):
    folder, grid = finished
    place = grid.places[1]
    path = folder / "cells" / place.cell / "eval" / f"limit-{ITEMS}" / "lab-chain-4"
    moved = path.rename(tmp_path / "moved")
    try:
        results = collect(folder / "small")
        with CellFolder(folder, grid.cells[place.cell]).lock():
            (running,) = collect(folder / "small").holes
    finally:
        moved.rename(path)
    assert (running.label, running.error, running.command) == ("L-low, seed 1", "running", "")
    (hole,) = results.holes
    assert (hole.label, hole.error) == ("L-low, seed 1", "not run yet")
    assert hole.command.startswith("forkleft eval --model") and "--benchmark lab-chain-4 --output" in hole.command
    assert list(results.of_arm("L-low", "static")) == [2] and list(results.of_arm("L-high", "static")) == [1, 2]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("records.jsonl", '"id"', '"di"', "is damaged: expected 40 whole records"),
        ("summary.json", '"digest": "', '"digest": "other ', "was measured on other items than the cells before"),
        ("summary.json", '"tokens": ', '"tokens": "many", "more": ', "is damaged: results.tokens is 'many'"),
        ("summary.json", '"digest": ', '"digest": 5, "more": ', "is damaged: configuration.items.digest is 5"),
        ("summary.json", '"benchmark": "', '"benchmark": "other-', "is damaged: configuration.benchmark is 'other-"),
        ("records.jsonl", '"id": ', '"id": [1], "more": ', "is damaged: expected 40 whole records"),
        ("records.jsonl", '"correct": ', '"correct": "yes", "more": ', "is damaged: expected 40 whole records"),
    ],
)
def test_results_that_cannot_be_used_are_holes(finished, file, old, new, message):
    folder, grid = finished
    path = folder / "cells" / grid.places[-1].cell / "eval" / f"limit-{ITEMS}" / "lab-chain-3" / file
    text = path.read_text()
    path.write_text(text.replace(old, new, 1))
    try:
        (hole,) = collect(folder / "small").holes
    finally:
        path.write_text(text)
    assert hole.label == "L-low, seed 2" and message in hole.error


def test_items_in_clusters(finished):
    folder, _ = finished
    changed = {}
    for path in (folder / "cells").glob("*/eval/*/lab-chain-3/records.jsonl"):
        changed[path] = path.read_text()
        rows = [json.loads(line) for line in changed[path].splitlines()]
        text = "".join(json.dumps(row | {"cluster": f"c{k // 2}"}) + "\n" for k, row in enumerate(rows))
        path.write_text(text)
    try:
        results = collect(folder / "small")
    finally:
        for path, text in changed.items():
            path.write_text(text)
    assert results.items["lab-chain-3"].clusters == tuple(k // 2 for k in range(ITEMS))
    assert results.items["lab-chain-4"].clusters is None and not results.holes


def test_a_damaged_note(tmp_path):
    with pytest.raises(ForkLeftError, match="there is no study in"):
        collect(tmp_path)
    (tmp_path / "study.json").write_text('{"format": 1, "cells": []}')
    with pytest.raises(ForkLeftError, match=r"study.json is damaged \(KeyError\('name'\)\); run the study again"):
        collect(tmp_path)


@pytest.mark.parametrize("digest", ["../..", "a/b", "", "..", "a" * 300, 5, None])
def test_a_study_of_others_names_no_folder_elsewhere(finished, tmp_path, digest):
    folder, _ = finished
    noted = unsealed(json.loads((folder / "small" / "study.json").read_text()))
    for change in (
        {"places": [noted["places"][0] | {"cell": digest}]},
        {"places": [noted["places"][0] | {"base": digest}]},
        {"cells": [noted["cells"][0] | {"digest": digest}]},
        {"cells": [noted["cells"][0] | {"needs": [digest]}]},
    ):
        (tmp_path / "study.json").write_text(json.dumps(sealed(noted | change)))
        with pytest.raises(ForkLeftError, match=r"study.json is damaged \(ValueError\(.expected the name of a folder"):
            collect(tmp_path)


@pytest.mark.parametrize("change", [{"benchmarks": ["../../mine"]}, {"settings": {"passes": "/../../.."}}])
def test_nor_do_its_evaluations(finished, tmp_path, change):
    folder, _ = finished
    noted = unsealed(json.loads((folder / "small" / "study.json").read_text()))
    cell = next(cell for cell in noted["cells"] if cell["evaluations"])
    cell["evaluations"][0] |= change
    (tmp_path / "study.json").write_text(json.dumps(sealed(noted)))
    with pytest.raises(ForkLeftError, match=r"study.json is damaged \(ValueError\(.expected the name of a folder"):
        collect(tmp_path)
