import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest
from reports import made_up_run, made_up_trace, write_rows
from studies import made_up_results

from forkleft.errors import ForkLeftError
from forkleft.report.gather import gather
from forkleft.report.viewer import LONGEST
from forkleft.study.results import save_results

BEFORE = Path(__file__).parents[1] / "written_before"


def test_a_run_and_its_parts(tmp_path):
    (run,) = gather([made_up_run(tmp_path / "run")]).runs
    assert (run.name, run.status, run.has_recipe) == ("run", "finished", True)
    assert [trace["route"] for trace in run.traces] == ["LEFTOPD", "CE", "GOLD", "EXCLUDE"]
    assert len(run.updates) == 3 and len(run.showcase) == 8
    assert run.notes == []


def test_a_copy_of_a_finished_run_is_finished(tmp_path):
    folder = made_up_run(tmp_path / "run")
    os.utime(folder / "README.md", (0, 0))
    assert gather([folder]).runs[0].status == "finished"


def test_a_run_of_an_earlier_version():
    (run,) = gather([BEFORE / "run"]).runs
    assert len(run.updates) == 2 and run.traces == [] and run.showcase == []


def test_results_beside_a_run_are_compared(tmp_path):
    folder = made_up_run(tmp_path / "run")
    for name, model in (("base", "student-block"), ("trained", "student-shifted")):
        shutil.copytree(BEFORE / "evaluation" / model, folder / "results" / name)
    (run,) = gather([folder]).runs
    assert [row.benchmark for row in run.comparisons[0].rows] == ["lab-chain-3"]
    (folder / "results" / "trained" / "lab-chain-3" / "summary.json").unlink()
    (run,) = gather([folder]).runs
    assert run.comparisons == []
    assert "results are not compared" in run.notes[0] and "unfinished: lab-chain-3" in run.notes[0]


def test_folders_of_results_are_compared_with_the_first():
    found = gather([BEFORE / "evaluation" / "student-block", BEFORE / "evaluation" / "student-shifted"])
    assert len(found.comparisons) == 1 and found.runs == []
    with pytest.raises(ForkLeftError, match="which are compared with others; name those of the base first"):
        gather([BEFORE / "evaluation" / "student-block"])


def test_a_study_and_the_runs_of_its_cells(tmp_path):
    save_results(tmp_path / "alone" / "results.json", made_up_results(seeds=(1, 2), benchmarks=("one",), items=60))
    found = gather([tmp_path / "alone"])
    assert found.studies[0].analysis.gains and found.runs == []
    found = gather([BEFORE / "study"])
    assert [run.name for run in found.runs] == ["high, seed 1", "low, seed 1"]
    assert [run.group for run in found.runs] == ["high", "low"]


def test_a_run_still_going_shows_what_is_there(tmp_path):
    folder = made_up_run(tmp_path / "run", finished=False)
    assert gather([folder]).runs[0].status == "stopped"
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with (folder / "traces.jsonl").open("a") as traces:
            traces.write(json.dumps(made_up_trace(9))[:50])
        (run,) = gather([folder]).runs
    assert run.status == "running" and len(run.traces) == 4
    assert run.notes == ["traces.jsonl: 1 line torn or still being written, left out"]


def test_an_empty_run(tmp_path):
    folder = made_up_run(tmp_path / "run", traces=[], updates=0, finished=False)
    (run,) = gather([folder]).runs
    assert run.updates == [] and run.traces == []


def test_rows_that_the_viewer_cannot_show_are_counted(tmp_path):
    folder = made_up_run(tmp_path / "run", traces=[made_up_trace(0), {"step": 1, "tokens": "?"}])
    (run,) = gather([folder]).runs
    assert len(run.traces) == 1
    assert run.notes == ["traces.jsonl: 1 line without what the viewer needs, left out"]
    write_rows(folder / "showcase.jsonl", [made_up_trace(0, order="confidence"), {"step": 0}, {"step": 1}])
    (run,) = gather([folder]).runs
    assert len(run.showcase) == 1 and run.notes[1] == "showcase.jsonl: 2 lines without what the viewer needs, left out"
    (run,) = gather([made_up_run(tmp_path / "long", traces=[made_up_trace(0, tokens=LONGEST + 1)])]).runs
    assert run.notes == ["1 response is longer than the viewer shows, and cut there"]
    assert len(run.traces[0]["tokens"]) == LONGEST


def test_traces_are_shared_among_the_runs(tmp_path):
    runs = [made_up_run(tmp_path / name, traces=[made_up_trace(k) for k in range(9)]) for name in ("a", "b")]
    found = gather(runs, traces=4)
    assert [(len(run.traces), run.traced) for run in found.runs] == [(2, 9), (2, 9)]
    with pytest.raises(ForkLeftError, match="--traces must not be negative"):
        gather(runs, traces=-1)


def test_runs_of_the_same_name_are_told_apart(tmp_path):
    runs = [made_up_run(tmp_path / name / "run") for name in ("a", "b")]
    assert [run.name for run in gather(runs).runs] == ["a/run", "b/run"]


def test_folders_that_are_no_run(tmp_path):
    with pytest.raises(ForkLeftError, match=r"found no folder at .*nowhere"):
        gather([tmp_path / "nowhere"])
    with pytest.raises(ForkLeftError, match=r"holds no run, no results and no study .*name the output_dir"):
        gather([tmp_path])
    made_up_run(tmp_path / "inner")
    with pytest.raises(ForkLeftError, match=r"did you mean .*inner\?"):
        gather([tmp_path])


def test_a_damaged_recipe_is_named(tmp_path):
    folder = made_up_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text("a: [")
    with pytest.raises(ForkLeftError, match=r"recipe\.yaml is no YAML file"):
        gather([folder])


def test_other_lines_than_rows_are_left_out(tmp_path):
    folder = made_up_run(tmp_path / "run")
    write_rows(folder / "metrics.jsonl", [{"loss": 1.0}, [1], {"step": 1, "loss": 1.0}])
    (run,) = gather([folder]).runs
    assert len(run.logged) == 1 and "metrics.jsonl: 2 lines torn" in run.notes[0]


def test_an_adaptation_is_no_run_to_report_on(tmp_path):
    (tmp_path / "forkleft.json").write_text('{"objective": "adaptation"}')
    with pytest.raises(ForkLeftError, match=r"is a run of forkleft adapt, .* its curves are in curves\.png"):
        gather([tmp_path])
