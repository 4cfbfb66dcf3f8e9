import io
import json
import shutil

import pytest
from rich.console import Console
from studies import PROGRAM, study_file

from forkleft.errors import ForkLeftError
from forkleft.report.studies import show_study
from forkleft.study.collect import collect
from forkleft.study.plan import plan_study, print_plan
from forkleft.study.progress import GridProgress
from forkleft.study.runner import run_cells
from forkleft.study.timing import Rates

SUBSET = {
    "main": {},
    "opd": {"questions_from": {"arm": "main", "route": "LEFTOPD"}, "supervision": "opd"},
}


def run(folder, root, **changes):
    """Run a study with the made-up program; the words of its calls, and the plan."""
    plan = plan_study(study_file(folder, **changes), root)
    plan.begin()
    progress = GridProgress(Console(file=io.StringIO()), len(plan.cells), Rates(), jobs=2)
    assert not run_cells(plan.cells, root, progress, jobs=2, program=PROGRAM)
    show_study(plan.folder)
    calls = folder / "calls.jsonl"
    made = [json.loads(line)[0] for line in calls.read_text().splitlines()] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return made, plan


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study of two arms and two seeds, without its cells and its list of them."""
    folder = tmp_path_factory.mktemp("made")
    root = folder / "root"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FAKE_CALLS", str(folder / "calls.jsonl"))
        run(folder, root)
    shutil.rmtree(root / "cells")
    (root / "small" / "study.json").unlink()
    return root


@pytest.fixture
def kept(tmp_path, monkeypatch, made):
    """A copy of its results, and what they say."""
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls.jsonl"))
    root = tmp_path / "root"
    shutil.copytree(made, root)
    return root, (root / "small" / "results.json").read_text()


def test_what_results_hold_is_not_made_again(tmp_path, kept):
    root, text = kept
    made, plan = run(tmp_path, root)
    assert made == [] and plan.kept == 8 and plan.cells == {}
    assert (root / "small" / "results.json").read_text() == text
    assert not (root / "cells").exists()


def test_a_new_seed_is_added_to_what_is_kept(tmp_path, kept):
    root, text = kept
    plan = plan_study(study_file(tmp_path, seeds=[1, 2, 3]), root, seeds=[3])
    out = io.StringIO()
    print_plan(plan, 2, Console(file=out, width=200))
    assert "2 more are not needed: the results that are kept there hold" in out.getvalue()
    assert sorted(cell.kind for cell in plan.cells.values()) == ["answers", "train", "train"]
    made, _ = run(tmp_path, root, seeds=[1, 2, 3])
    assert sorted(made) == ["answer", "eval", "eval", "train", "train"]
    results = collect(root / "small")
    before, after = json.loads(text)["cells"], json.loads((root / "small" / "results.json").read_text())["cells"]
    assert before.items() <= after.items() and list(results.of_arm("L-low", "static")) == [1, 2, 3]
    assert not results.holes


def test_another_study_takes_what_it_shares(tmp_path, kept):
    root, _ = kept
    arms = {"high": {}, "no-rank": {"rank_weight": 0}}
    made, _ = run(tmp_path, root, name="other", arms=arms, compare=None, seeds=[1], decoding={"one": {}})
    assert sorted(made) == ["answer", "eval", "train"]
    results = collect(root / "other")
    assert list(results.of_arm("high", "one")) == [1] and not results.holes
    assert results.cells[results.places[0].cell].routes.first == (4, 4, 0, 0)


@pytest.mark.slow
def test_a_model_that_must_be_measured_otherwise_is_trained_again(tmp_path, kept):
    root, _ = kept
    made, _ = run(tmp_path, root, seeds=[1, 2], decoding={"static": {}, "fast": {"passes": 4}})
    assert made.count("train") == 4 and made.count("answer") == 2


@pytest.mark.slow
def test_a_training_on_the_questions_of_another_needs_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls.jsonl"))
    root = tmp_path / "root"
    run(tmp_path, root, arms=SUBSET, compare=None)
    shutil.rmtree(root / "cells")
    arms = SUBSET | {"sft": SUBSET["opd"] | {"supervision": "sft"}}
    made, _ = run(tmp_path, root, arms=arms, compare=None, seeds=[1])
    # The answers, the main run and its evaluation, and the new arm; neither base nor teacher nor opd.
    assert sorted(made) == ["answer", "eval", "eval", "train", "train"]


def test_kept_results_of_other_options_are_another_study(tmp_path, kept):
    root, _ = kept
    with pytest.raises(ForkLeftError, match="L-high, seed 1: its options, models or data changed; name another"):
        plan_study(study_file(tmp_path, set={"max_steps": 11}), root)


def test_damaged_results_are_named(tmp_path, kept):
    root, text = kept
    (root / "small" / "results.json").write_text(text[:-40])
    with pytest.raises(ForkLeftError, match=r"results.json is damaged"):
        plan_study(study_file(tmp_path), root)
