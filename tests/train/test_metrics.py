import json
import re

import pytest
from documents import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from trainer_runs import ROWS, make_trainer

from forkleft.errors import ForkLeftError
from forkleft.objective.routes import Route
from forkleft.objective.update import Outcome
from forkleft.train.metrics import StepFile, means


def seen(route, *, retained=True, judged=True, tokens=10, stopped=True, empty=False, cut=False, **numbers):
    right = {"student_right": route in (Route.CE, Route.EXCLUDE), "teacher_right": route in (Route.CE, Route.LEFTOPD)}
    written = {"judged": judged, "tokens": tokens, "stopped": stopped, "empty": empty, "reference_cut": cut}
    return Outcome("q", route, retained, **right, **written, **numbers)


def test_means_by_route_question_and_position():
    metrics = means(
        [
            seen(Route.CE, content=1.0, rank=0.5, pairs=2, contrast=(0.0, 1.0), left_entropy=(2.0,)),
            seen(Route.CE, content=3.0, rank=1.5, pairs=4, contrast=(2.0,), tokens=20, stopped=False),
            seen(Route.LEFTOPD, content=5.0, kl=(1.0, 2.0), eos_kl=2.0, cut=True),
            seen(Route.EXCLUDE, retained=False, empty=True, judged=False),
        ]
    )
    assert metrics["route_ce"] == 2
    assert metrics["route_gold"] == 0
    assert metrics["loss_ce"] == 2.0
    assert metrics["loss_leftopd"] == 5.0
    assert "loss_gold" not in metrics and "loss_exclude" not in metrics
    assert metrics["rank_loss"] == pytest.approx(2 / 3)
    assert metrics["rank_pairs"] == 2
    assert metrics["contrast"] == 1.0
    assert metrics["kl"] == 1.5
    assert metrics["taught"] == 1
    assert metrics["eos_kl"] == 2.0
    assert metrics["student_accuracy"] == metrics["teacher_accuracy"] == 0.75
    assert metrics["response_tokens"] == 12.5
    assert metrics["stopped"] == 0.75
    assert metrics["empty"] == 0.25
    assert metrics["references_cut"] == 1
    assert metrics["without_verdict"] == 1


def test_a_resumed_run_has_neither_holes_nor_repeats(tmp_path):
    file = StepFile(tmp_path / "run" / "metrics.jsonl")
    file.begin(0)
    for step in range(1, 6):
        file.write({"step": step})
    with file.path.open("a") as torn:
        torn.write('{"step": 6, "lo')
    file.begin(3)
    file.write({"step": 4, "again": True})
    rows = [json.loads(line) for line in file.path.read_text().splitlines()]
    assert rows == [{"step": 1}, {"step": 2}, {"step": 3}, {"step": 4, "again": True}]
    assert file.holds(4) and not file.holds(5) and not StepFile(tmp_path / "none.jsonl").holds(0)
    file.begin(0)
    assert file.path.read_text() == ""


def test_a_file_that_cannot_be_written_is_told(tmp_path):
    file = StepFile(tmp_path / "metrics.jsonl")
    file.path.mkdir()
    with pytest.raises(ForkLeftError, match=r"cannot write to .*metrics.jsonl: Is a directory; make room"):
        file.write({"step": 1})


def test_a_tracker_gets_the_figures_under_the_names_that_the_documents_give(tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)
    settings = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "trace_steps": 1}
    trainer = make_trainer(
        tmp_path, report_to="tensorboard", trainer={"eval_dataset": {"held": ROWS[:2], "out": ROWS[2:4]}}, **settings
    )
    trainer.train()
    (events,) = (tmp_path / "runs").rglob("events.out.tfevents*")
    found = EventAccumulator(str(events)).Reload()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    figures = [row for row in rows if "warning" not in row]
    names = set()
    for row in figures:
        step = row.pop("step")
        for name, value in row.items():
            tag = f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}"
            # Event files hold float32.
            assert value == pytest.approx(next(e.value for e in found.Scalars(tag) if e.step == step), rel=1e-6), name
            names.add(re.sub("^eval_(held|out)_", "eval_", name))
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| name \| what it is \|\n(.*?)\n\n", page, flags=re.DOTALL)
    documented = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    # A random student may never stop, and then has no KL at EOS; a teacher in memory is not waited for.
    assert names | {"eos_kl", "seconds_wait"} == documented


def test_damaged_rows_are_left_out_with_a_warning(tmp_path, caplog):
    file = StepFile(tmp_path / "traces.jsonl", sealed=True)
    for step in (1, 2, 3):
        file.write({"step": step, "text": "abc"})
    lines = file.path.read_text().splitlines(keepends=True)
    file.path.write_text(lines[0] + lines[1].replace("abc", "abd") + "[1]\n" + lines[2][:9])
    file.begin(2)
    assert file.path.read_text() == lines[0]
    assert "left out 2 damaged line(s)" in caplog.text
    caplog.clear()
    # A write that was cut off is no damage.
    file.path.write_text(lines[0] + lines[1][:9])
    file.begin(2)
    assert caplog.text == ""
