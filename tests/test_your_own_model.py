"""The code block of docs/your-own-model.md, the recipes that it names, and what it shows of a check."""

import gzip
import json
import re
import shlex

from commands import run
from documents import ROOT, python_blocks, run_block

from forkleft.lab.models import model_path

PAGE = "docs/your-own-model.md"


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = python_blocks(PAGE)
    run_block(code, PAGE)
    assert (tmp_path / "runs" / "tiny" / "adapted" / "model.safetensors").is_file()


def test_the_recipes_and_programs_are_there():
    named = set(re.findall(r"(?:recipes|examples)/[\w./-]+\.(?:yaml|py)", (ROOT / PAGE).read_text(encoding="utf-8")))
    assert len(named) >= 6 and all((ROOT / name).is_file() for name in named)


def indented(text, beginning):
    """The indented block that begins so, and the one behind it, as words."""
    blocks = [" ".join(block.split()) for block in re.findall(r"(?:^    .*\n)+", text, flags=re.MULTILINE)]
    place = next(number for number, block in enumerate(blocks) if block.startswith(beginning))
    return blocks[place : place + 2]


def without_measures(text):
    """The plan without what depends on the model, the length of its rows and the folder."""
    text = re.sub(r"[\d,]+ weights", "N weights", text)
    text = re.sub(r"\d+ rows of gsm8k_train|[\d.]+ times", "N", text)
    return re.sub(r"/\S+/runs/", "/runs/", text[text.index("student ") :])


def test_a_check_shows_what_the_page_shows(tmp_path, monkeypatch, capsys):
    """The command of the page, with a small model and other questions in the place of the real ones."""
    monkeypatch.chdir(tmp_path)
    lab = ["--model", str(model_path("teacher-weak")), "--mask-token", "<|mask|>"]
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    converting, _ = indented(page, "forkleft convert")
    converting = shlex.split(converting)[1:]
    assert run(capsys, *converting, *lab)[0] == 0
    rows = [{"id": f"q{k}", "question": f"a={k}", "answer": str(k), "solution": f"a={k}"} for k in range(50)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "gsm8k_test.jsonl").write_text(text)
    (tmp_path / "gsm8k_train.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    command, shown = indented(page, "forkleft adapt")
    words = [str(ROOT / word) if word.startswith("recipes/") else word for word in shlex.split(command)[1:]]
    code, out, err = run(capsys, *words, "--use_cpu")
    assert code == 0, err
    assert without_measures(" ".join(out.split())) == without_measures(shown)
