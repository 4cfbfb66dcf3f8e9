import io
import json
import logging
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from forkleft import __version__, verify
from forkleft.cli.main import _StandardError, main
from forkleft.lab.models import MODELS

ROOT = Path(__file__).parents[2]


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


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


def test_lab_sample_is_repeatable(capsys):
    arguments = ("lab", "sample", "--steps", "4", "--count", "3", "--seed", "1")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    assert out.count("question") == out.count("solution") == out.count("answer") == 3
    assert run(capsys, *arguments)[1] == out
    assert run(capsys, *arguments[:-1], "2")[1] != out


def test_lab_sample_json(capsys):
    code, out, _ = run(capsys, "lab", "sample", "--form", "choice", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert {"id", "question", "solution", "answer", "steps", "choices"} == set(rows[0])


def test_a_reader_that_goes_away_is_no_error():
    command = f"{sys.executable} -m forkleft lab sample --count 3000 | head -n 1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""


def test_lab_routes_json(capsys):
    code, out, err = run(capsys, "lab", "routes", "--student", "student-block", "--set", "chain-9", "--json")
    assert (code, out) == (2, "")
    assert "no held-out set 'chain-9'" in err


def test_lab_accuracy_json(capsys):
    code, out, _ = run(capsys, "lab", "accuracy", "--model", "teacher-weak", "--set", "chain-2", "--json")
    row = json.loads(out)
    assert code == 0
    assert row["model"] == "teacher-weak"
    assert row["accuracy"] == row["correct"] / row["total"]
    assert row["interval"][0] <= row["accuracy"] <= row["interval"][1]


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


def test_an_autoregressive_checkpoint_becomes_a_student(capsys, tmp_path):
    from forkleft import load_student
    from forkleft.lab.models import model_path

    words = ("convert", "--model", str(model_path("teacher-weak")), "--family", "bd3lm", "--block-size", "8")
    code, out, _ = run(capsys, *words, "--output", str(tmp_path / "one"), "--mask-token", "<|mask|>")
    assert (code, "a student of family bd3lm" in out) == (0, True)
    student = load_student(tmp_path / "one")
    assert (student.family.block_size, student.vocabulary.mask_id) == (8, 1)
    # By its id, too; and in another precision.
    code, _, _ = run(capsys, *words, "--output", str(tmp_path / "two"), "--mask-token", "1", "--dtype", "bfloat16")
    assert code == 0
    assert load_student(tmp_path / "two").vocabulary.mask_id == 1
    assert "bfloat16" in (tmp_path / "two" / "config.json").read_text()


def test_a_device_that_is_not_there(capsys):
    code, _, err = run(capsys, "generate", "--model", "lab:student-block", "--prompt", "a", "--device", "abacus")
    assert code == 2
    assert "there is no device 'abacus' here" in err
    assert run(capsys, "generate", "--model", "x", "--prompt", "a", "--order", "best")[0] == 2


def test_benchmarks_are_listed_and_results_compared(capsys, tmp_path):
    code, out, _ = run(capsys, "eval", "--list")
    assert code == 0
    assert all(name in out for name in ("gsm8k", "mmlu", "lab-chain-4"))
    for model in ("student-block", "student-shifted"):
        words = ("eval", "--model", f"lab:{model}", "--benchmark", "lab-chain-2", "lab-choice-2", "--limit", "4")
        code, _, err = run(capsys, *words, "--output", str(tmp_path / model), "--device", "cpu", "--batch-size", "4")
        assert code == 0, err
    code, out, _ = run(capsys, "compare", str(tmp_path / "student-block"), str(tmp_path / "student-shifted"), "--json")
    assert code == 0
    assert "lab-chain-2" in out and "lab-choice-2" in out
    words = ("compare", str(tmp_path / "student-block"), str(tmp_path / "student-shifted"), "--markdown")
    row = json.loads(out)["rows"][0]
    for digits in ("1", "2"):
        code, page, _ = run(capsys, *words, "--digits", digits)
        assert f"| {100 * row['a']['value']:.{digits}f} (" in page and f"; {row['right_a']}/4) |" in page


def test_a_teacher_in_another_precision_over_several_devices(capsys, tmp_path, monkeypatch):
    """There is one device here; that all weights of a map come together is tested with load_teacher."""
    from transformers import AutoModelForCausalLM

    asked, load = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *names, **told: asked.append(told) or load(*names, **told)
    )
    words = ("eval", "--model", "lab:teacher-weak", "--benchmark", "lab-chain-2", "--limit", "4", "--output")
    spread = ("--ar", "--device-map", "auto", "--dtype", "bfloat16")
    code, _, err = run(capsys, *words, str(tmp_path / "a"), *spread)
    assert code == 0, err
    assert (asked[0]["device_map"], str(asked[0]["dtype"])) == ("auto", "torch.bfloat16")
    told = json.loads((tmp_path / "a" / "lab-chain-2" / "summary.json").read_text())["configuration"]["model"]
    assert told["dtype"] == "bfloat16"
    code, _, err = run(capsys, *words, str(tmp_path / "b"), "--ar", "--device-map", "somewhere")
    assert (code, "found somewhere" in err) == (2, True)
    for wrong in (spread[1:], (*spread, "--device", "cpu")):
        code, _, err = run(capsys, *words, str(tmp_path / "c"), *wrong)
        assert (code, "it goes with --ar, without --device" in err) == (2, True)


def test_another_verifier_than_the_benchmark_s(capsys, tmp_path):
    (tmp_path / "math500.jsonl").write_text('{"id": "a", "question": "1+1?", "answer": "2"}\n')
    words = ("eval", "--model", "lab:student-block", "--device", "cpu", "--max-new-tokens", "8")
    one = ("--data", str(tmp_path), "--benchmark", "math500", "--limit", "1", "--output")
    for said, used in (((), "opdlm"), (("--verifier", "math"), "math")):
        code, _, err = run(capsys, *words, *one, str(tmp_path / used), *said)
        assert code == 0, err
        told = json.loads((tmp_path / used / "math500" / "summary.json").read_text())["configuration"]
        assert told["verifier"] == used
    code, out, err = run(capsys, "compare", str(tmp_path / "opdlm"), str(tmp_path / "math"))
    assert code == 0, err
    assert "verifier is opdlm in A and math in B" in " ".join(out.split())
    chains = ("--benchmark", "lab-chain-2", "--output", str(tmp_path / "lab"))
    code, _, err = run(capsys, *words, *chains, "--verifier", "math")
    assert code == 2
    assert "--verifier math is for mathematical answers, and those of lab-chain-2 are not" in " ".join(err.split())


def test_a_benchmark_and_a_verifier_of_the_user_s(capsys, tmp_path, monkeypatch):
    """Described in a file, judged by a function; one that fails keeps what was finished."""
    questions = [{"id": f"q{k}", "question": f"a={k};b=a+1;b?", "answer": str(k + 1)} for k in range(4)]
    (tmp_path / "chains.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    (tmp_path / "my_checks.py").write_text(
        "from forkleft import Verifier\n\nbroken = False\n\ndef last(responses, answers):\n"
        "    if broken and '4' in answers:\n        raise ValueError('no 4')\n"
        "    return Verifier('lab').judge(responses, answers)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: my-chains\nitems: 4\nprotocol: generated\nverifier: my_checks:last\ntemplate: plain\n"
        "max_new_tokens: 32\ndata: chains.jsonl\nlicence: mine alone\n"
    )
    code, out, _ = run(capsys, "eval", "--list", "--benchmark", str(path))
    assert code == 0 and "my-chains" in out and "mine alone" in out
    words = ("eval", "--model", "lab:student-block", "--device", "cpu", "--benchmark", str(path), "--batch-size", "2")
    words = (*words, "--output")
    monkeypatch.setattr("my_checks.broken", True)
    code, _, err = run(capsys, *words, str(tmp_path / "mine"))
    assert code == 2
    assert "the verifier my_checks:last raised ValueError on question q3: no 4" in " ".join(err.split())
    (part,) = (tmp_path / "mine" / "my-chains").glob("records.part-*.jsonl")
    assert len(part.read_text().splitlines()) == 2
    monkeypatch.setattr("my_checks.broken", False)
    assert run(capsys, *words, str(tmp_path / "mine"))[0] == 0
    assert run(capsys, *words, str(tmp_path / "lab"), "--verifier", "my_checks:last")[0] == 0
    summaries = [json.loads((tmp_path / name / "my-chains" / "summary.json").read_text()) for name in ("mine", "lab")]
    assert summaries[0] == summaries[1]
    assert summaries[0]["configuration"]["verifier"] == "my_checks:last"
    assert (summaries[0]["results"]["items"], summaries[0]["results"]["complete"]) == (4, True)
    records = [
        json.loads(line) for line in (tmp_path / "mine" / "my-chains" / "records.jsonl").read_text().splitlines()
    ]
    assert [one["correct"] for one in records] == [verify(one["response"], one["answer"], "lab") for one in records]
    code, _, err = run(capsys, "compare", str(tmp_path / "mine"), str(tmp_path / "lab"))
    assert code == 0, err
    choices = ("eval", "--model", "lab:student-block", "--benchmark", "lab-choice-2", "--output", str(tmp_path / "x"))
    for name, message in (
        ("my_checks:last", "judges what is written, and lab-choice-2 compare letters in a slot; add --protocol"),
        (
            "choice",
            "--verifier choice cannot be given to lab-choice-2: expected opdlm, math or package.module:function",
        ),
        ("my_checks:first", "cannot take the verifier my_checks:first: AttributeError"),
    ):
        code, _, err = run(capsys, *choices, "--verifier", name)
        assert code == 2 and message in " ".join(err.split())
    path.write_text(path.read_text().replace("my-chains", "gsm8k"))
    code, _, err = run(capsys, *words, str(tmp_path / "x"))
    assert code == 2 and "there is a benchmark gsm8k already; give yours another name" in " ".join(err.split())


def test_another_protocol_than_the_benchmark_s(capsys, tmp_path):
    words = ("eval", "--model", "lab:student-block", "--limit", "4", "--device", "cpu", "--batch-size", "4")
    choices = (*words, "--benchmark", "lab-choice-2", "--output")
    for protocol in ("generated", "slot"):
        code, _, err = run(capsys, *choices, str(tmp_path / protocol), "--protocol", protocol)
        assert code == 0, err
        told = json.loads((tmp_path / protocol / "lab-choice-2" / "summary.json").read_text())["configuration"]
        assert (told["protocol"], told["verifier"]) == (protocol, "choice")
        lines = (tmp_path / protocol / "lab-choice-2" / "records.jsonl").read_text().splitlines()
        assert [json.loads(line)["response"] is not None for line in lines] == [protocol == "generated"] * 4
    code, _, err = run(capsys, *choices, str(tmp_path / "slot"), "--protocol", "generated")
    assert code == 2
    assert "protocol ('slot' there, 'generated' now)" in err
    code, _, err = run(capsys, "compare", str(tmp_path / "generated"), str(tmp_path / "slot"))
    assert code == 2
    assert "the protocol is generated in" in err
    code, _, err = run(
        capsys, *words, "--benchmark", "lab-chain-2", "--output", str(tmp_path / "chain"), "--protocol", "slot"
    )
    assert code == 2
    assert "has no choices to compare; add the field choices, or let the model write its answers (--protocol gen" in err


def test_questions_from_a_data_set_of_the_hub(capsys, tmp_path, monkeypatch):
    asked = []

    def load_dataset(*names, split):
        asked.append((*names, split))
        return [{"question": "1+1?", "answer": "2"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    words = ("eval", "--model", "lab:student-block", "--benchmark", "gsm8k", "--max-new-tokens", "16")
    words += ("--device", "cpu", "--data", "owner/name", "--output")
    code, _, err = run(capsys, *words, str(tmp_path / "sums"), "--subset", "sums", "--split", "dev")
    assert code == 0, err
    assert run(capsys, *words, str(tmp_path / "all"))[0] == 0
    assert asked == [("owner/name", "sums", "dev"), ("owner/name", None, "test")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--benchmark", "gsm8k"], "expected --model"),
        (["--model", "x", "--benchmark", "gsm9k", "--output", "o"], "no benchmark 'gsm9k'; did you mean gsm8k?"),
        (["--model", "x", "--output", "o"], "expected --benchmark"),
        (
            ["--model", "x", "--benchmark", "gsm8k", "mmlu", "--output", "o", "--data", "owner/name"],
            "owner/name holds the questions of one benchmark, and 2 were named",
        ),
        (
            ["--model", "x", "--benchmark", "gsm8k", "--output", "o", "--split", "train"],
            "--subset and --split are of a data set of the hub; name it with --data owner/name",
        ),
        (
            ["--model", "x", "--benchmark", "lab-chain-2", "--output", "o", "--data", "owner/name", "--split", "dev"],
            "the questions of lab-chain-2 are made here, not read; leave out --data and --split, or evaluate other",
        ),
        (
            ["--model", "x", "--benchmark", "gsm8k", "lab-chain-2", "--output", "o", "--data", "."],
            "the questions of lab-chain-2 are made here, not read; leave out --data, or evaluate other",
        ),
    ],
)
def test_evaluations_that_cannot_be(capsys, words, message):
    code, _, err = run(capsys, "eval", *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "afile"], "cannot write to afile/lab-chain-2: Not a directory; name another (--output)"),
        (["--output", "taken"], "expected a folder to write to, found a file: taken/lab-choice-2; name another"),
        (["--samples", "0"], "samples must be a whole number of at least 1, found 0"),
        (["--threshold", "7"], "threshold is a probability: expected 0 to 1, found 7.0"),
        (["--limit", "0"], "limit must be at least 1 item, found 0"),
        (["--temperature", "-1"], "temperature must be 0 (the likeliest token) or more, found -1.0"),
        (["--temperature", "0.6"], "lab-choice-2 compares letters in an answer slot, where nothing is sampled"),
        (["--ar", "--passes", "4"], "is evaluated greedily, left to right, and knows no passes"),
        (["--benchmark", "lab-chain-2"], "the benchmark lab-chain-2 is named twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_eval_refuses_options_and_folder_before_anything_is_loaded(capsys, tmp_path, monkeypatch, words, message):
    def loads(*given, **said):
        raise AssertionError("something was loaded")

    monkeypatch.setattr("forkleft.evaluate.evaluation.load_evaluated", loads)
    monkeypatch.setattr("forkleft.evaluate.benchmarks.load_benchmark", loads)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "lab-choice-2").write_text("")
    asked = ("--model", "lab:student-block", "--benchmark", "lab-chain-2", "lab-choice-2", "--output", "results")
    code, _, err = run(capsys, "eval", *asked, *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("words", [(), ("-h",), ("run", "--help")])
def test_the_help_of_lm_eval_shows_our_own_options_first(capsys, monkeypatch, words):
    monkeypatch.setattr("forkleft.evaluate.harness.main", lambda *given, **said: print("lm_eval's own help") or 0)
    code, out, _ = run(capsys, "lm-eval", *words)
    assert code == 0
    assert 0 < out.index("\n  --chat-template FILE") < out.index("lm_eval's own help")
    assert "usage" not in run(capsys, "lm-eval", "--tasks", "x")[1]


def test_every_command_that_loads_a_model_takes_a_chat_template(capsys, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("forkleft.students.load_student", lambda *at, **said: loaded.append(said) or 1 / 0)
    monkeypatch.setattr("forkleft.evaluate.evaluation.load_student", lambda *at, **said: loaded.append(said) or 1 / 0)
    template = ("--chat-template", "{{ messages }}")
    model = ("--model", "lab:student-block", "--device", "cpu", *template)
    for words in (
        ("generate", *model, "--prompt", "a"),
        ("doctor", *model),
        ("eval", *model, "--benchmark", "lab-chain-2", "--output", str(tmp_path)),
    ):
        with pytest.raises(ZeroDivisionError):
            main(words)
        assert loaded.pop()["chat_template"] == "{{ messages }}"
    handed = []
    monkeypatch.setattr("forkleft.evaluate.harness.main", lambda *given, **said: handed.append((given[0], said)) or 0)
    assert run(capsys, "lm-eval", "--tasks", "x", *template, "--limit", "2")[0] == 0
    assert handed == [(["--tasks", "x", "--limit", "2"], {"chat_template": "{{ messages }}"})]


def test_a_study_is_planned_run_and_shown(capsys, tmp_path, monkeypatch):
    from functools import partial

    from studies import PROGRAM, study_file

    from forkleft.study import runner

    monkeypatch.setattr(runner, "run_cells", partial(runner.run_cells, program=PROGRAM))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls.jsonl"))
    words = ("study", "run", str(study_file(tmp_path)), "--output", str(tmp_path / "root"))
    code, out, err = run(capsys, *words, "--dry-run")
    assert code == 0, err
    assert "small: 8 cells" in out and not (tmp_path / "root").exists()
    code, out, err = run(
        capsys, *words, "--print-commands", "--seeds", "1", "--launcher", "torchrun --nproc-per-node 2"
    )
    assert code == 0, err
    assert out.count("torchrun --nproc-per-node 2 -m forkleft train --config ") == 2
    monkeypatch.setenv("FAKE", json.dumps({"fail": "train", "in": '"label": "L-low, seed 2"'}))
    code, out, _ = run(capsys, *words, "--jobs", "2")
    assert code == 1
    assert "L-low, seed 2: FAILED, train ended with code 2: this cannot be" in out
    assert "Holes" in out and "1 cell missing" in out
    monkeypatch.delenv("FAKE")
    code, out, err = run(capsys, *words, "--jobs", "2")
    assert code == 0, err
    assert "Holes" not in out and "4 arms" not in out and "2 arms, 2 seeds" in out
    table = (tmp_path / "root" / "small" / "table.md").read_text()
    # From the results alone, where the cells are gone.
    (tmp_path / "kept").mkdir()
    (tmp_path / "root" / "small" / "results.json").rename(tmp_path / "kept" / "results.json")
    code, out, err = run(capsys, "study", "show", str(tmp_path / "kept"), "--markdown")
    assert (code, out.strip()) == (0, table.strip()), err
    code, out, _ = run(capsys, "study", "show", str(tmp_path / "kept"), "--json")
    (found,) = json.loads(out)
    assert code == 0 and found["study"] == "small" and found["comparisons"][0]["name"] == "L-high − L-low"
    assert (tmp_path / "kept" / "accuracy.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "none.yaml", "--output", "o"], "there is no study none.yaml"),
        (["run", "STUDY", "--output", "o", "--jobs", "0"], "--jobs must be at least 1, found 0"),
        (["run", "STUDY", "--output", "o", "--seeds", "9"], "has no seed 9"),
        (["run", "STUDY", "--output", "o", "--set", "rhoo=1"], "there is no option 'rhoo'; did you mean rho?"),
        (["run", "STUDY", "--output", "o", "--benchmark", "gsm9k"], "there is no benchmark 'gsm9k'"),
        (["show", "none"], "there is no study in none"),
    ],
)
def test_studies_that_cannot_be(capsys, tmp_path, words, message):
    from studies import study_file

    file = str(study_file(tmp_path))
    code, _, err = run(capsys, "study", *(file if word == "STUDY" else word for word in words))
    assert code == 2
    assert message in err


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


def test_a_gguf_file_is_unpacked_without_a_bar(capsys, monkeypatch):
    from transformers import modeling_gguf_pytorch_utils

    from forkleft.cli import arguments

    monkeypatch.setattr(modeling_gguf_pytorch_utils, "tqdm", None)
    arguments.hide_loading_bars()
    assert list(modeling_gguf_pytorch_utils.tqdm([1, 2, 3], desc="Converting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(arguments, "_LONG_SECONDS", -1.0)
    assert list(modeling_gguf_pytorch_utils.tqdm([1, 2, 3], desc="Converting")) == [1, 2, 3]
    assert capsys.readouterr().err == "unpacking the tensors of the GGUF file: 0 of 3 done\n"


def test_probe_compares_views_and_orders(capsys):
    words = ["probe", "--model", "lab:student-block", "--data", "lab:chain-3", "--questions", "4", "--verifier", "lab"]
    words += ["--max-new-tokens", "64", "--orders", "confidence", "high_entropy"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    # Three steps of eight tokens, an answer of two, and the end.
    assert code == 0 and found["views"]["positions"] == 4 * 27
    assert list(found["orders"]) == ["confidence", "high_entropy"]
    code, out, _ = run(capsys, *words)
    assert code == 0 and "right from the prefix alone" in out and "high_entropy" in out


def test_probe_needs_a_fork_entropy_that_can_be(capsys):
    words = ["probe", "--model", "lab:student-block", "--data", "lab:chain-3", "--fork-entropy", "-1"]
    code, _, error = run(capsys, *words)
    assert code == 2 and "--fork-entropy is in nats: expected 0 or more" in error
