import shutil
from pathlib import Path

import pytest
from reports import made_up_metrics, made_up_run, write_rows

from forkleft.report import sections
from forkleft.report.gather import gather

BEFORE = Path(__file__).parents[1] / "written_before"


def test_one_run(tmp_path):
    folder = made_up_run(tmp_path / "run")
    found = gather([folder])
    head = sections.summary(found)
    assert "<b>lab:student-block</b> was taught by <b>lab:teacher-strong</b>: 3 updates of 8 questions." in head
    assert ">50% → 70%</b><span>right on held-out questions, native decoding" in head
    assert ">finished<" in head and 'class="note"' not in head
    # 25 of 50, and 35 of 50.
    assert "50.0 (36.6–63.4)" in sections.result(found) and "70.0 (56.2–80.9)" in sections.result(found)
    curves = sections.curves(found)
    for title in ("Right answers", "Routes", "Loss by route", "KL to the teacher", "Ranking loss", "Entropies"):
        assert title in curves
    assert "Response length" in curves and "Time by phase" in curves
    assert f"forkleft train --config {folder}/recipe.yaml --output_dir NEW_FOLDER" in sections.setup(found)


def test_results_beside_it_are_shown_with_their_tests(tmp_path):
    folder = made_up_run(tmp_path / "run")
    for name, model in (("base", "student-block"), ("trained", "student-shifted")):
        shutil.copytree(BEFORE / "evaluation" / model, folder / "results" / name)
    html = sections.result(gather([folder]))
    assert "<td>50.0 (18.8–81.2)</td>" in html and "Holm p" in html
    assert "model.family.anchor is prompt_end in A and absolute in B" in html


def test_several_runs_are_compared(tmp_path):
    runs = [made_up_run(tmp_path / name, recipe={"rollout_order": name}) for name in ("high_entropy", "low_entropy")]
    found = gather(runs)
    assert sections.title_of(found) == "2 runs"
    head, curves = sections.summary(found), sections.curves(found)
    assert "rollout_order high_entropy" in head and "rollout_order low_entropy" in head
    assert "On the teacher’s route" in curves and curves.count("high_entropy</li>") >= 5


def test_a_run_of_an_earlier_version_and_one_from_python(tmp_path):
    shutil.copytree(BEFORE / "run", tmp_path / "run")
    assert "lab:student-block" in sections.summary(gather([tmp_path / "run"]))
    (tmp_path / "run" / "recipe.yaml").unlink()
    found = gather([tmp_path / "run"])
    assert "A student was taught by a teacher (a run from Python" in sections.summary(found)
    assert "started from Python" in sections.setup(found) and "learning_rate" in sections.setup(found)


@pytest.mark.parametrize("finished", [True, False])
def test_an_empty_run_says_so(tmp_path, finished):
    found = gather([made_up_run(tmp_path / "run", traces=[], updates=0, finished=finished)])
    head = sections.summary(found)
    assert "no update is logged yet" in head
    assert ("not finished, stopped at update 0" in head) != finished
    assert sections.curves(found) == ""


def test_warnings_and_left_out_traces_are_told(tmp_path):
    folder = made_up_run(tmp_path / "run")
    rows = [made_up_metrics(1, loss=float("nan")), {"step": 1, "warning": "one_route", "text": "all on <one> route"}]
    write_rows(folder / "metrics.jsonl", rows)
    found = gather([folder], traces=2)
    head = sections.summary(found)
    assert "update 1: all on &lt;one&gt; route" in head
    assert "2 of 4 traces are on this page; --traces 4 shows all" in head
    assert "nan" not in sections.curves(found)


def test_words_of_users_are_escaped(tmp_path):
    hostile = '<img src=x onerror="1">'
    found = gather([made_up_run(tmp_path / "<b>run", recipe={"student": hostile, hostile: hostile})])
    for part in (sections.summary(found), sections.result(found), sections.curves(found), sections.setup(found)):
        assert "<img" not in part and "<b>run" not in part
