import json
import signal
import subprocess
import sys

# Replaces what is judged, not how the worker serves.
PROGRAM = """
import sys
from forkleft.verify import math

def judge(response, answer):
    if response == "print":
        print("noise", flush=True)
        print("noise", file=sys.stderr, flush=True)
    if response == "hog":
        try:
            bytearray(1 << 31)
        except MemoryError:
            return False, "MemoryError"
    if response == "keep":
        math.kept = bytearray(600 << 20)
    while response == "spin":
        pass
    return response == answer, response

math.judge = judge
from forkleft.verify.worker import main
main(3, 1 << 30)
"""


def serve(*requests, code=0):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([sys.executable, "-c", PROGRAM], input=lines, capture_output=True, text=True)
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
    assert serve(["hog", "a"], ["a", "a"]) == [[False, "MemoryError", False], [True, "a", False]]


def test_a_worker_that_has_grown_retires():
    assert serve(["keep", "a"], ["a", "a"]) == [[False, "keep", True]]


def test_processor_time_is_bounded():
    assert serve(["a", "a"], ["spin", "a"], ["b", "b"], code=-signal.SIGXCPU) == [[True, "a", False]]
