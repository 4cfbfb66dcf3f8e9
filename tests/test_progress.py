import io
import re
import threading

import pytest
from rich.console import Console
from rich.text import Text

from forkleft import progress
from forkleft.progress import Meter, clock_time

FIGURES = "loss 0.250  student right 48%, 25 of 48 taught by the teacher"


class Now:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


def terminal(width=80):
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def plain():
    return Console(file=io.StringIO(), width=80)


def drawn(meter):
    """The lines of the picture, as wide as the terminal at most."""
    with meter.console.capture() as captured:
        meter.console.print(meter.picture())
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert all(len(line) <= meter.console.width for line in lines)
    return lines


def test_eighty_columns_hold_the_time_left_the_phase_and_the_figures():
    now = Now()
    meter = Meter(terminal(), "update", 12000, clock=now)
    now.seconds = 300_000.0
    meter.move(6000)
    meter.tell(FIGURES)
    meter.phase("evaluation")
    now.seconds += 3599.0
    first, second = drawn(meter)
    assert first.startswith("update  ━━")
    assert first.endswith("6000/12000  82:20:01 left  84:19:59 gone  evaluation 3599 s")
    assert second == FIGURES


def test_the_bar_is_as_long_as_there_is_room_for():
    lengths = [
        drawn(Meter(terminal(width), "update", 10, done=10, clock=Now()))[0].count("━") for width in (36, 40, 200)
    ]
    assert lengths[0] < lengths[1] < lengths[2] == 20


def test_a_narrow_terminal_has_the_time_on_a_line_of_its_own():
    now = Now()
    meter = Meter(terminal(40), "update", 12000, clock=now)
    now.seconds = 300_000.0
    meter.move(6000)
    meter.phase("rollout")
    now.seconds += 4.0
    first, second = drawn(meter)
    assert first.startswith("update  ━━") and first.endswith("6000/12000")
    assert second == "83:19:56 left  83:20:04 gone  rollout 4…"


def test_a_panel_takes_the_place_of_the_figures_in_a_terminal():
    meter = Meter(terminal(), "update", 10, clock=Now())
    meter.tell(FIGURES, Text("one\ntwo"))
    assert drawn(meter)[1:] == ["one", "two"] and meter.drawn
    log = Meter(plain(), "update", 10, at_ends=True, clock=Now())
    log.tell(FIGURES, Text("one\ntwo"))
    assert log.console.file.getvalue().endswith(f"{FIGURES}\n") and not log.drawn
    assert not Meter(terminal(), "update", 10, shown=False).drawn


def test_the_time_left_is_the_mean_of_all_steps_times_those_to_come():
    now = Now()
    meter = Meter(terminal(), "update", 10, done=2, clock=now)
    assert meter.left() is None
    now.seconds = 100.0
    meter.move(3)
    assert meter.left() == 700.0
    # Counted down until the next step tells more, however long that takes.
    now.seconds = 150.0
    assert meter.left() == 650.0
    now.seconds = 300.0
    meter.move(4)
    assert meter.left() == 900.0
    # Nobody knows how long it will take when the estimate has run out.
    now.seconds = 2000.0
    assert meter.left() is None


def test_an_evaluation_between_steps_is_expected_again_and_one_before_them_is_not():
    now = Now()
    meter = Meter(terminal(), "update", 50, clock=now)
    now.seconds = 600.0
    meter.interrupt()
    assert meter.left() is None
    for step in range(1, 26):
        now.seconds += 2.0
        meter.move(step)
    assert meter.left() == pytest.approx(50.0)
    now.seconds += 60.0
    meter.interrupt()
    assert meter.left() == pytest.approx(50.0 + 60.0)


def test_the_phase_is_named_where_a_step_takes_long():
    now = Now()
    meter = Meter(terminal(), "update", 10, clock=now)
    meter.phase("rollout")
    now.seconds = 2.0
    assert "rollout" not in drawn(meter)[0]
    now.seconds = 4.0
    assert drawn(meter)[0].endswith("0:00:04 gone  rollout 4 s")
    meter.move(1)
    # The next step will be as long.
    meter.phase("teacher")
    assert drawn(meter)[0].endswith("teacher 0 s")
    now.seconds = 5.0
    meter.move(2)
    assert "teacher" not in drawn(meter)[0]
    meter.phase("")
    now.seconds = 50.0
    assert drawn(meter)[0].endswith("gone")


@pytest.mark.parametrize("at_ends", [True, False])
def test_without_a_terminal_there_is_a_line_now_and_then(at_ends):
    now = Now()
    meter = Meter(plain(), "update", 41, at_ends=at_ends, clock=now)
    for step in range(1, 42):
        now.seconds += 7.0
        meter.move(step)
        meter.tell(FIGURES)
    lines = meter.console.file.getvalue().splitlines()
    steps = [int(line.split()[1]) for line in lines]
    if at_ends:
        assert steps == [*range(1, 41, 3), 41]
        assert lines[0] == f"update 1 of 41  0:04:40 left, 0:00:07 gone  {FIGURES}"
        assert lines[-1] == f"update 41 of 41  0:04:47 gone  {FIGURES}"
    else:
        assert steps == [*range(3, 41, 3)]


def test_without_a_terminal_a_long_phase_is_named_once():
    now = Now()
    meter = Meter(plain(), "update", 40, at_ends=True, clock=now)
    now.seconds = 30.0
    meter.move(1)
    meter.tell(FIGURES)
    meter.phase("rollout")
    for _ in range(100):
        now.seconds += 1.0
        meter.tick()
    meter.phase("verify")
    now.seconds += 1.0
    meter.tick()
    meter.phase("readout")
    for _ in range(100):
        now.seconds += 1.0
        meter.tick()
    _, *lines = meter.console.file.getvalue().splitlines()
    assert lines == [
        "update 2 of 40  0:19:09 left, 0:00:51 gone  rollout 21 s",
        "update 2 of 40  0:17:45 left, 0:02:15 gone  readout 4 s",
    ]


def test_what_comes_after_the_last_step_is_no_other_step():
    now = Now()
    meter = Meter(plain(), "update", 2, clock=now)
    for step in (1, 2):
        now.seconds += 5.0
        meter.move(step)
    meter.phase("evaluation")
    for _ in range(30):
        now.seconds += 1.0
        meter.tick()
    assert meter.console.file.getvalue().splitlines() == ["update 2 of 2  0:00:21 gone  evaluation 11 s"]


def test_somebody_watches_for_long_phases(monkeypatch):
    """The thread that looks after them, in real time."""
    monkeypatch.setattr(progress, "_LONG_SECONDS", -1.0)
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", -1.0)
    monkeypatch.setattr(progress, "_PULSE_SECONDS", 0.001)
    written = threading.Event()

    class File(io.StringIO):
        def write(self, text):
            written.set()
            return super().write(text)

    with Meter(Console(file=File(), width=80), "update", 3) as meter:
        meter.phase("rollout")
        assert written.wait(60)
    assert meter.console.file.getvalue().startswith("update 1 of 3  0:00:0")


def test_another_process_says_nothing():
    for console in (terminal(), plain()):
        with Meter(console, "update", 3, shown=False) as meter:
            meter.move(3)
            meter.tell(FIGURES)
        assert console.file.getvalue() == ""


def test_times():
    assert [clock_time(s) for s in (0.4, 59.6, 3599, 3600, 97_445)] == [
        "0:00:00",
        "0:01:00",
        "0:59:59",
        "1:00:00",
        "27:04:05",
    ]


@pytest.mark.parametrize("colours", ["standard", "256", "truecolor"])
def test_what_is_done_looks_other_than_what_is_not(colours):
    """Also where there are 16 colours: the bar before the first step, on its way, and at the end."""

    def codes(done):
        console = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=colours)
        console.print(Meter(console, "question", 4, done=done).picture())
        return re.findall(r"\x1b\[([\d;]+)m[━╸╺]", console.file.getvalue())

    begun, under_way, ended = codes(0), codes(2), codes(4)
    assert begun[-1] != ended[0]
    assert under_way[0] != under_way[-1] == begun[-1]


def test_the_caller_may_know_better_how_long_it_takes():
    now = Now()
    meter = Meter(terminal(), "cells", 8, clock=now)
    meter.expect(600.0)
    now.seconds = 100.0
    assert meter.left() == 500.0
    meter.move(4)
    meter.expect(50.0)
    assert meter.left() == 50.0
    now.seconds = 200.0
    assert meter.left() is None
