import fcntl
import io
import json
import multiprocessing
import os
import signal
import sys
import time

import pytest
from rich.console import Console
from studies import PROGRAM, study_file

from forkleft.study.cells import CellFolder, Failure
from forkleft.study.grid import make_grid
from forkleft.study.names import CELLS
from forkleft.study.progress import GridProgress
from forkleft.study.runner import run_cells
from forkleft.study.spec import read_study
from forkleft.study.timing import Rates


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What the made-up program was called with."""
    path = tmp_path / "calls.jsonl"
    monkeypatch.setenv("FAKE_CALLS", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def run(tmp_path, *, jobs=2, grid=None, program=PROGRAM, out=None, **changes):
    """The failures by label, what was printed, and the grid."""
    grid = grid or make_grid(read_study(study_file(tmp_path, **changes)))
    told = out or io.StringIO()
    with GridProgress(Console(file=told, width=200), len(grid.cells), Rates(), jobs) as progress:
        failures = run_cells(grid.cells, tmp_path / "root", progress, jobs=jobs, program=program)
    failures = {grid.cells[digest].label: failure for digest, failure in failures.items()}
    return failures, None if out else told.getvalue(), grid


def test_what_is_missing_is_run_and_nothing_else(tmp_path, calls):
    failures, out, grid = run(tmp_path)
    assert not failures and out.count(": done") == len(grid.cells) == 8
    verbs = [call[0] for call in calls()]
    # Two seeds of answers; four trainings, measured, and base and teacher.
    assert {verb: verbs.count(verb) for verb in verbs} == {"answer": 2, "train": 4, "eval": 6}
    assert {call[-1] for call in calls()} == {str(max(1, (os.cpu_count() or 1) // 2))}
    assert all(CellFolder(tmp_path / "root", cell).is_finished() for cell in grid.cells.values())
    before = len(calls())
    assert not run(tmp_path, grid=grid)[0] and len(calls()) == before
    # A new benchmark trains nothing, a new arm trains itself.
    arms = {"L-high": {}, "L-low": {"rollout_order": "low_entropy"}, "no-rank": {"rank_weight": 0}}
    run(tmp_path, arms=arms, benchmarks=["lab-chain-3", "lab-chain-4", "lab-chain-5"])
    new = calls()[before:]
    assert [call[0] for call in new].count("train") == 2
    assert [call[0] for call in new].count("eval") == 6 + 2


def test_a_cell_that_fails_leaves_a_hole_and_the_others_go_on(tmp_path, calls, monkeypatch):
    fault = {"fail": "train", "in": '"label": "L-low, seed 2"', "code": 3}
    monkeypatch.setenv("FAKE", json.dumps(fault))
    failures, out, grid = run(tmp_path)
    assert list(failures) == ["L-low, seed 2"]
    assert failures["L-low, seed 2"].error == "train ended with code 3: this cannot be"
    assert failures["L-low, seed 2"].command.startswith("forkleft train --config")
    assert out.count(": done") == 7 and "L-low, seed 2: FAILED, train ended with code 3: this cannot be" in out
    folder = next(CellFolder(tmp_path / "root", c) for c in grid.cells.values() if c.label == "L-low, seed 2")
    assert folder.failure() == failures["L-low, seed 2"]
    assert "some words" in folder.log.read_text() and folder.log.read_text().startswith("$ forkleft train")
    monkeypatch.delenv("FAKE")
    before = len(calls())
    assert not run(tmp_path, grid=grid)[0]
    assert [call[0] for call in calls()[before:]] == ["train", "eval"]
    assert folder.failure() is None


def test_a_command_that_was_killed_after_its_last_file_leaves_no_error(tmp_path, calls):
    _, _, grid = run(tmp_path, seeds=[1])
    folder = CellFolder(tmp_path / "root", next(iter(grid.cells.values())))
    folder.fail(Failure("killed by signal 9", "forkleft eval"))
    before = len(calls())
    assert not run(tmp_path, grid=grid)[0] and len(calls()) == before
    assert folder.failure() is None


def test_what_needs_a_failed_cell_is_a_hole_too(tmp_path, calls, monkeypatch):
    arms = {"main": {}, "opd": {"questions_from": {"arm": "main", "route": "LEFTOPD"}, "supervision": "opd"}}
    monkeypatch.setenv("FAKE", json.dumps({"fail": "train", "in": '"label": "main, seed 1"'}))
    failures, _, _ = run(tmp_path, arms=arms, compare=None)
    assert sorted(failures) == ["main, seed 1", "opd, seed 1"]
    assert failures["opd, seed 1"].error == "it needs main, seed 1, which failed"
    assert failures["opd, seed 1"].command == failures["main, seed 1"].command


def test_a_command_that_ends_without_its_result(tmp_path, calls, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps({"nothing": True}))
    failures, _, _ = run(tmp_path, seeds=[1])
    assert "eval/limit-40 ended without its result; see " in failures["base lab:student-block"].error
    assert len(failures) == 4


def test_a_command_that_is_killed_is_named_with_its_signal(tmp_path):
    program = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    failures, _, _ = run(tmp_path, seeds=[1], program=program)
    assert "eval/limit-40 was killed by signal 9 (SIGKILL); see " in failures["base lab:student-block"].error


def test_a_full_disk_is_a_hole_that_is_named(tmp_path, calls):
    grid = make_grid(read_study(study_file(tmp_path, seeds=[1])))
    cell = next(cell for cell in grid.cells.values() if cell.label == "L-low, seed 1")
    folder = CellFolder(tmp_path / "root", cell)
    folder.path.mkdir(parents=True)
    folder.log.symlink_to("/dev/full")
    failures, _, _ = run(tmp_path, grid=grid)
    assert list(failures) == ["L-low, seed 1"]
    assert "No space left on device; make room" in failures["L-low, seed 1"].error
    folder.log.unlink()
    assert not run(tmp_path, grid=grid)[0]


def start(tmp_path, number, grid):
    """Another runner of the same study, in a process of its own, which writes what it says to a file."""

    def work():
        failures, _, _ = run(tmp_path, grid=grid, out=(tmp_path / f"out-{number}").open("w", buffering=1))
        os._exit(len(failures))

    # Forked, so that it need not load everything anew.
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def wait_until(right):
    deadline = time.monotonic() + 120
    while not right():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


def test_two_runners_share_the_work_and_do_nothing_twice(tmp_path, calls, monkeypatch):
    gate = tmp_path / "gate"
    monkeypatch.setenv("FAKE", json.dumps({"gate": str(gate)}))
    grid = make_grid(read_study(study_file(tmp_path, seeds=[1])))
    both = [start(tmp_path, number, grid) for number in (1, 2)]
    # Answers, base and teacher, each begun by either; then the trainings.
    wait_until(lambda: len(calls()) == 3)
    gate.touch()
    for runner in both:
        runner.join()
    outs = [(tmp_path / f"out-{number}").read_text() for number in (1, 2)]
    assert [runner.exitcode for runner in both] == [0, 0], outs
    words = [tuple(call) for call in calls()]
    assert len(words) == len(set(words)) == 1 + 2 + 4
    assert sum(out.count(": done") for out in outs) == 5


def test_a_killed_runner_is_taken_over(tmp_path, calls, monkeypatch):
    """Its command goes on alone and keeps the cell; whoever starts again waits for it, and goes on."""
    gate = tmp_path / "gate"
    run(tmp_path, seeds=[1], arms={"other": {"rho": 0.9}}, compare=None)
    before = len(calls())
    monkeypatch.setenv("FAKE", json.dumps({"gate": str(gate)}))
    grid = make_grid(read_study(study_file(tmp_path, seeds=[1])))
    first = start(tmp_path, 1, grid)
    wait_until(lambda: len(calls()) == before + 2)
    assert [call[0] for call in calls()[before:]] == ["train", "train"]
    os.kill(first.pid, signal.SIGKILL)
    first.join()
    second = start(tmp_path, 2, grid)
    wait_until(lambda: (tmp_path / "out-2").exists())
    wait_until(lambda: (tmp_path / "out-2").read_text().count("another run works on it; waiting") == 2)
    gate.touch()
    second.join()
    assert second.exitcode == 0
    assert all(CellFolder(tmp_path / "root", cell).is_finished() for cell in grid.cells.values())
    # The trainings that went on alone were not begun again.
    assert [call[0] for call in calls()[before:]].count("train") == 2


def test_a_runner_that_is_asked_to_end_ends_its_commands(tmp_path, calls, monkeypatch):
    monkeypatch.setenv("FAKE", json.dumps({"gate": str(tmp_path / "never")}))
    runner = start(tmp_path, 1, make_grid(read_study(study_file(tmp_path, seeds=[1]))))
    wait_until(lambda: len(calls()) == 2)
    os.kill(runner.pid, signal.SIGTERM)
    runner.join()
    assert runner.exitcode != 0
    for path in (tmp_path / "root" / CELLS).glob("*/.lock"):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
