"""Short forms of `make faults`: a few real processes, killed at moments that matter, and started again."""

import io
import json
import random
import signal
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from rich.console import Console
from skips import skip_or_fail

from faults import crashes, damage, disk, load, scenarios
from faults.__main__ import told
from faults.crashes import Fault, episode, left_alone, moment_of
from faults.spawner import Spawner
from faults.tally import Tallies, Tally, print_tallies
from forkleft import files, manifests
from forkleft.digests import json_digest
from forkleft.evaluate import results
from forkleft.study import results as study_results
from forkleft.train import checkpoints, data


@pytest.fixture(scope="module")
def spawner():
    with Spawner() as found:
        yield found


@pytest.fixture(scope="module")
def asked():
    with scenarios.answer_server() as found:
        yield found


def at(whole, moment, number=signal.SIGKILL):
    """A fault at the first event of a moment."""
    event = next(event for event in whole.events if moment_of(event) == moment)
    return Fault(moment, int(number), event=event)


def survives(spawner, scenario, folder, *faults):
    whole = left_alone(spawner, scenario, folder)
    planned = [at(whole, *fault) for fault in faults]
    done, lost = episode(spawner, scenario, folder, whole, planned, 0)
    assert lost == []
    assert done == planned
    return whole


def test_a_training_that_was_killed_is_the_same(tmp_path, spawner):
    whole = survives(spawner, scenarios.training(), tmp_path, ("checkpoint rename",), ("report write",))
    # What the comparison is worth: it sees a row that is missing, one that is there twice, and other weights.
    run = tmp_path / "run"
    rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    for changed in (rows[1:], [rows[0], *rows]):
        (run / "metrics.jsonl").write_text("".join(changed))
        assert "metrics.jsonl has holes or repeats" in " ".join(scenarios.trained_otherwise(whole.folder, run))
    (run / "metrics.jsonl").write_text("".join(rows))
    assert scenarios.trained_otherwise(whole.folder, run) == []
    (run / "model.safetensors").write_bytes((run / "checkpoint-2" / "model.safetensors").read_bytes())
    assert scenarios.trained_otherwise(whole.folder, run) == ["model.safetensors differs"]


def test_an_evaluation_that_was_killed_is_the_same(tmp_path, spawner):
    whole = survives(spawner, scenarios.evaluation(), tmp_path, ("record write",), ("record write", signal.SIGTERM))
    path = tmp_path / "run" / "lab-chain-2" / "records.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines(keepends=True)[0])
    assert len(scenarios.evaluated_otherwise(whole.folder, tmp_path / "run")) == 2


def test_no_answer_is_asked_for_twice_that_is_on_disk(tmp_path, spawner, asked):
    scenario = scenarios.answering(asked)
    whole = left_alone(spawner, scenario, tmp_path)
    # The first of them makes the file, the others add an answer each.
    planned = [Fault("answer write", event="write teacher_answers.jsonl", nth=nth) for nth in (4, 2)]
    assert episode(spawner, scenario, tmp_path, whole, planned, 0) == (planned, [])
    # The same as if the answers had not been read: everything is asked for again.
    assert asked.repeated(0, scenarios.kept_answers(whole.folder / "teacher_answers.jsonl"))


def test_a_training_that_is_asked_to_end_says_how_to_go_on(tmp_path, spawner):
    scenario, folder, log = scenarios.training(), tmp_path / "run", tmp_path / "log"
    spawner.start(scenario.words(folder), log, folder=folder, at="write metrics.jsonl", signal=signal.SIGTERM)
    assert spawner.wait() == 143
    last = log.read_text().splitlines()[-1]
    assert last == (
        "forkleft: stopped by SIGTERM after update 1, which checkpoint-1 holds; to go on: "
        f"forkleft train --config {folder}/recipe.yaml --resume_from_checkpoint true"
    )


def test_faults_are_drawn_from_the_seed(tmp_path):
    whole = crashes.Whole(tmp_path, 2.0, ("make .", "write teacher_answers.jsonl", "rename checkpoint-2"))
    first, second, other = (
        [crashes.a_fault(scenarios.training(), whole, draw) for _ in range(40)]
        for draw in (random.Random(1), random.Random(1), random.Random(2))
    )
    assert first == second != other
    killed = {fault.moment for fault in first if fault.number == signal.SIGKILL}
    assert killed == {"killed at any time", "killed at answer write", "killed at checkpoint rename"}
    assert any(fault.number == signal.SIGTERM for fault in first)


def test_faults_of_several_processes_hit_all_or_one(tmp_path):
    whole = crashes.Whole(tmp_path, 2.0, ())
    for scenario in (scenarios.study(tmp_path), scenarios.training("two processes", processes=2)):
        draw = random.Random(1)
        drawn = [crashes.a_fault(scenario, whole, draw) for _ in range(40)]
        assert {fault.whom for fault in drawn} == {"all", "main", "other"}
        assert {fault.moment for fault in drawn if fault.whom == "other" and fault.number == signal.SIGKILL} == {
            "killed at any time, another process alone"
        }
    processes = [10, 11, 12]
    hits = {whom: crashes._hit(Fault("", whom=whom), processes) for whom in ("all", "main", "other")}
    assert hits == {"all": processes, "main": [10], "other": [11]}
    # A runner passes it on, and gets it alone.
    assert crashes._hit(Fault("", signal.SIGTERM), processes, passed_on=True) == [10]
    assert crashes._hit(Fault("", whom="other"), [10]) == []


@pytest.mark.parametrize(
    ("event", "moment"),
    [
        ("write .staging/checkpoint-2/model.safetensors", "checkpoint write"),
        ("rename checkpoint-2", "checkpoint rename"),
        ("remove checkpoint-2/model.safetensors", "checkpoint removal"),
        ("write teacher_answers.jsonl", "answer write"),
        ("write lab-chain-2/records.part-0.jsonl", "record write"),
        ("rename lab-chain-2/summary.json", "record write"),
        ("rename report.html", "report write"),
        ("write curves.png", "report write"),
        ("rename small/results.json", "report write"),
        ("write small/.table.md", "report write"),
        ("rename cells/0a/cell.json", "cell write"),
        ("rename small/study.json", "cell write"),
        ("write metrics.jsonl", "metrics write"),
        ("rename model.safetensors", "model write"),
        ("make .", "set-up"),
        ("make small", "new folder"),
        ("write lab-chain-2/.lock", "set-up"),
    ],
)
def test_events_have_their_moments(event, moment):
    assert moment_of(event.replace(".staging", checkpoints.STAGING)) == moment


@pytest.mark.slow
def test_a_study_that_lost_a_command_or_its_runner_is_the_same(tmp_path, spawner):
    scenario = scenarios.study(tmp_path)
    whole = left_alone(spawner, scenario, tmp_path)
    moments = {moment_of(event) for event in whole.events}
    assert {"cell write", "report write"} <= moments
    planned = [
        # Its command goes on, and the next runner waits for it.
        Fault("the runner alone", share=0.2, whom="main"),
        Fault("a command alone", share=0.2, whom="other"),
        at(whole, "report write"),
    ]
    done, lost = episode(spawner, scenario, tmp_path, whole, planned, 0)
    # A fault at a time may come between two commands, and hit nothing.
    assert lost == [] and done


@pytest.mark.slow
def test_a_training_of_two_processes_that_lost_one_or_both_is_the_same(tmp_path, spawner):
    scenario = scenarios.training("two processes", processes=2)
    whole = left_alone(spawner, scenario, tmp_path)
    done = []
    for number, whom in enumerate(("main", "other", "all")):
        hit, lost = episode(spawner, scenario, tmp_path, whole, [Fault(whom, share=0.6, whom=whom)], number)
        assert lost == []
        done += hit
    # On a machine that was busier before, one may end before its fault.
    assert done


@pytest.mark.slow
def test_all_scenarios_are_attacked(tmp_path, monkeypatch):
    attacked = {}

    def attack(spawner, scenario, work, wanted, draw, tallies):
        assert scenario.words(work)[0] in ("train", "eval", "answer", "study")
        attacked[scenario.name] = wanted
        tallies.add(scenario.name)

    monkeypatch.setattr(crashes, "attack", attack)
    found = crashes.run(tmp_path / "new" / "crashes", 120, 1, Console(quiet=True))
    assert [tally.fault for tally in found] == list(crashes.SHARES)
    assert attacked == {"train": 48, "eval": 24, "answer": 24, "two processes": 12, "study": 12}


def test_lost_faults_are_counted():
    tallies = Tallies()
    tallies.add("a")
    tallies.add("b", ["wrong"])
    tallies.add("a", ["gone", "cut"], injected=5)
    assert tallies.all() == [Tally("a", 6, ["gone", "cut"]), Tally("b", 1, ["wrong"])]
    assert [tally.survived for tally in tallies.all()] == [4, 0]


def attacked(tmp_path, monkeypatch, wanted, *episodes):
    """The tallies of episodes that end as it is said, the last of them again and again."""
    left = list(episodes)
    monkeypatch.setattr(crashes, "left_alone", lambda *run: crashes.Whole(tmp_path, 1.0, ()))
    monkeypatch.setattr(crashes, "episode", lambda *run: left.pop(0) if len(left) > 1 else left[0])
    tallies = Tallies()
    crashes.attack(None, scenarios.training(), tmp_path, wanted, random.Random(1), tallies)
    return {tally.fault: (tally.injected, tally.lost) for tally in tallies.all()}


KILLED, ASKED = Fault("killed"), Fault("asked to end", int(signal.SIGTERM))


def test_only_kills_count_as_kills(tmp_path, monkeypatch):
    found = attacked(tmp_path, monkeypatch, 2, ([ASKED, ASKED], []), ([KILLED], []))
    assert found == {"train: asked to end": (2, []), "train: killed": (2, [])}


def test_fewer_kills_than_wanted_are_told(tmp_path, monkeypatch):
    found = attacked(tmp_path, monkeypatch, 2, ([KILLED], []), ([ASKED], []))
    assert found["train: kills"] == (1, ["expected 2 kills, only 1 came before the end of a run"])


def test_what_is_lost_without_a_fault_is_counted(tmp_path, monkeypatch):
    found = attacked(tmp_path, monkeypatch, 1, ([], ["metrics.jsonl differs"]), ([KILLED], []))
    assert found == {"train: no fault": (1, ["metrics.jsonl differs"]), "train: killed": (1, [])}


def test_where_nothing_can_be_mounted_a_row_says_so(tmp_path, monkeypatch, spawner):
    def denied(*command, **settings):
        return SimpleNamespace(returncode=32, stderr="mount: only root can do that\n")

    monkeypatch.setattr(disk.subprocess, "run", denied)
    assert disk.not_mounted(tmp_path / "try").endswith("mount: only root can do that")
    monkeypatch.setattr(disk, "Spawner", lambda: nullcontext(spawner))
    monkeypatch.setattr(disk, "left_alone", lambda *run: crashes.Whole(tmp_path, 1.0, ("write x",)))
    monkeypatch.setattr(disk, "paused", lambda *run: [])
    found = {tally.fault: tally for tally in disk.run(tmp_path / "work", 3, seed=1)}
    for name in ("train", "eval", "answer"):
        refused = found[f"{name}: full and read-only disks"]
        assert refused.injected == 0 and refused.figures.startswith("not possible here: cannot mount a disk")
        assert found[f"{name}: paused"].survived == 1


def test_a_part_that_fails_is_told_in_the_table():
    def broken():
        raise RuntimeError("no more processes")

    assert told("disk", broken) == [Tally("disk", 1, ["the harness itself failed: RuntimeError: no more processes"])]
    out = io.StringIO()
    assert not print_tallies(told("disk", broken), Console(file=out, width=120))
    assert "lost (disk): the harness itself failed" in out.getvalue()
    assert print_tallies([], Console(file=out))


def test_load_is_told_in_the_same_kind_of_table(monkeypatch):
    codes = {"make": 0, sys.executable: 3}
    monkeypatch.setattr(
        load.subprocess, "run", lambda command, **settings: SimpleNamespace(returncode=codes[command[0]])
    )
    assert load.under_load(["make", "test"]) == Tally("make test beside 6 busy processes", 1, [], "0 minutes")
    demo = load.under_load([sys.executable, "-m", "forkleft", "demo", "--output", "x"])
    assert (demo.fault, demo.lost) == ("forkleft demo beside 6 busy processes", ["forkleft demo ended with code 3"])


def test_cut_lines_do_not_count_as_kept(tmp_path):
    path = tmp_path / "answers.jsonl"
    line = json.dumps({"key": json_digest("a"), "text": "one"})
    path.write_text(f"{line}\n{line[:20]}\n{line}")
    assert scenarios.kept_answers(path) == ["one"]
    assert scenarios.kept_answers(tmp_path / "none") == []


@pytest.mark.parametrize("subject", damage.SUBJECTS, ids=lambda subject: subject.name)
def test_damaged_files_are_never_silently_used(tmp_path, monkeypatch, subject):
    assert damage.damaged_silently(subject, tmp_path / "sealed", 60, random.Random(1)) == []
    # What the seals are worth: without them, something else is read than was written.
    for module in (files, results, study_results, data):
        monkeypatch.setattr(module, "is_intact", lambda row: True)
    monkeypatch.setattr(manifests, "file_digest", lambda path: "")
    if subject.name != "checkpoints":
        assert damage.damaged_silently(subject, tmp_path / "open", 120, random.Random(1))


@pytest.fixture
def small_disk(tmp_path):
    try:
        with disk.mounted(tmp_path / "try"):
            pass
    except (OSError, PermissionError) as error:
        skip_or_fail(f"a disk of our own cannot be mounted here: {error}")


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_run_goes_on_with_room(tmp_path, spawner, small_disk):
    scenario = scenarios.training()
    whole = left_alone(spawner, scenario, tmp_path)
    needed = disk.pages_of(whole.folder)
    for room in (0, 5, needed // 2, needed - 2):
        assert disk.full_disk(spawner, scenario, tmp_path, whole, room) == []


def test_a_full_disk_ends_an_evaluation_and_answers_in_one_line(tmp_path, spawner, asked, small_disk):
    for scenario in (scenarios.evaluation(), scenarios.answering(asked)):
        work = tmp_path / scenario.name
        work.mkdir()
        whole = left_alone(spawner, scenario, work)
        assert disk.full_disk(spawner, scenario, work, whole, 0) == []
        said = (work / "full.log").read_text()
        assert "No space left on device" in said
        assert disk.read_only(spawner, scenario, work) == []
        assert "Read-only file system" in (work / "read-only.log").read_text()


def test_a_run_that_stands_still_for_a_while_is_the_same(tmp_path, spawner):
    scenario = scenarios.evaluation()
    whole = left_alone(spawner, scenario, tmp_path)
    assert disk.paused(spawner, scenario, tmp_path, whole, "rename lab-chain-2/records.jsonl") == []
