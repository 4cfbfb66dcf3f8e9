"""The first signal asks, the second ends: in the smallest program, and in the command line."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from commands import run

from forkleft.cli import paper
from forkleft.signals import EndedBySignal, at_first_signal, end_if_asked, ended_by_signal, exit_code, leave

ROOT = Path(__file__).parents[1]
# Says that it is ready, and what the first signal was; a line of its standard input ends it.
NOTES = """
import sys
from forkleft.signals import at_first_signal

with at_first_signal(lambda number: print("first", number, flush=True)):
    print("ready", flush=True)
    sys.stdin.readline()
"""
# After the first signal, it hangs in a call that is not Python's and does not come back to it, as a collective may.
HANGS = """
import ctypes, sys
from forkleft.signals import at_first_signal

def hang(number):
    print("first", number, flush=True)
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, ctypes.create_string_buffer(64)
    lock(mutex)
    lock(mutex)

with at_first_signal(hang):
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
@pytest.mark.parametrize("program", [NOTES, HANGS], ids=["in Python", "in a call that hangs"])
def test_a_second_signal_ends_at_once(program, first, second, code):
    with started(program) as process:
        process.send_signal(first)
        assert process.stdout.readline() == f"first {int(first)}\n"
        process.send_signal(second)
        # Without the end of its input, only the signal can have ended it. A shell adds 128 to the number.
        assert process.wait() == -second
        assert code == exit_code(second)


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


def test_a_wait_ends_if_who_takes_note_of_the_signal_says_so():
    noted = []

    def note(number):
        noted.append(number)
        return True

    with at_first_signal(note):
        end_if_asked()
        with pytest.raises(EndedBySignal, match="SIGTERM"), ended_by_signal():
            signal.raise_signal(signal.SIGTERM)
        assert noted == [signal.SIGTERM]
        # Another wait may come to its end, unless it takes long.
        with ended_by_signal():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with pytest.raises(EndedBySignal, match="SIGTERM"):
            end_if_asked()
    end_if_asked()


def test_a_wait_within_another_ends_alone():
    with at_first_signal(lambda number: True), pytest.raises(EndedBySignal, match="SIGTERM"), ended_by_signal():
        with ended_by_signal():
            pass
        signal.raise_signal(signal.SIGTERM)


def test_a_wait_goes_on_if_a_signal_is_only_noted():
    noted = []
    with at_first_signal(noted.append):
        with ended_by_signal():
            signal.raise_signal(signal.SIGTERM)
        end_if_asked()
    assert noted == [signal.SIGTERM]


def test_another_thread_only_runs_the_block():
    ran = []

    def work():
        with at_first_signal(leave), ended_by_signal():
            end_if_asked()
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
