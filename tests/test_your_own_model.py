"""The code block of docs/your-own-model.md, and the recipes that it names."""

import re

from documents import ROOT, python_blocks, run_block

PAGE = "docs/your-own-model.md"


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks(PAGE)
    run_block(code, PAGE)
    assert (tmp_path / "runs" / "tiny" / "adapted" / "model.safetensors").is_file()


def test_the_recipes_and_programs_are_there():
    named = set(re.findall(r"(?:recipes|examples)/[\w./-]+\.(?:yaml|py)", (ROOT / PAGE).read_text(encoding="utf-8")))
    assert len(named) >= 6 and all((ROOT / name).is_file() for name in named)
