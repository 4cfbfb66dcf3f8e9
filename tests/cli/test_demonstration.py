import json

import pytest
from documents import ROOT

from forkleft.cli import demonstration as module
from forkleft.cli import main
from forkleft.cli.demonstration import RECIPE, SETS, demo
from forkleft.errors import ForkLeftError
from forkleft.lab.benchmarks import lab_set
from forkleft.train.recipes import read_options, recipe_page


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The lab's recipe with a few questions for each update and each set; its options."""
    words = ["--questions_per_update", "4", "--train_questions", "8", "--eval_questions", "2", "--passes", "4"]
    words += ["--showcase_questions", "1"]
    said = read_options(RECIPE, words)
    path = tmp_path / "short.yaml"
    path.write_text(recipe_page(said), encoding="utf-8")
    monkeypatch.setattr(module, "RECIPE", path)
    monkeypatch.setattr(module, "lab_set", lambda name: lab_set(name, 3))
    return said


def test_a_short_demo_leaves_everything_it_names(tmp_path, capsys, monkeypatch, short):
    """Two updates and a few questions: the numbers mean nothing, the table and the folder are whole."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    demo(updates=2)
    printed = capsys.readouterr().out
    folder = tmp_path / "runs" / "demo"
    for told in (
        "student-block, a diffusion model",
        "teacher-strong",
        ": 2 updates of 4 questions",
        "\nBefore training\n",
        "\nAfter training\n",
    ):
        assert told in printed
    assert printed.count("\nlab-chain-3: ") == 2
    assert printed.endswith("report: runs/demo/report.html\n")
    # But for the lines of training, which a log has instead of a bar.
    assert all(len(line) <= 80 for line in printed.splitlines() if not line.startswith("update "))
    for name in ("model.safetensors", "metrics.jsonl", "traces.jsonl", "curves.png", "report.html", "checkpoint-2"):
        assert (folder / name).exists(), name
    words = [str(folder.relative_to(tmp_path) / "results" / name) for name in ("base", "trained")]
    assert main(["compare", *words]) == 0
    assert capsys.readouterr().out in printed
    assert main(["compare", *words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["benchmark"], row["items"]) for row in rows] == [(f"lab-{name}", 3) for name in SETS]


@pytest.mark.slow
def test_the_demo_is_the_ordinary_commands(tmp_path, capsys, monkeypatch, short):
    """The same weights, verdicts and recipe as `forkleft train` and `forkleft eval` leave."""
    sets = SETS[:1]
    monkeypatch.setattr(module, "SETS", sets)
    demo(tmp_path / "demo", student="student-shifted", teacher="teacher-weak", updates=1)
    words = ["--student", "lab:student-shifted", "--teacher", "lab:teacher-weak", "--max_steps", "1", "--use_cpu"]
    assert main(["train", "--config", str(module.RECIPE), *words, "--output_dir", str(tmp_path / "train")]) == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("demo", "train")]
    assert weights[0] == weights[1]
    kept = read_options(tmp_path / "demo" / "recipe.yaml")
    assert kept == read_options(tmp_path / "train" / "recipe.yaml") | {"output_dir": str(tmp_path / "demo")}
    said = {"student": "lab:student-shifted", "teacher": "lab:teacher-weak", "max_steps": 1, "use_cpu": True}
    assert {name for name in kept if kept[name] != short.get(name)} == {*said, "output_dir"}
    for name, model in (("base", "lab:student-shifted"), ("trained", str(tmp_path / "train"))):
        words = ["--model", model, "--benchmark", *(f"lab-{one}" for one in sets), "--limit", "3", "--device", "cpu"]
        assert main(["eval", *words, "--output", str(tmp_path / name)]) == 0
        for one in sets:
            ours, theirs = (path / f"lab-{one}" for path in (tmp_path / "demo" / "results" / name, tmp_path / name))
            assert (ours / "records.jsonl").read_text() == (theirs / "records.jsonl").read_text()
            assert (ours / "configuration.json").read_text() == (theirs / "configuration.json").read_text()


def test_the_package_ships_the_recipe():
    assert RECIPE.read_text(encoding="utf-8") == (ROOT / "recipes" / "lab.yaml").read_text(encoding="utf-8")


def test_bad_arguments(tmp_path):
    with pytest.raises(ForkLeftError, match="exists already"):
        demo(tmp_path)
    with pytest.raises(ForkLeftError, match="teacher-weak cannot learn from teacher-strong"):
        demo(tmp_path / "new", student="teacher-weak")
    with pytest.raises(ForkLeftError, match="no lab model 'teacher-week'; there are"):
        demo(tmp_path / "new", teacher="teacher-week")
    with pytest.raises(ForkLeftError, match="expected at least 1 update, found -1"):
        demo(tmp_path / "new", updates=-1)
    assert list(tmp_path.iterdir()) == []
