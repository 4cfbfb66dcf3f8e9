import json
import signal
import subprocess
import sys

import pytest

# Replaces what is judged, not how the worker serves.
PROGRAM = """
import sys, time
from sympy.core.cache import cacheit
from forkleft.verify import math, opdlm

done = []

@cacheit
def work(number):
    done.append(number)
    return number

def judge(response, answer):
    if response == "print":
        print("noise", flush=True)
        print("noise", file=sys.stderr, flush=True)
    if response.startswith("hog"):
        try:
            bytearray(int(response.split()[1]) << 20)
        except MemoryError:
            return False, "MemoryError"
    if response.startswith("keep"):
        math.kept = bytearray(int(response.split()[1]) << 20)
    if response.startswith("spin"):
        end = time.process_time() + float(response.split()[1])
        while time.process_time() < end:
            pass
    if response == "work":
        work(1)
        return True, str(len(done))
    return response == answer, response

math.judge = judge
opdlm.judge = lambda *request: (True, "opdlm")
from forkleft.verify.worker import main
main({cpu}, {later_cpu}, 1 << 30)
"""


def serve(*requests, code=0, cpu=30.0, later_cpu=30.0):
    lines = "".join(json.dumps(["math", *request]) + "\n" for request in requests)
    program = PROGRAM.format(cpu=cpu, later_cpu=later_cpu)
    done = subprocess.run([sys.executable, "-c", program], input=lines, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, "")
    ready, *replies = map(json.loads, done.stdout.splitlines())
    assert ready == "ready"
    return replies


def test_a_line_for_a_line_until_the_input_ends():
    assert serve(["a", "a"], ["a", "b"], ["\ud800", None]) == [
        [True, "a", False],
        [False, "a", False],
        [False, "\ud800", False],
    ]
    assert serve() == []


def test_what_is_printed_does_not_get_between_the_replies():
    assert serve(["print", "a"], ["a", "a"]) == [[False, "print", False], [True, "a", False]]


def test_memory_is_bounded():
    assert serve(["hog 2000", "a"], ["a", "a"]) == [[False, "MemoryError", False], [True, "a", False]]


def test_what_an_item_left_behind_takes_no_memory_from_the_next():
    assert serve(["keep 300", "a"], ["hog 900", "a"]) == [[False, "keep 300", False], [False, "hog 900", False]]


def test_a_worker_that_has_grown_retires():
    assert serve(["keep 600", "a"], ["a", "a"]) == [[False, "keep 600", True]]


def test_what_an_item_computed_does_not_shorten_the_next():
    assert serve(["work", "a"], ["work", "a"]) == [[True, "1", False], [True, "2", False]]


@pytest.mark.parametrize("start", ["", "import signal; signal.signal(signal.SIGPROF, signal.SIG_IGN)"])
def test_processor_time_is_bounded_to_the_fraction_of_a_second(start, monkeypatch):
    monkeypatch.setitem(globals(), "PROGRAM", start + PROGRAM)
    replies = serve(["spin 0.1", "a"], ["spin 1", "a"], ["b", "b"], cpu=0.5, later_cpu=0.5, code=-signal.SIGPROF)
    assert replies == [[False, "spin 0.1", False]]


def test_the_first_item_has_more_time_than_later_ones():
    replies = serve(["spin 1", "a"], ["spin 1", "a"], ["b", "b"], cpu=30.0, later_cpu=0.5, code=-signal.SIGPROF)
    assert replies == [[False, "spin 1", False]]


def test_time_is_counted_for_each_item():
    spins = [[f"spin 0.{n}", "a"] for n in (3, 3, 3, 3)]
    assert len(serve(*spins, cpu=0.8, later_cpu=0.8)) == 4


def test_both_kinds_are_judged_by_their_own():
    program = PROGRAM.format(cpu=30, later_cpu=30)
    lines = '["opdlm", "a", "b"]\n["math", "a", "b"]\n'
    done = subprocess.run([sys.executable, "-c", program], input=lines, capture_output=True, text=True)
    assert done.stdout.splitlines()[1:] == ['[true, "opdlm", false]', '[false, "a", false]']


def test_signals_for_all_processes_of_a_run_do_not_end_a_worker():
    program = PROGRAM.format(cpu=30.0, later_cpu=30.0)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == '"ready"\n'
        worker.send_signal(signal.SIGTERM)
        worker.send_signal(signal.SIGINT)
        out, _ = worker.communicate(json.dumps(["math", "a", "a"]) + "\n")
    assert json.loads(out) == [True, "a", False]
    assert worker.returncode == 0
