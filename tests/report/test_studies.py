import pytest
from PIL import Image
from studies import made_up_results

from forkleft.errors import ForkLeftError
from forkleft.report.studies import show_study, study_folders
from forkleft.study.results import save_results


def test_everything_is_made_again_from_the_results_alone(tmp_path):
    folder = tmp_path / "made-up"
    arms = {"arms": {"L-high": 0.7, "L-low": 0.6}, "compare": (("L-high", "L-low"),), "effects": {}}
    save_results(folder / "results.json", made_up_results(seeds=(1, 2), benchmarks=("one",), items=60, **arms))
    show_study(folder)
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"table.md", "accuracy.png", "accuracy.svg", "differences.svg", "routes.svg"} <= set(made)
    assert "![differences](differences.svg)" in made["table.md"].decode()
    for path in folder.iterdir():
        if path.name != "results.json":
            path.unlink()
    show_study(folder)
    # The same to the byte: a committed figure changes when its numbers do.
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    assert Image.open(folder / "accuracy.png").width > 800


def test_folders_of_studies(tmp_path):
    for name in ("one", "two"):
        save_results(tmp_path / name / "results.json", made_up_results(seeds=(1,)))
    (tmp_path / "cells").mkdir()
    assert study_folders(tmp_path) == [tmp_path / "one", tmp_path / "two"]
    assert study_folders(tmp_path / "two") == [tmp_path / "two"]
    with pytest.raises(ForkLeftError, match=r"there is no study in .*cells: expected study.json or results.json"):
        study_folders(tmp_path / "cells")
    with pytest.raises(ForkLeftError, match="there is no study in"):
        show_study(tmp_path / "cells")
