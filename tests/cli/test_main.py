import io
import json
import logging
import os
import subprocess
import sys
import zipfile

import pytest
from commands import ROOT, run

from forkleft import __version__
from forkleft.cli.main import _StandardError, main
from forkleft.lab.models import MODELS


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"forkleft {__version__}\n", "")


def test_log_lines_go_where_standard_error_is_now(monkeypatch):
    """A bar that moves takes its place, and moves on below them."""
    handler, file = _StandardError(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    handler.emit(logging.makeLogRecord({"msg": "no answer"}))
    assert file.getvalue() == "no answer\n"


def test_help_names_the_commands_and_loads_nothing_heavy():
    code = (
        "import sys; from forkleft.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'rich', 'numpy'} & set(sys.modules)))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip().endswith("[]")
    assert all(command in printed for command in ("demo", "lab", "--version", "--debug"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["lba"], "lab; did you mean lab?"),
        (["lab", "sample", "--steps", "four"], "argument --steps: invalid int value: 'four'"),
        (["lab", "sample", "--steps", "9"], "chains have 2 to 6 steps, found 9"),
        (["lab", "sample", "--count", "0"], "count must be at least 1, found 0"),
        (["lab", "sample", "--shares", "1,x,1"], "expected three numbers such as 1,1,0.1, found '1,x,1'"),
        (["lab", "sample", "--shares", "1,1"], "operator shares are 3 weights"),
        (["lab", "sample", "--colour"], "unrecognized arguments: --colour"),
        (["train", "--config", str(ROOT / "recipes" / "lba.yaml")], "did you mean "),
        (["eval", "--limt", "5"], "--limt 5; did you mean --limit? (see forkleft eval --help)"),
        (["lab", "sample", "--cuont=2"], "did you mean --count? (see forkleft lab sample --help)"),
        (
            ["eval", "--model", "x", "--benchmark", "lab-chain-2", "--output", "o", "--verifier", "maths"],
            "did you mean math?",
        ),
        (["lab", "accuracy", "--model", "teacher-best"], "no lab model 'teacher-best'; there are student-block"),
        (["lab", "accuracy", "--set", "chain-7"], "no held-out set 'chain-7'; there are chain-2"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(capsys, arguments, expected):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_debug_shows_the_traceback(capsys):
    for arguments in (["--debug", "lab", "sample", "--steps", "9"], ["lab", "sample", "--steps", "9", "--debug"]):
        with pytest.raises(ValueError, match="2 to 6 steps"):
            main(arguments)


@pytest.mark.slow
def test_a_wheel_works_elsewhere(tmp_path):
    """Built as a user would build it, installed in a fresh environment, run outside the repository."""

    def call(*command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout

    call(sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(tmp_path))
    wheel = next(tmp_path.glob("forkleft-*.whl"))
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert archive.read("forkleft/lab/recipe.yaml") == (ROOT / "recipes" / "lab.yaml").read_bytes()
    assert any(name.endswith("teacher-strong/model.safetensors") for name in names)
    assert not any(name.startswith("tests") for name in names)
    call(sys.executable, "-m", "venv", str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    call(python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "requirements.lock"), str(wheel))
    forkleft = str(tmp_path / "venv" / "bin" / "forkleft")
    assert "question" in call(forkleft, "lab", "sample", "--steps", "4", "--count", "3", "--seed", "1")
    rows = call(forkleft, "lab", "accuracy", "--set", "choice-2", "--json").splitlines()
    assert [json.loads(row)["model"] for row in rows] == list(MODELS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "/nowhere/a", "/nowhere/b"],
        ["train"],
        ["train", "--config", "/nowhere/recipe.yaml"],
        ["eval", "--list"],
        ["eval", "--model", "m", "--benchmark", "gsm8", "--output", "o"],
        ["eval", "--model", "m", "--benchmark", "gsm8k", "--output", "o"],
    ],
)
def test_mistakes_are_told_before_anything_heavy_is_loaded(arguments):
    code = (
        "import sys; from forkleft.cli import main\n"
        f"code = main({arguments!r})\n"
        "print(code, sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    known = {**os.environ, "FORKLEFT_DATA": "" if "--list" in arguments else "/nowhere/data"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=known)
    assert done.stdout.splitlines()[-1] == ("0 []" if "--list" in arguments else "2 []")
    assert "/nowhere/data" in done.stderr or "gsm8k" not in arguments
