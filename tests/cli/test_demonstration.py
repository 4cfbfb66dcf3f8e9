import json

import pytest

from forkleft.cli import demonstration as module
from forkleft.cli.demonstration import demo
from forkleft.errors import ForkLeftError
from forkleft.lab.questions import held_out


def test_a_short_demo_leaves_everything_it_names(tmp_path, capsys, monkeypatch):
    """Two updates and a few questions: the numbers mean nothing, the table and the folder are whole."""
    monkeypatch.setattr(module, "QUESTIONS", 4)
    monkeypatch.setattr(module, "held_out", lambda name: held_out(name, 6))
    folder = tmp_path / "run"
    demo(folder, updates=2)
    printed = capsys.readouterr().out
    for told in ("before training", "after training", "ForkLeft", "95% interval", "chain-4"):
        assert told in printed
    for name in ("model.safetensors", "metrics.jsonl", "traces.jsonl", "result.json", "curves.png", "README.md"):
        assert (folder / name).stat().st_size > 0, name
    rows = json.loads((folder / "result.json").read_text())
    assert [row["set"] for row in rows] == list(module.SETS)
    assert all(row["gain"] == pytest.approx(row["forkleft"] - row["base"]) for row in rows)


def test_bad_arguments(tmp_path):
    with pytest.raises(ForkLeftError, match="exists already"):
        demo(tmp_path)
    with pytest.raises(ForkLeftError, match="teacher-weak cannot learn from teacher-strong"):
        demo(tmp_path / "new", student="teacher-weak")
    with pytest.raises(ForkLeftError, match="expected at least 1 update, found -1"):
        demo(tmp_path / "new", updates=-1)
