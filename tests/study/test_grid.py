from pathlib import Path

import pytest
from studies import FACTORS, ORDER_VIEW, study_file

from forkleft.errors import ForkLeftError
from forkleft.study.grid import Evaluation, make_grid
from forkleft.study.spec import read_study, with_seeds

STUDIES = sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.yaml"))
SUBSET = {"questions_from": {"arm": "main", "route": "LEFTOPD"}}


def grid_of(tmp_path, **changes):
    return make_grid(read_study(study_file(tmp_path, **changes)))


def kinds(grid):
    return [cell.kind for cell in grid.cells.values()]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_of_the_repository_has_its_cells(path):
    study = read_study(path)
    grid = make_grid(study)
    assert len(grid.places) == kinds(grid).count("train") == len(study.arms) * len(study.seeds)


def test_cells_are_shared_by_what_they_are(tmp_path):
    """Not by what they are called, nor by how they are written, nor by how they are measured."""
    first = grid_of(tmp_path, arms={"L-high": {}, "L-low": {"rollout_order": "low_entropy"}})
    said = {"view": "prefix", "rollout_order": "high_entropy", "max_grad_norm": 1.0}
    second = grid_of(tmp_path, name="other", arms={"main": said}, benchmarks=["lab-chain-5"], compare=None, limit=7)
    cells = {(place.arm, place.seed): place.cell for place in first.places}
    assert [place.cell for place in second.places] == [cells["L-high", 1], cells["L-high", 2]]
    assert len(set(cells.values())) == 4
    longer = grid_of(tmp_path, set={"max_steps": 11, "eval_strategy": "no"})
    assert not {place.cell for place in longer.places} & set(cells.values())
    # Base and teacher are the same for all of them, the questions of the lab for each seed.
    assert sorted(kinds(first)) == ["answers"] * 2 + ["base", "teacher"] + ["train"] * 4
    assert {place.base for place in first.places} == {place.base for place in longer.places}


def test_cells_come_seed_by_seed_after_what_they_need(tmp_path):
    arms = {"opd": SUBSET | {"supervision": "opd"}, "main": {}}
    grid = grid_of(tmp_path, arms=arms, compare=None)
    seen = set()
    for cell in grid.cells.values():
        assert set(cell.needs) <= seen
        seen.add(cell.digest)
    labels = [cell.label for cell in grid.cells.values() if cell.kind == "train"]
    assert labels == ["main, seed 1", "opd, seed 1", "main, seed 2", "opd, seed 2"]
    assert [(place.arm, place.seed) for place in grid.places] == [("opd", 1), ("main", 1), ("opd", 2), ("main", 2)]
    by_label = {cell.label: cell for cell in grid.cells.values()}
    subset, main = by_label["opd, seed 1"], by_label["main, seed 1"]
    assert (subset.routes_of, subset.route) == (main.digest, "LEFTOPD")
    # The teacher has answered all questions, and so those of the subset.
    assert subset.needs == (*main.needs, main.digest)
    # Other questions are another cell.
    plain = grid_of(tmp_path, arms={"opd": {"supervision": "opd"}}, compare=None)
    assert subset.digest not in plain.cells


def test_only_what_some_seeds_need(tmp_path):
    grid = grid_of(tmp_path, seeds=[1, 2, 3])
    chosen = grid.of_seeds([2])
    assert sorted(cell.kind for cell in chosen.values()) == ["answers", "base", "teacher", "train", "train"]
    assert {cell.options["seed"] for cell in chosen.values() if cell.kind == "train"} == {2}


def test_answers_are_asked_once_for_data_that_no_seed_changes(tmp_path):
    data = tmp_path / "rows.jsonl"
    data.write_text('{"question": "1", "answer": "1"}\n')
    grid = grid_of(tmp_path, set={"train_data": str(data), "max_steps": 3})
    assert kinds(grid).count("answers") == 1
    before = {place.cell for place in grid.places}
    data.write_text('{"question": "2", "answer": "2"}\n')
    from forkleft.study import grid as module

    module._content.cache_clear()
    assert not before & {
        place.cell for place in grid_of(tmp_path, set={"train_data": str(data), "max_steps": 3}).places
    }


def test_weights_that_changed_are_another_model(tmp_path):
    from forkleft.study import grid as module

    student = tmp_path / "student"
    student.mkdir()
    (student / "config.json").write_text("{}")
    (student / "model.safetensors").write_bytes(b"one")
    digests = []
    for weights, page in ((b"one", ""), (b"two", ""), (b"two", "a word")):
        (student / "model.safetensors").write_bytes(weights)
        (student / "README.md").write_text(page)
        module._content.cache_clear()
        digests.append(grid_of(tmp_path, set={"student": str(student), "max_steps": 3}).places[0].base)
    assert digests[0] != digests[1] == digests[2]


def test_a_curve_saves_and_measures_checkpoints(tmp_path):
    grid = grid_of(tmp_path, curve=[0, "20%", "100%"], arms={"L-high": {}}, compare=None)
    cell = next(cell for cell in grid.cells.values() if cell.kind == "train")
    assert cell.options["save_at"] == [2]
    assert [(one.step, one.folder) for one in cell.evaluations] == [(None, "limit-40"), (2, "step-2_limit-40")]
    base = next(cell for cell in grid.cells.values() if cell.kind == "base")
    assert [one.folder for one in base.evaluations] == ["limit-40"]


def test_ways_to_decode_are_folders_of_their_own(tmp_path):
    decoding = {"static": {}, "fast": {"passes": 4, "threshold": 0.9}}
    grid = grid_of(tmp_path, decoding=decoding, limit=None)
    for cell in grid.cells.values():
        folders = [one.folder for one in cell.evaluations]
        expected = {"answers": [], "teacher": ["static"]}.get(cell.kind, ["static", "passes-4_threshold-0.9"])
        assert folders == expected
    assert Evaluation("x", {"passes": 8}, ("gsm8k",), 3, 5).folder == "step-5_limit-3_passes-8"


def test_two_identical_cells_are_refused(tmp_path):
    arms = {"L-high": {}, "again": {"view": "prefix"}}
    with pytest.raises(ForkLeftError, match="small: again, seed 1 and L-high, seed 1 are the same configuration"):
        grid_of(tmp_path, arms=arms, compare=None)
    study = read_study(study_file(tmp_path, arms=ORDER_VIEW, effects=FACTORS), overrides=["view=prefix"])
    with pytest.raises(ForkLeftError, match="B-high, seed 1 and L-high, seed 1 are the same"):
        make_grid(study)


def test_values_that_no_run_would_take_are_refused_before_any_runs(tmp_path):
    with pytest.raises(ForkLeftError, match="small, L-high, seed 1: rollout_order must be one of"):
        grid_of(tmp_path, arms={"L-high": {"rollout_order": "best"}}, compare=None)
    with pytest.raises(ForkLeftError, match="a curve needs to know the updates of the runs; set max_steps"):
        grid_of(tmp_path, set={"max_steps": -1}, curve=["50%"])
    assert make_grid(with_seeds(read_study(study_file(tmp_path)), [2])).places[0].seed == 2
