"""Files in `written_before/`, which an earlier version wrote, are read and continued.

Their weights are not kept: what is small enough for a repository is a run's text files, evaluations, and a study.
"""

import json
import shutil
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from forkleft import load_student, load_teacher
from forkleft.digests import sealed
from forkleft.evaluate.compare import compare_results
from forkleft.evaluate.evaluation import load_evaluated, run_evaluation
from forkleft.evaluate.results import CONFIGURATION, RECORDS, SUMMARY, read_results
from forkleft.lab.benchmarks import LAB_BENCHMARKS, lab_items
from forkleft.lab.questions import training_stream
from forkleft.report.curves import draw_curves
from forkleft.report.studies import show_study
from forkleft.study.plan import plan_study
from forkleft.study.results import load_results
from forkleft.teacher.answers import AnswerCache, cached_answers
from forkleft.train.metrics import StepFile
from forkleft.train.prepare import prepare_examples, sharing_vocabulary
from forkleft.train.recipes import read_options, recipe_of, recipe_page
from forkleft.train.resume import check_resumable, decisive_data, decisive_options, questions_digest
from forkleft.train.run_files import RUN_FILE

BEFORE = Path(__file__).parent / "written_before"
# What `load_teacher("lab:teacher-strong").identity` was. It changes with the configuration that Transformers writes.
TEACHER = "59fb7843bbb355613846890e30992e5bda71213458917c1bf4b5e90f881b75d1"


@pytest.fixture
def written(tmp_path):
    """A copy to go on with."""
    return Path(shutil.copytree(BEFORE, tmp_path / "written"))


def contents(folder):
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def evaluate(folder):
    items = lab_items(LAB_BENCHMARKS["lab-chain-3"])
    model = load_evaluated("lab:student-block")
    run_evaluation(model, [items], folder, name="lab:student-block", limit=6, console=Console(quiet=True))
    return folder / "lab-chain-3"


def as_of_here(folder, fresh):
    """Let results say that they were measured with the packages of today, which others are not mixed with."""
    for name in (CONFIGURATION, SUMMARY):
        old, new = (json.loads((place / name).read_text(encoding="utf-8")) for place in (folder, fresh))
        before, today = (part.get("configuration", part) for part in (old, new))
        before["versions"] = today["versions"]
        before["model"]["fingerprint"] = today["model"]["fingerprint"]
        (folder / name).write_text(json.dumps(old, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def test_an_evaluation_is_continued_byte_for_byte(tmp_path, written):
    fresh = evaluate(tmp_path / "fresh")
    folder = written / "evaluation" / "student-block" / "lab-chain-3"
    as_of_here(folder, fresh)
    assert (folder / CONFIGURATION).read_bytes() == (fresh / CONFIGURATION).read_bytes()
    finished = contents(folder)
    evaluate(folder.parent)
    assert contents(folder) == finished
    # As it was when a process had been killed: three records, and a part of a fourth.
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    (folder / "records.part-0.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    (folder / RECORDS).unlink()
    (folder / SUMMARY).unlink()
    evaluate(folder.parent)
    again = (fresh / RECORDS).read_bytes().splitlines(keepends=True)
    # Older lines have no checksum, and get one when they are written again.
    kept = [json.dumps(sealed(json.loads(line)), ensure_ascii=False).encode() + b"\n" for line in lines[:3]]
    assert (folder / RECORDS).read_bytes() == b"".join(kept + again[3:])
    # What is asked has the digests that it had.
    keys = [
        [{name: json.loads(line)[name] for name in ("id", "item", "prompt")} for line in some]
        for some in (lines, again)
    ]
    assert keys[0] == keys[1]
    assert sorted(contents(folder)) == sorted(contents(fresh))


def test_results_are_compared():
    found = compare_results(BEFORE / "evaluation" / "student-block", BEFORE / "evaluation" / "student-shifted")
    (row,) = found.rows
    assert (row.benchmark, row.items, row.right_a, row.right_b) == ("lab-chain-3", 6, 5, 5)
    assert "lab-chain-3: model.family.anchor is prompt_end in A and absolute in B" in found.notes


def test_kept_answers_are_not_asked_for(written):
    path = written / "run" / "teacher_answers.jsonl"
    before = path.read_bytes()
    # It has no way to answer.
    teacher = SimpleNamespace(identity=TEACHER)
    asked = [[{"role": "user", "content": question.prompt}] for question in islice(training_stream(1), 12)]
    found = cached_answers(teacher, AnswerCache(path), asked, max_new_tokens=64)
    assert sorted(answer.text for answer in found) == sorted(json.loads(line)["text"] for line in before.splitlines())
    assert found[2].text == "b=2*2=4;c=4+5=9;#9"
    assert path.read_bytes() == before


def test_a_run_is_the_same_run(written, tmp_path):
    """By its recipe, and by what a checkpoint keeps of it."""
    said = read_options(written / "run" / "recipe.yaml")
    assert recipe_page(said) == (written / "run" / "recipe.yaml").read_text(encoding="utf-8")
    recipe, config = recipe_of(said | {"use_cpu": True, "bf16": False})
    student = load_student(recipe.student, weights=False)
    teacher = load_teacher(recipe.teacher, student=student, weights=False)
    student = sharing_vocabulary(student, teacher)
    questions = islice(training_stream(config.seed), recipe.train_questions)
    rows = [{"id": q.id, "question": q.prompt, "answer": q.answer, "solution": q.solution} for q in questions]
    examples = prepare_examples(student, teacher, rows, config, config.named_verifier())
    checkpoint = tmp_path / "checkpoint-2"
    checkpoint.mkdir()
    shutil.copy(written / "run" / RUN_FILE, checkpoint)
    (checkpoint / "optimizer.pt").touch()
    run = decisive_options(config) | decisive_data(student, questions=questions_digest(examples))
    assert {"questions", "chat_template", "family", "format"} <= run.keys()
    assert check_resumable(checkpoint, run, in_part=True) is None


def test_the_log_of_a_run_goes_on(written):
    path = written / "run" / "metrics.jsonl"
    first, _ = path.read_bytes().splitlines(keepends=True)
    draw_curves(path, written / "curves.png")
    assert (written / "curves.png").is_file()
    StepFile(path).begin(1)
    assert path.read_bytes() == first


def test_a_study_is_finished_and_shows(written):
    before = contents(written / "study")
    plan = plan_study(written / "study.yaml", written / "study")
    assert [folder.tasks() for folder in plan.folders()] == [[]] * 5
    plan.begin()
    results, _ = show_study(plan.folder)
    assert (sorted(results.arms), results.holes, len(results.cells)) == (["high", "low"], (), 4)
    after = contents(written / "study")
    for name in ("order/study.json", "order/results.json"):
        # All is as it was, and a checksum is new.
        assert "sum" not in json.loads(before[name])
        assert json.loads(after[name]) == sealed(json.loads(before[name]))
    for folder in plan.folders():
        folder.prepare()
    after = contents(written / "study")
    cells = [name for name in before if name.endswith("cell.json")]
    assert len(cells) == 5 and all(after[name] == before[name] for name in cells)


def test_the_results_of_a_study_are_read_without_its_cells():
    found = load_results(BEFORE / "study" / "order" / "results.json")
    assert found.name == "order" and found.of_arm("high", "static")[1]["lab-chain-3"].sum() == 3
    (cell,) = [cell for cell in found.cells.values() if cell.kind == "teacher"]
    assert cell.measured[0].verdicts.all()


def test_results_in_a_study_are_read_alone():
    folders = sorted((BEFORE / "study" / "cells").glob("*/eval/limit-4"))
    assert [len(read_results(folder)["lab-chain-3"].records) for folder in folders] == [4, 4, 4, 4]
