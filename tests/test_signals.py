"""The first signal asks, the second ends: in the smallest program, and in the command line."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import run

from forkleft.cli import paper
from forkleft.signals import EndedBySignal, at_first_signal, exit_code, leave

ROOT = Path(__file__).parents[1]
# Says that it is ready, and what the first signal was; a line of its standard input ends it.
NOTES = """
import sys
from forkleft.signals import at_first_signal

with at_first_signal(lambda number: print("first", number, flush=True)):
    print("ready", flush=True)
    sys.stdin.readline()
"""
IGNORES = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)" + NOTES


def started(program):
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(("first", "second", "code"), [(signal.SIGTERM, signal.SIGINT, 130), (2, 15, 143)])
def test_a_second_signal_ends_at_once(first, second, code):
    with started(NOTES) as process:
        process.send_signal(first)
        assert process.stdout.readline() == f"first {int(first)}\n"
        process.send_signal(second)
        # Without the end of its input, only the signal can have ended it.
        assert process.wait() == code == exit_code(second)


def test_an_ignored_signal_stays_ignored():
    with started(IGNORES) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "first 15\n"
        process.stdin.close()
        assert process.wait() == 0


def test_handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(EndedBySignal, match="SIGTERM"), at_first_signal(leave):
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_only_runs_the_block():
    ran = []

    def work():
        with at_first_signal(leave):
            ran.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ran == [True]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_command_ends_with_the_code_of_the_signal(capsys, monkeypatch, number, code):
    monkeypatch.setattr(paper, "run", lambda options: signal.raise_signal(number))
    found, out, err = run(capsys, "paper")
    assert (found, out) == (code, "")
    assert err == f"forkleft: ended by {number.name}\n"
