import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from skips import slow

from forkleft.errors import ForkLeftError
from forkleft.verify import pool as pool_module
from forkleft.verify.pool import MAX_CHARACTERS, NO_VERDICT, WRONG, Bounds, Pool, readable_part

# Cost more than any bound, each in its own way: a power tower, nesting, a search for numbers.
ENDLESS = [r"\boxed{9^{9^{9^{9}}}}", "\\boxed{" + "(" * 3000 + "5" + ")" * 3000 + "}", "1 " * 30_000]
HOSTILE = [
    r"\boxed{5",
    r"\boxed{{{5}",
    "}" * 1000 + r"\boxed{5",
    "\\boxed{5\x00}",
    "\x00" * 1000,
    "\\boxed{6\u202e5}",
    "\\boxed{\ud800}",
    "\\boxed{" + "\\frac{1}{" * 900 + "5" + "}" * 900 + "}",
    "\\boxed{" + "1+" * 2_000_000 + "1}",
    "$" + r"\sqrt{x}" * 500_000 + "$",
    "\\boxed{" * 10_000,
    "1" * 1_000_000,
    "",
]

# Stands in for the worker: what happens to the process depends on the response, and once on a file that is not there.
SCRIPTED = """
import json, os, signal, sys, time
flag, at_start = {flag!r}, {at_start!r}

def once():
    new = not os.path.exists(flag)
    open(flag, "w").close()
    return new

if at_start == "noise":
    print("welcome")
if at_start == "die" or at_start == "die once" and once():
    os.kill(os.getpid(), signal.SIGKILL)
print('"ready"', flush=True)
for judged, line in enumerate(sys.stdin):
    kind, response, answer = json.loads(line)
    if response == "die":
        os._exit(1)
    if response == "die once" and once():
        os.kill(os.getpid(), signal.SIGKILL)
    if response == "over time" or response == "over time if not first" and judged:
        os.kill(os.getpid(), signal.SIGPROF)
    if response == "sleep":
        time.sleep(1000)
    print(json.dumps([response == answer, str(os.getpid()), response == "retire"]), flush=True)
    if response == "retire":
        break
"""


@pytest.fixture(scope="module")
def small_pool():
    pool = Pool(2, Bounds(cpu_seconds=1))
    yield pool
    pool.close()


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """A pool whose workers follow the script above."""
    pools = []

    def build(size=2, at_start="", **bounds):
        program = SCRIPTED.format(flag=str(tmp_path / "flag"), at_start=at_start)
        monkeypatch.setattr(pool_module, "_PROGRAM", program)
        pools.append(Pool(size, Bounds(**bounds)))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def asked(*responses, answer=None, kind="math"):
    """Requests for responses that are right answers to themselves, or to one answer."""
    return [(kind, response, response if answer is None else answer) for response in responses]


def verdicts(replies):
    return [correct for correct, _, _ in replies]


def judged(replies):
    return [judged for _, _, judged in replies]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["math", slow("opdlm")])
def test_hostile_answers_are_not_right_and_keep_nobody_waiting(small_pool, kind):
    requests = asked(*ENDLESS, *HOSTILE, answer="5", kind=kind)
    mixed = [request for hostile in requests for request in (hostile, (kind, f"{len(hostile[1])}: \\boxed{{5}}", "5"))]
    replies = small_pool.judge(mixed)
    assert verdicts(replies) == [False, True] * len(requests)
    assert not judged(replies)[0]
    assert all(judged(replies)[1::2])


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "", "}" * 100, "\x00", "\ud800", "x" * (MAX_CHARACTERS + 1)])
def test_hostile_expected_answers(small_pool, answer):
    assert verdicts(small_pool.judge([("math", r"\boxed{5}", answer), ("math", r"\boxed{5}", "5")])) == [False, True]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["math", "opdlm"])
def test_neither_neighbours_nor_workers_matter(small_pool, kind):
    requests = [(kind, f"so \\boxed{{{n}/{d}}}", f"\\frac{{{n % 5}}}{{{d}}}") for n in range(8) for d in range(1, 5)]
    requests += asked(ENDLESS[0], "nothing", r"\boxed{x=5}", answer="5", kind=kind)
    requests.append((kind, r"\boxed{5}", None))
    together = small_pool.judge(requests)
    assert verdicts(together).count(True) > 20
    assert verdicts(together[-4:]) == [False, False, True, False]
    assert judged(together) == [True] * 32 + [False] + [True] * 3
    assert list(reversed(small_pool.judge(list(reversed(requests))))) == together
    assert small_pool.judge(requests * 2) == together * 2
    alone = Pool(1, small_pool.bounds)
    assert [alone.judge([request])[0] for request in requests] == together
    alone.close()


def test_workers_are_kept(scripted):
    pool = scripted(size=2)
    first = {worker.process.pid for worker in started(pool)}
    assert len(first) == 2
    assert {worker.process.pid for worker in started(pool)} == first


def started(pool):
    assert verdicts(pool.judge(asked(*map(str, range(50)), answer="0"))) == [True] + [False] * 49
    return pool._workers


def test_a_batch_starts_no_more_workers_than_it_has_items(scripted):
    pool = scripted(size=4)
    pool.judge(asked("a"))
    assert len(pool._workers) == 1


def test_a_worker_that_dies_costs_only_its_own_item_the_verdict(scripted):
    replies = scripted().judge(asked("a", "b", "die", "c", "d", "e", "die", "f"))
    assert verdicts(replies) == [True, True, False, True, True, True, False, True]
    assert replies[2] == replies[6] == NO_VERDICT


def test_an_item_is_tried_once_more(scripted, tmp_path):
    assert verdicts(scripted(size=1).judge(asked("a", "die once", "b"))) == [True, True, True]
    assert (tmp_path / "flag").exists()


@pytest.mark.parametrize("size", [1, 2])
def test_an_item_over_its_time_is_decided_by_a_worker_that_has_judged_nothing(scripted, size):
    slow = "over time if not first"
    replies = scripted(size=size).judge(asked("a", "b", slow, "c", "over time", "d"))
    assert verdicts(replies) == [True, True, True, True, False, True]
    assert replies[4] == NO_VERDICT


@pytest.mark.parametrize("size", [1, 2])
def test_many_items_over_their_time(scripted, size):
    slow = [f"{n}" for n in range(5)]
    pool = scripted(size=size)
    requests = [("math", "over time if not first", answer) for answer in slow]
    assert judged(pool.judge([*asked("a", "b"), *requests, *asked("c")])) == [True] * 8


def test_a_worker_that_died_while_nobody_asked(scripted):
    pool = scripted()
    pool.judge(asked("a", "b"))
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    assert verdicts(pool.judge(asked("a", "b", "c"))) == [True, True, True]


def test_a_worker_that_is_stuck(scripted):
    replies = scripted(wall_seconds=1.0).judge(asked("a", "sleep", "b", "c"))
    assert verdicts(replies) == [True, False, True, True]
    assert replies[1] == NO_VERDICT


def test_a_stopped_worker_that_takes_nothing(scripted):
    pool = scripted(size=1, wall_seconds=1.0)
    pool.judge(asked("a"))
    (worker,) = pool._workers
    os.kill(worker.process.pid, signal.SIGSTOP)
    # More than a pipe holds, so that not all of it can be written.
    requests, found = asked("\u20ac" * 90_000, "b"), []
    thread = threading.Thread(target=lambda: found.extend(pool.judge(requests)), daemon=True)
    thread.start()
    thread.join(60)
    hung = thread.is_alive()
    worker.process.kill()
    thread.join()
    assert not hung
    assert verdicts(found) == [True, True]


def test_a_worker_that_retires_leaves_its_items_to_others(scripted):
    replies = scripted(size=1).judge(asked("a", "retire", "b", "c"))
    assert verdicts(replies) == [True, True, True, True]
    assert replies[1][1] != replies[2][1]


def test_large_items_do_not_block_the_pipes(scripted):
    assert verdicts(scripted().judge(asked(*(f"{n}" + "\u20ac" * 90_000 for n in range(12))))) == [True] * 12


def test_something_printed_before_the_start(scripted):
    assert verdicts(scripted(at_start="noise").judge(asked("a"))) == [True]


def test_a_worker_that_does_not_start(monkeypatch):
    monkeypatch.setattr(pool_module, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(ForkLeftError, match=r"did not start \(exit code 3\).*Is math-verify installed"):
        Pool(2).judge(asked("a"))


def test_a_worker_that_is_killed_while_it_starts(scripted, tmp_path):
    assert verdicts(scripted(at_start="die once").judge(asked("a", "b", "c"))) == [True] * 3
    assert (tmp_path / "flag").exists()


def test_workers_that_are_killed_again_and_again(scripted):
    with pytest.raises(
        ForkLeftError, match=r"5 workers .* in a row were killed while they started \(the last by signal 9"
    ):
        scripted(at_start="die").judge(asked("a"))


def test_no_process_can_be_started(monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(pool_module.subprocess, "Popen", refuse)
    with pytest.raises(ForkLeftError, match="cannot start a worker of the math verifier: Resource temporarily"):
        Pool(1).judge(asked("a"))


def test_after_an_interrupt_no_reply_is_taken_for_another(scripted, monkeypatch):
    pool = scripted(size=1)
    pool.judge(asked("a"))

    def interrupt(worker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool_module._Worker, "hear", interrupt)
        pool.judge(asked("b", "c"))
    assert verdicts(pool.judge([("math", "d", "e"), ("math", "f", "f")])) == [False, True]


def test_threads_share_a_pool(scripted):
    pool = scripted()
    found = {}

    def ask(name):
        found[name] = verdicts(pool.judge([("math", f"{name}{n}", f"{name}{n - n % 2}") for n in range(40)]))

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys("abc", [True, False] * 20)


def test_a_long_response_is_read_from_its_last_box():
    prose = "so it goes " * MAX_CHARACTERS
    assert readable_part("short") == "short"
    assert readable_part(prose) == ""
    assert readable_part(rf"{prose} \boxed{{4}} \boxed{{5}} fine") == r"\boxed{5} fine"
    assert readable_part(rf"\boxed{{5}} {prose}") == ""
    assert Pool(1).judge([("math", prose, "5")]) == [WRONG]


# A program of a user, with no guard around its main part.
PARENT = """
import os, signal, sys
from forkleft.verify import Verifier, verify
from forkleft.verify.pool import shared_pool
print(Verifier().judge([r"\\boxed{5}", r"\\boxed{6}", ""], ["5"] * 3))
"""


def run(script, tmp_path, **options):
    path = tmp_path / "program.py"
    path.write_text(PARENT + script, encoding="utf-8")
    return subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=300, **options)


def is_running(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return not state.startswith(("Z", "X")) and state != ""


def gone(pids):
    for _ in range(100):
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_workers_end_with_a_program_however_it_ends(tmp_path, end):
    done = run(f"print(*[w.process.pid for w in shared_pool()._workers], flush=True)\n{end}", tmp_path)
    verdict, pids = done.stdout.splitlines()
    assert verdict == "[True, False, False]"
    assert done.returncode == (-signal.SIGKILL if "SIGKILL" in end else 0)
    assert gone([int(pid) for pid in pids.split()])


def test_a_forked_child_has_its_own_workers(tmp_path):
    script = """
before = [w.process.pid for w in shared_pool()._workers]
sys.stdout.flush()
child = os.fork()
if child == 0:
    right = Verifier().judge([r"\\boxed{7}", r"\\boxed{8}"], ["7", "7"]) == [True, False]
    own = not {w.process.pid for w in shared_pool()._workers} & set(before)
    sys.exit(0 if right and own else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(Verifier().judge([r"\\boxed{9}", r"\\boxed{8}"], ["9", "9"]))
print([w.process.pid for w in shared_pool()._workers] == before)
"""
    done = run(script, tmp_path)
    assert done.stdout.splitlines() == ["[True, False, False]", "0", "[True, False]", "True"], done.stderr


def test_processes_of_one_machine_share_its_processors(tmp_path):
    code = "from forkleft.verify.pool import shared_pool; print(shared_pool().size)"
    sizes = []
    for count in ("1", "1000"):
        environment = os.environ | {"LOCAL_WORLD_SIZE": count}
        sizes.append(int(subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment).stdout))
    assert sizes == [min(4, os.cpu_count()), 1]
