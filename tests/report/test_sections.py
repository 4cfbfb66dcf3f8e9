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
    assert "<h1>lab:student-block, taught by lab:teacher-strong</h1>" in head and "3 updates of 8 questions" in head
    in_use = "of 50 held-out questions right in use, after update 1 (95%: 37–63%) and after update 3 (95%: 56–81%)"
    assert f">50% → 70%</b><span>{in_use}<" in head
    assert sections.measured(found) == f'<a href="#result">Measured above</a>: 50% → 70%, {in_use}.'
    assert ">50% → 50%</b><span>of training questions right, written most uncertain word first: means of" in head
    assert ">finished<" in head and 'class="note"' not in head
    # 25 of 50, and 35 of 50.
    assert "50.0 (36.6–63.4)" in sections.result(found) and "70.0 (56.2–80.9)" in sections.result(found)
    curves = sections.curves(found)
    for title in ("Right answers", "Routes", "Loss by route", "KL to the teacher", "Ranking loss", "Entropies"):
        assert title in curves
    assert "Response length" in curves and "Time by phase" in curves
    assert "0.69 between two equally likely words" in curves
    assert f"forkleft train --config {folder}/recipe.yaml --output_dir NEW_FOLDER" in sections.setup(found)


def test_results_beside_it_are_shown_with_their_tests(tmp_path):
    folder = made_up_run(tmp_path / "run")
    for name, model in (("base", "student-block"), ("trained", "student-shifted")):
        shutil.copytree(BEFORE / "evaluation" / model, folder / "results" / name)
    found = gather([folder])
    assert "points</b><span>right answers after training, against before, on 6 questions" in sections.summary(found)
    assert "that includes 0, so it may be chance" in sections.summary(found)
    html = sections.result(found)
    assert "<td>83.3 (43.6–97.0)</td>" in html and "Holm p" in html
    assert "model.family.anchor is prompt_end in A and absolute in B" in html


def test_several_runs_are_compared(tmp_path):
    runs = [made_up_run(tmp_path / name, recipe={"rollout_order": name}) for name in ("high_entropy", "low_entropy")]
    found = gather(runs)
    assert sections.title_of(found) == "2 runs"
    head, curves = sections.summary(found), sections.curves(found)
    assert "rollout_order high_entropy" in head and "rollout_order low_entropy" in head
    assert "On the teacher’s route" in curves and curves.count("high_entropy</li>") >= 5
    # Figures come before the many words about what differs.
    assert head.index("gain, points") < head.index("what differs") and 'class="words wrap"' in head


def test_whose_results_they_are_is_said_beside_other_runs(tmp_path):
    runs = [made_up_run(tmp_path / name) for name in ("one", "other")]
    for name, model in (("base", "student-block"), ("trained", "student-shifted")):
        shutil.copytree(BEFORE / "evaluation" / model, runs[1] / "results" / name)
    assert "<h3>other</h3>" in sections.result(gather(runs))
    assert "<h3>other</h3>" not in sections.result(gather(runs[1:]))


def test_a_run_of_an_earlier_version_and_one_from_python(tmp_path):
    shutil.copytree(BEFORE / "run", tmp_path / "run")
    assert "lab:student-block" in sections.summary(gather([tmp_path / "run"]))
    (tmp_path / "run" / "recipe.yaml").unlink()
    found = gather([tmp_path / "run"])
    assert "A run from Python; its card, README.md, names student and teacher." in sections.summary(found)
    assert "started from Python" in sections.setup(found) and "learning_rate" in sections.setup(found)


def test_without_an_evaluation_no_gain_is_claimed(tmp_path):
    folder = made_up_run(tmp_path / "run")
    assert "cannot say whether training helped" not in sections.summary(gather([folder]))
    write_rows(folder / "metrics.jsonl", [made_up_metrics(step, student_accuracy=step / 10) for step in (1, 2, 3)])
    assert "cannot say whether training helped" in sections.summary(gather([folder]))
    rows = [made_up_metrics(1), {"step": 1, "eval_accuracy": 0.5}]
    write_rows(folder / "metrics.jsonl", rows)
    assert "right in use, after update 1; there is no other to compare with" in sections.summary(gather([folder]))


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


@pytest.mark.parametrize(
    ("order", "told"),
    [("high_entropy", "most uncertain word first"), ("low_entropy", "least uncertain word first")],
)
def test_a_warning_about_right_answers_says_how_they_were_written(tmp_path, order, told):
    folder = made_up_run(tmp_path / "run", recipe={"rollout_order": order})
    warnings = [{"step": 3, "warning": name, "text": f"{name} was seen"} for name in ("kl_not_falling", "one_route")]
    write_rows(folder / "metrics.jsonl", [*map(made_up_metrics, (1, 2, 3)), *warnings])
    head = sections.summary(gather([folder]))
    assert f"kl_not_falling was seen. In training it writes {told}; in use, most confident word first</li>" in head
    assert "<li>Warning at update 3: one_route was seen</li>" in head


def test_words_of_users_are_escaped(tmp_path):
    hostile = '<img src=x onerror="1">'
    found = gather([made_up_run(tmp_path / "<b>run", recipe={"student": hostile, hostile: hostile})])
    for part in (sections.summary(found), sections.result(found), sections.curves(found), sections.setup(found)):
        assert "<img" not in part and "<b>run" not in part
