import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from evaluation_runs import BATCH, CHAIN_BATCHES, CHOICE_BATCHES, ITEMS, SAMPLES, counting, evaluate, lab_items
from rich.console import Console

from forkleft import progress
from forkleft.digests import fingerprint
from forkleft.errors import ForkLeftError
from forkleft.evaluate import evaluation
from forkleft.evaluate.evaluation import load_evaluated, run_evaluation
from forkleft.evaluate.protocols import Settings
from forkleft.evaluate.results import read_results
from forkleft.lab.models import model_path
from forkleft.students import KNOWN_FAMILIES, Student, save_student

PROGRAM = Path(__file__).parents[1] / "evaluation_runs.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0")


def run(output, *arguments, launcher=(), check=True):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, str(PROGRAM), str(output), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=check, timeout=300)


def files(output):
    return {str(path.relative_to(output)): path.read_bytes() for path in sorted(output.rglob("*.json*"))}


@pytest.fixture
def calls(monkeypatch):
    """How many batches the model answered, in `calls`."""
    counted = counting()
    monkeypatch.setattr(evaluation, "answer", counted)
    return counted


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An evaluation that nothing disturbed."""
    output = tmp_path_factory.mktemp("whole")
    evaluate(output)
    return output


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """An evaluation that was killed when the model was asked for the third time."""
    output = tmp_path_factory.mktemp("killed")
    assert run(output, 3, check=False).returncode == -signal.SIGKILL
    return output


@pytest.fixture(scope="module")
def student():
    return load_evaluated(model_path("student-block"))


@pytest.fixture
def quiet():
    return Console(quiet=True)


def test_what_an_evaluation_leaves_behind(whole, student):
    assert list(files(whole)) == [
        f"lab-{name}/{file}"
        for name in ("chain-2", "choice-2")
        for file in ("configuration.json", "records.jsonl", "summary.json")
    ]
    chains = lab_items("chain-2", ITEMS).items
    lines = [json.loads(line) for line in (whole / "lab-chain-2/records.jsonl").read_text().splitlines()]
    assert [(one["id"], one["sample"]) for one in lines] == [(q.id, k) for q in chains for k in range(SAMPLES)]
    summary = json.loads((whole / "lab-chain-2/summary.json").read_text())
    assert (summary["model"], summary["source"]) == ("student", "lab:chain-2")
    told, results = summary["configuration"], summary["results"]
    assert (results["items"], results["expected_items"], results["complete"]) == (ITEMS, 500, False)
    assert results["accuracy"]["value"] == sum(one["correct"] for one in lines) / len(lines)
    assert told["model"]["fingerprint"] == fingerprint(student.model)
    assert told["model"]["family"]["anchor"] == "prompt_end"
    assert told["sampler"] == {
        **{"decoding": "static", "order": "confidence", "passes": 4, "threshold": None, "whole_budget": False},
        **{"max_new_tokens": 64},
        **{"samples": SAMPLES, "temperature": 0.7, "top_p": 1.0, "seed": 0},
    }
    assert told["batch_size"] == BATCH
    assert told["versions"]["torch"] == torch.__version__
    assert set(told["versions"]) == {
        *("forkleft", "python", "torch", "transformers", "tokenizers"),
        *("math-verify", "latex2sympy2_extended", "sympy"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True], ids=["whole lines", "torn line"])
def test_killed_and_started_again_is_as_if_nothing_had_happened(whole, killed, tmp_path, calls, torn):
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    part = tmp_path / "lab-chain-2" / "records.part-0.jsonl"
    assert len(part.read_text().splitlines()) == 2 * BATCH
    assert not (tmp_path / "lab-chain-2" / "summary.json").exists()
    if torn:
        part.write_bytes(part.read_bytes()[:-20])
    evaluate(tmp_path)
    # Batches whose records are all there are not computed again.
    assert calls.calls == CHAIN_BATCHES + CHOICE_BATCHES - 2 + torn
    assert files(tmp_path) == files(whole)
    evaluate(tmp_path)
    assert calls.calls == CHAIN_BATCHES + CHOICE_BATCHES - 2 + torn
    assert files(tmp_path) == files(whole)


@pytest.mark.slow
def test_two_processes_leave_the_same_as_one(whole, tmp_path):
    done = run(tmp_path, launcher=TORCHRUN)
    assert sorted(done.stdout.split()) == ["3", "5"]  # 3 and 2 batches of the chains, 2 and 1 of the choices
    assert files(tmp_path) == files(whole)


def test_the_number_of_processes_may_change_on_the_way(student, tmp_path, monkeypatch, quiet):
    items = [lab_items("choice-2", 20)]

    def part(name, rank, world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        return run_evaluation(student, items, tmp_path / name, settings=Settings(batch_size=3), console=quiet)

    expected = part("one", 0, 1)
    assert part("many", 1, 3) == {}
    own = tmp_path / "many" / "lab-choice-2" / "records.part-1.jsonl"
    own.write_bytes(own.read_bytes()[:-30])
    assert part("many", 1, 3) == {}
    ids = [json.loads(line)["id"] for line in own.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 6  # batches 1 and 4 of seven
    assert part("many", 2, 4) == {}
    assert len(list((tmp_path / "many" / "lab-choice-2").glob("*part*"))) == 2
    assert part("many", 0, 1) == expected
    assert files(tmp_path / "many") == files(tmp_path / "one")


def test_a_damaged_line_in_the_middle_is_computed_again(student, tmp_path, quiet):
    items = [lab_items("choice-2", 10)]
    settings = Settings(batch_size=4)
    run_evaluation(student, items, tmp_path, settings=settings, console=quiet)
    expected = files(tmp_path)
    records = tmp_path / "lab-choice-2" / "records.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    lines[5] = lines[5][:40] + "\n"
    records.write_text("".join(lines))
    run_evaluation(student, items, tmp_path, settings=settings, console=quiet)
    assert files(tmp_path) == expected


def test_another_configuration_is_refused(student, tmp_path, monkeypatch, quiet):
    items = [lab_items("chain-2", 2)]
    run_evaluation(student, items, tmp_path, settings=Settings(max_new_tokens=8), console=quiet)
    before = files(tmp_path)
    with pytest.raises(ForkLeftError, match=r"sampler.max_new_tokens \(8 there, 9 now\), sampler.passes \(None there"):
        run_evaluation(student, items, tmp_path, settings=Settings(max_new_tokens=9, passes=2), console=quiet)
    with pytest.raises(ForkLeftError, match=r"items.count \(2 there, 1 now\); name"):
        run_evaluation(student, items, tmp_path, settings=Settings(max_new_tokens=8), limit=1, console=quiet)
    other = load_evaluated(model_path("student-shifted"))
    with pytest.raises(ForkLeftError, match=r"model.family.anchor \('prompt_end' there, 'absolute' now"):
        run_evaluation(other, items, tmp_path, settings=Settings(max_new_tokens=8), console=quiet)
    assert files(tmp_path) == before


def test_a_run_that_failed_at_once_does_not_block_its_correction(student, tmp_path, monkeypatch, quiet):
    items = [lab_items("chain-2", 2)]

    def failing(*arguments):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="out of memory"):
        patched.setattr(evaluation, "answer", failing)
        run_evaluation(student, items, tmp_path, settings=Settings(max_new_tokens=9), console=quiet)
    assert (tmp_path / "lab-chain-2" / "configuration.json").is_file()
    (summary,) = run_evaluation(student, items, tmp_path, settings=Settings(max_new_tokens=8), console=quiet).values()
    assert summary["configuration"]["sampler"]["max_new_tokens"] == 8


def test_the_weights_are_read_once_a_run(student, tmp_path, monkeypatch, quiet):
    seen = []
    monkeypatch.setattr(evaluation, "fingerprint", lambda model: seen.append(model) or "f")
    run_evaluation(
        student, [lab_items("chain-2", 1), lab_items("choice-2", 1)], tmp_path, settings=Settings(), console=quiet
    )
    assert seen == [student.model]


def test_nothing_is_measured_if_one_of_the_benchmarks_cannot_be(student, tmp_path):
    both = [lab_items("chain-2", 2), lab_items("choice-2", 2)]
    with pytest.raises(ForkLeftError, match="nothing is sampled"):
        run_evaluation(student, both, tmp_path, settings=Settings(temperature=1.0))
    with pytest.raises(ForkLeftError, match="twice"):
        run_evaluation(student, [both[0], both[0]], tmp_path)
    with pytest.raises(ForkLeftError, match=r"none; there are gsm8k"):
        run_evaluation(student, [], tmp_path)
    with pytest.raises(ForkLeftError, match="limit must be at least 1"):
        run_evaluation(student, both, tmp_path, limit=0)
    assert not list(tmp_path.iterdir())


def test_models_are_loaded_as_what_they_are(student, tmp_path):
    assert load_evaluated(model_path("teacher-weak"), autoregressive=True).stop_ids
    with pytest.raises(ForkLeftError, match=r"expected a diffusion model.*or evaluate it as it is with --ar"):
        load_evaluated(model_path("teacher-weak"))
    with pytest.raises(ForkLeftError) as caught:
        load_evaluated(tmp_path / "nowhere")
    assert "--ar" not in str(caught.value)
    save_student(student, tmp_path / "saved")
    for folder in ("lab:student-block", tmp_path / "saved"):
        with pytest.raises(ForkLeftError, match=r"is a diffusion model.*without --ar"):
            load_evaluated(folder, autoregressive=True)
    with pytest.raises(ForkLeftError, match="has no family"):
        load_evaluated(model_path("teacher-weak"), autoregressive=True, family="sdar")
    with pytest.raises(ForkLeftError, match="has no mask_token"):
        load_evaluated(model_path("teacher-weak"), autoregressive=True, mask_token="<mask>")


def test_an_autoregressive_model_under_both_protocols(tmp_path, quiet):
    teacher = load_evaluated(model_path("teacher-strong"), autoregressive=True)
    items = [lab_items("chain-2", 6), lab_items("choice-2", 6)]
    found = run_evaluation(teacher, items, tmp_path, limit=5, console=quiet)
    assert found["lab-chain-2"]["results"]["accuracy"]["value"] == 1.0
    assert found["lab-choice-2"]["configuration"]["sampler"] == {"reads": "next token"}
    results = read_results(tmp_path)
    assert {name: len(one.records) for name, one in results.items()} == {"lab-chain-2": 5, "lab-choice-2": 5}
    # "b=7+5=2;c=2-7=5;#5" and the stop token
    assert {record.tokens for record in results["lab-chain-2"].records} == {19}


def test_progress_is_told_in_plain_lines_where_there_is_no_terminal(student, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", -1.0)
    path = tmp_path / "told"
    with path.open("w") as file:
        console = Console(file=file, width=100)
        run_evaluation(student, [lab_items("choice-2", 4)], tmp_path, settings=Settings(batch_size=2), console=console)
    first, second, last = path.read_text().splitlines()
    assert re.fullmatch(r"lab-choice-2 2 of 4  0:0\d:\d\d left, 0:0\d:\d\d gone  right \d+.0%  \d+ tokens/s", first)
    assert second.startswith("lab-choice-2 4 of 4  ")
    assert last.endswith("4 items of 500: not all of it")


def test_a_terminal_gets_a_bar(student, tmp_path):
    path = tmp_path / "told"
    with path.open("w") as file:
        console = Console(file=file, width=120, force_terminal=True)
        run_evaluation(student, [lab_items("choice-2", 4)], tmp_path, settings=Settings(batch_size=2), console=console)
    assert "4/4" in path.read_text()
    assert "tokens/s" in path.read_text()


def test_a_bar_of_one_of_several_processes_says_so(student, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", -1.0)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    path = tmp_path / "told"
    with path.open("w") as file:
        console = Console(file=file, width=100)
        run_evaluation(student, [lab_items("choice-2", 4)], tmp_path, settings=Settings(batch_size=2), console=console)
    assert path.read_text().startswith("lab-choice-2 (process 1 of 2) 2 of 2  ")


def test_every_summary_says_how_the_student_wrote(student, tmp_path):
    sdar = KNOWN_FAMILIES["sdar"].family
    named = Student(student.model, sdar, student.vocabulary, student.tokenizer)
    items = [lab_items("chain-2", 2), lab_items("choice-2", 2)]
    lines, found = {}, {}
    for name, settings in {
        "default": Settings(max_new_tokens=8),
        "native": Settings(max_new_tokens=8, decoding="native"),
        "own": Settings(max_new_tokens=8, decoding="native", threshold=0.5, passes=2),
    }.items():
        console = Console(record=True, width=200, file=io.StringIO())
        found[name] = run_evaluation(named, items, tmp_path / name, settings=settings, console=console)
        lines[name] = console.export_text().splitlines()
    assert lines["default"][0].endswith("2 items of 500: not all of it; static decoding (one token a pass)")
    assert lines["native"][0].endswith("; native decoding (threshold 0.85)")
    assert lines["own"][0].endswith("; native decoding (2 passes a block, threshold 0.5)")
    assert "decoding" not in lines["native"][1]  # nothing is written in a slot
    sampler = found["native"]["lab-chain-2"]["configuration"]["sampler"]
    assert (sampler["decoding"], sampler["order"], sampler["threshold"]) == ("native", "confidence", 0.85)
    assert sampler["temperature"] == 0.0
    with pytest.raises(ForkLeftError, match=r"holds results of another configuration.*sampler\.decoding"):
        run_evaluation(
            named, items, tmp_path / "native", settings=Settings(max_new_tokens=8), console=Console(quiet=True)
        )
    with pytest.raises(ForkLeftError, match="the native decoding is known of the families"):
        run_evaluation(student, items, tmp_path / "none", settings=Settings(decoding="native"))
    assert not (tmp_path / "none").exists()
    with pytest.raises(ForkLeftError, match="decoding must be one of static, native"):
        Settings(decoding="fast")
