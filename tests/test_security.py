"""What SECURITY.md promises, line by line; the playground's promises are tested in tests/report/play."""

import ast
import json
import sys
from pathlib import Path

import pytest

import forkleft
from faults import scenarios
from faults.spawner import Spawner
from forkleft.cli.main import main
from forkleft.errors import ForkLeftError
from forkleft.evaluate.evaluation import check_evaluation
from forkleft.evaluate.protocols import Settings
from forkleft.evaluate.results import read_results
from forkleft.files import read_yaml
from forkleft.report.gather import Gathered, read_run_folder
from forkleft.report.page import page
from forkleft.study.spec import _DECODING, read_study

PACKAGE = Path(forkleft.__file__).parent
SECRETS = {
    name: f"secret-of-{name.lower().replace('_', '-')}"
    for name in ("HF_TOKEN", "FORKLEFT_ANSWERS_API_KEY", "FORKLEFT_TEACHER_API_KEY")
}
HUB_TOKEN = "secret-of-the-hub"
_UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def unsafe(source: str) -> list[str]:
    """Calls and imports in a program that would run what somebody else wrote."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [name for name in modules if name.partition(".")[0] in _UNSAFE_MODULES]
        if not isinstance(node, ast.Call):
            continue
        name, keywords = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.unsafe_load"):
            found.append(name)
        if keywords.get("shell") == "True":
            found.append(f"{name}(shell=True)")
        if name == "yaml.load" and "YamlLoader" not in ast.unparse(node):
            found.append(name)
        if name == "torch.load" and keywords.get("weights_only") != "True":
            found.append(name)
    return found


def test_the_package_runs_nothing_that_others_wrote():
    assert {str(path): found for path in PACKAGE.rglob("*.py") if (found := unsafe(path.read_text()))} == {}


@pytest.mark.parametrize(
    "program",
    [
        *("eval('1')", "exec(x)", "import pickle", "from pickle import loads", "import os; os.system('ls')"),
        *("subprocess.run('ls', shell=True)", "yaml.load(x)", "yaml.load(x, yaml.Loader)", "torch.load('x.pt')"),
    ],
)
def test_the_search_finds_what_it_looks_for(program):
    assert unsafe(program)


def test_yaml_makes_no_objects(tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"student: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n")
    with pytest.raises(ForkLeftError, match="is no YAML file"):
        read_yaml(path, "recipe")
    assert not (tmp_path / "made").exists()


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """The name of a verifier that must not be imported."""
    (tmp_path / "evil_verifier.py").write_text(f"open('{tmp_path}/ran', 'w')\ndef judge(*a): return []\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "evil_verifier:judge"
    assert "evil_verifier" not in sys.modules
    assert not (tmp_path / "ran").exists()


def test_files_of_others_import_no_verifier(tmp_path, evil):
    name = evil
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text(f"verifier: {name}\n")
    (run / "forkleft.json").write_text(json.dumps({"verifier": name}))
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 1.0}\n')
    assert page(Gathered(runs=[read_run_folder(run, "run")]))
    results = tmp_path / "results"
    results.mkdir()
    record = {"id": "a", "sample": 0, "item": "", "prompt": "", "cluster": "a", "answer": "1", "response": "1"}
    record |= {"extracted": "1", "correct": True, "tokens": 1, "forwards": 1, "stopped": True, "log_probs": None}
    (results / "records.jsonl").write_text(json.dumps(record) + "\n")
    accuracy = {"value": 1.0, "low": 0.0, "high": 1.0}
    said = {"benchmark": "b", "protocol": "generated", "verifier": name, "model": {"kind": "diffusion"}}
    figures = {"items": 1, "expected_items": 1, "samples": 1, "accuracy": accuracy}
    (results / "summary.json").write_text(json.dumps({"results": figures, "configuration": said}))
    assert read_results(results)["b"].summary["configuration"]["verifier"] == name


@pytest.mark.parametrize("command", ["train", "answer", "adapt", "plan", "eval", "list", "study", "study's benchmark"])
def test_a_downloaded_file_runs_no_code_without_being_told(tmp_path, monkeypatch, capsys, evil, command):
    said = {"student": "lab:student-block", "train_data": "lab:train", "train_questions": 4, "output_dir": "out"}
    recipe = said | {"verifier": evil, "use_cpu": True}
    taught = recipe | {"teacher": "lab:teacher-strong"}
    study = {"name": "s", "base": "taught.yaml", "arms": {"a": {}}, "seeds": [1], "benchmarks": ["lab-chain-2"]}
    benchmark = {"name": "b", "items": 1, "protocol": "generated", "template": "plain", "verifier": evil}
    judged = study | {"set": {"verifier": "lab"}, "benchmarks": ["benchmark.yaml"]}
    files = {"recipe": recipe, "taught": taught, "study": study, "benchmark": benchmark, "judged": judged}
    for name, values in files.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    words = {
        "adapt": ["adapt", "--config", "recipe.yaml"],
        "plan": ["plan", "--config", "taught.yaml", "--gpus", "8x80GB"],
        "eval": ["eval", "--model", "lab:student-block", "--benchmark", "benchmark.yaml", "--output", "out"],
        "list": ["eval", "--list", "--benchmark", "benchmark.yaml"],
        "study": ["study", "run", "study.yaml", "--output", "out"],
        "study's benchmark": ["study", "run", "judged.yaml", "--output", "out"],
    }
    assert main(words.get(command, [command, "--config", "taught.yaml"])) == 2
    told = capsys.readouterr().err
    assert f"names the verifier {evil}, whose code would run" in told
    assert told.endswith("read evil_verifier, and if you trust it add --trust-verifier\n")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../out", "..", "/tmp/out", "a/b", ".", "cells", "a\0b"])
def test_a_study_writes_nowhere_but_in_its_output(tmp_path, name):
    (tmp_path / "base.yaml").write_text(json.dumps({"student": "s", "teacher": "t", "train_data": "d"}))
    said = {"name": name, "base": "base.yaml", "arms": {"a": {}}, "seeds": [1], "benchmarks": ["lab-chain-2"]}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(said))
    with pytest.raises(ForkLeftError, match="name is that of a folder"):
        read_study(path)


@pytest.mark.parametrize("option", ["output_dir", "answer_cache", "resume_from_checkpoint"])
def test_an_arm_cannot_say_where_its_files_go(tmp_path, option):
    base = {"student": "lab:student-block", "teacher": "lab:teacher-strong", "train_data": "lab:train"}
    (tmp_path / "base.yaml").write_text(json.dumps(base | {"output_dir": "/elsewhere"}))
    said = {"name": "s", "base": "base.yaml", "arms": {"a": {option: "/elsewhere"}}, "seeds": [1]}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(said | {"benchmarks": ["lab-chain-2"]}))
    with pytest.raises(ForkLeftError, match=option):
        read_study(path)


# Results are in a folder that is named by these settings.
@pytest.mark.parametrize("setting", _DECODING)
def test_a_way_to_decode_leads_nowhere_else(tmp_path, setting):
    base = {"student": "lab:student-block", "teacher": "lab:teacher-strong", "train_data": "lab:train"}
    (tmp_path / "base.yaml").write_text(json.dumps(base | {"output_dir": "out"}))
    said = {"name": "s", "base": "base.yaml", "arms": {"a": {}}, "seeds": [1], "benchmarks": ["lab-chain-2"]}
    path = tmp_path / "study.yaml"
    path.write_text(json.dumps(said | {"decoding": {"d": {setting: "x/../../../../elsewhere"}}}))
    with pytest.raises(ForkLeftError, match=r"study\.yaml: decoding\.d: "):
        read_study(path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (".bashrc", None, "answer_cache must be a file whose name ends in .jsonl, found '"),
        (".bashrc", "export A=1\n", "answer_cache must be a file whose name ends in .jsonl, found '"),
        ("notes.jsonl", '{"note": 1}\n', "notes.jsonl holds something else than answers"),
    ],
)
def test_a_recipe_writes_the_answers_into_no_file_of_others(tmp_path, capsys, name, content, message):
    path, recipe = tmp_path / name, tmp_path / "recipe.yaml"
    if content is not None:
        path.write_text(content)
    recipe.write_text(f"{scenarios.LAB.read_text()}answer_cache: {path}\n")
    assert main(["answer", "--config", str(recipe), "--output_dir", str(tmp_path / "run"), "--use_cpu"]) == 2
    assert message in capsys.readouterr().err
    assert (path.read_text() if path.exists() else None) == content


@pytest.mark.parametrize("name", ["../b", "..", "/b", ".hidden", ""])
def test_a_benchmark_writes_nowhere_but_in_the_output(tmp_path, name):
    from dataclasses import replace

    from forkleft.lab.benchmarks import LAB_BENCHMARKS

    benchmark = replace(LAB_BENCHMARKS["lab-chain-2"], name=name)
    with pytest.raises(ForkLeftError, match="names a folder of the results"):
        check_evaluation([benchmark], tmp_path, settings=Settings())


def told_in(folder):
    """The files of a folder that hold a secret."""
    written = [path for path in folder.rglob("*") if path.is_file()]
    assert written
    hidden = [*SECRETS.values(), HUB_TOKEN]
    return {str(path) for path in written for secret in hidden if secret.encode() in path.read_bytes()}


@pytest.fixture
def secrets(monkeypatch):
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)


@pytest.mark.slow
def test_keys_and_tokens_reach_no_file_of_a_run(tmp_path, secrets):
    with Spawner() as spawner, scenarios.answer_server() as asked:
        tracked = ["--hub_token", HUB_TOKEN, "--report_to", "tensorboard"]
        for name, words in (
            ("answer", scenarios.answering(asked).words(tmp_path / "answers")),
            ("train", [*scenarios.training().words(tmp_path / "run"), *tracked]),
            ("eval", scenarios.evaluation().words(tmp_path / "results")),
            ("report", ["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")]),
        ):
            spawner.start(words, tmp_path / f"{name}.log")
            assert spawner.wait() == 0, (tmp_path / f"{name}.log").read_text()
    # The key was there, and was used.
    assert asked.keys == {f"Bearer {SECRETS['FORKLEFT_ANSWERS_API_KEY']}"}
    kinds = ("run/README.md", "run/report.html", "run/metrics.jsonl", "run/recipe.yaml", "run/checkpoint-*/*")
    for kind in (*kinds, "run/runs/**/events*", "results/lab-chain-2/summary.json", "page.html", "train.log"):
        assert list(tmp_path.glob(kind)), kind
    assert told_in(tmp_path) == set()
    # What the search is worth.
    (tmp_path / "found").write_text(f"token: {HUB_TOKEN}")
    assert told_in(tmp_path) == {str(tmp_path / "found")}


def test_keys_and_tokens_reach_no_file_of_a_study(tmp_path, secrets, capsys):
    base, root = tmp_path / "base" / "recipe.yaml", tmp_path / "root"
    base.parent.mkdir()
    base.write_text(scenarios.LAB.read_text() + f"hub_token: {HUB_TOKEN}\n")
    said = {"name": "s", "base": str(base), "arms": {"a": {}}, "seeds": [1], "benchmarks": ["lab-chain-2"]}
    (tmp_path / "study.yaml").write_text(json.dumps(said))
    # Writes the files of the cells and of the study.
    assert main(["study", "run", str(tmp_path / "study.yaml"), "--output", str(root), "--print-commands"]) == 0
    assert main(["study", "show", str(root / "s")]) == 0
    assert {"study.json", "results.json", "table.md"} <= {path.name for path in (root / "s").iterdir()}
    assert list(root.glob("cells/*/recipe.yaml")) and list(root.glob("cells/*/cell.json"))
    assert told_in(root) == set()
    assert HUB_TOKEN not in capsys.readouterr().out


@pytest.mark.slow
def test_keys_and_tokens_reach_no_file_of_a_study_that_runs(tmp_path, secrets):
    with Spawner() as spawner, scenarios.answer_server() as asked:
        words = [*scenarios.study(tmp_path).words(tmp_path / "root"), "--set", f"answers_url={asked.url}"]
        spawner.start(words, tmp_path / "log")
        assert spawner.wait() == 0, (tmp_path / "log").read_text()
    assert asked.keys == {f"Bearer {SECRETS['FORKLEFT_ANSWERS_API_KEY']}"}
    assert list(tmp_path.glob("root/cells/*/log.txt")) and list(tmp_path.glob("root/cells/*/train/report.html"))
    assert told_in(tmp_path) == set()
