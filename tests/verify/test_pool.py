import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from forkleft.errors import ForkLeftError
from forkleft.verify import pool as pool_module
from forkleft.verify.pool import MAX_CHARACTERS, WRONG, Bounds, Pool, readable_part

# Cost more than any bound, each in its own way: a power tower, nesting, a search for numbers.
ENDLESS = [r"\boxed{9^{9^{9^{9}}}}", "\\boxed{" + "(" * 3000 + "5" + ")" * 3000 + "}", "1 " * 30_000]
HOSTILE = [
    r"\boxed{5",
    r"\boxed{{{5}",
    "}" * 1000 + r"\boxed{5",
    "\\boxed{5\x00}",
    "\x00" * 1000,
    "\\boxed{\u202e5}",
    "\\boxed{5\u200f}",
    "\\boxed{\ud800}",
    "\\boxed{" + "\\frac{1}{" * 900 + "5" + "}" * 900 + "}",
    "\\boxed{" + "1+" * 2_000_000 + "1}",
    "$" + r"\sqrt{x}" * 500_000 + "$",
    "\\boxed{" * 10_000,
    "1" * 1_000_000,
    "",
]

# Seconds in which a worker has started, even on a busy machine.
START = 10.0

# Stands in for the worker: what happens to the process depends on the response.
SCRIPTED = """
import json, os, sys, time
flag = {flag!r}
if {noise!r}:
    print({noise!r})
print('"ready"', flush=True)
for line in sys.stdin:
    response, answer = json.loads(line)
    if response == "die":
        os._exit(1)
    if response == "die once" and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), 9)
    if response == "over time" and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), 24)
    if response == "sleep":
        time.sleep(1000)
    print(json.dumps([response == answer, str(os.getpid()), response == "retire"]), flush=True)
    if response == "retire":
        break
"""


@pytest.fixture
def small_pool():
    pool = Pool(2, Bounds(cpu_seconds=1))
    yield pool
    pool.close()


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """A pool whose workers follow the script above."""
    pools = []

    def build(size=2, noise="", **bounds):
        monkeypatch.setattr(pool_module, "_PROGRAM", SCRIPTED.format(flag=str(tmp_path / "died"), noise=noise))
        pools.append(Pool(size, Bounds(**bounds)))
        return pools[-1]

    yield build
    for pool in pools:
        pool.close()


def verdicts(replies):
    return [correct for correct, _ in replies]


def test_hostile_answers_are_wrong_and_cost_no_more_than_their_bounds(small_pool):
    requests = [(response, "5") for response in [*ENDLESS, *HOSTILE]]
    mixed = [request for hostile in requests for request in (hostile, (f"{len(hostile[0])}: \\boxed{{5}}", "5"))]
    # Starts are not what is measured here; that a worker which was ended starts again is.
    small_pool.judge([(r"\boxed{5}", "5")])
    begun = time.monotonic()
    assert verdicts(small_pool.judge(mixed)) == [False, True] * len(requests)
    elapsed = time.monotonic() - begun
    assert elapsed < len(ENDLESS) * START + len(mixed) * (small_pool.bounds.cpu_seconds + 1)


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "", "}" * 100, "\x00", "\ud800", "x" * (MAX_CHARACTERS + 1)])
def test_hostile_expected_answers(small_pool, answer):
    assert verdicts(small_pool.judge([(r"\boxed{5}", answer), (r"\boxed{5}", "5")])) == [False, True]


@pytest.mark.slow
def test_neither_neighbours_nor_workers_matter(small_pool):
    requests = [(f"so \\boxed{{{n}/{d}}}", f"\\frac{{{n % 5}}}{{{d}}}") for n in range(8) for d in range(1, 5)]
    requests += [(ENDLESS[0], "5"), ("nothing", "5"), (r"\boxed{x=5}", "5"), (r"\boxed{5}", None)]
    together = small_pool.judge(requests)
    assert verdicts(together).count(True) > 20
    assert verdicts(together[-4:]) == [False, False, True, False]
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
    assert verdicts(pool.judge([(str(n), "0") for n in range(50)])) == [True] + [False] * 49
    return pool._workers


def test_a_batch_starts_no_more_workers_than_it_has_items(scripted):
    pool = scripted(size=4)
    pool.judge([("a", "a")])
    assert len(pool._workers) == 1


def test_a_worker_that_dies_makes_only_its_own_item_wrong(scripted):
    pool = scripted()
    requests = [(response, response) for response in ("a", "b", "die", "c", "d", "e", "die", "f")]
    assert verdicts(pool.judge(requests)) == [True, True, False, True, True, True, False, True]


def test_an_item_is_tried_once_more(scripted, tmp_path):
    pool = scripted(size=1)
    assert verdicts(pool.judge([("a", "a"), ("die once", "die once"), ("b", "b")])) == [True, True, True]
    assert (tmp_path / "died").exists()


def test_an_item_over_its_time_is_not_tried_again(scripted):
    pool = scripted(size=1)
    assert verdicts(pool.judge([("a", "a"), ("over time", "over time"), ("b", "b")])) == [True, False, True]


def test_a_worker_that_died_while_nobody_asked(scripted):
    pool = scripted()
    pool.judge([("a", "a"), ("b", "b")])
    for worker in pool._workers:
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
    assert verdicts(pool.judge([("a", "a"), ("b", "b"), ("c", "c")])) == [True, True, True]


def test_a_worker_that_is_stuck(scripted):
    pool = scripted(wall_seconds=1.0)
    assert verdicts(pool.judge([("a", "a"), ("sleep", "sleep"), ("b", "b"), ("c", "c")])) == [True, False, True, True]


def test_a_worker_that_retires_leaves_its_items_to_others(scripted):
    pool = scripted(size=1)
    replies = pool.judge([("a", "a"), ("retire", "retire"), ("b", "b"), ("c", "c")])
    assert verdicts(replies) == [True, True, True, True]
    assert replies[1][1] != replies[2][1]


def test_large_items_do_not_block_the_pipes(scripted):
    pool = scripted()
    requests = [(f"{n}" + "\u20ac" * 90_000, f"{n}" + "\u20ac" * 90_000) for n in range(12)]
    assert verdicts(pool.judge(requests)) == [True] * 12


def test_something_printed_before_the_start(scripted):
    assert verdicts(scripted(noise="welcome").judge([("a", "a")])) == [True]


def test_a_worker_that_does_not_start(monkeypatch):
    monkeypatch.setattr(pool_module, "_PROGRAM", "raise SystemExit(3)")
    with pytest.raises(ForkLeftError, match=r"did not start \(exit code 3\).*Is math-verify installed"):
        Pool(2).judge([("a", "a")])


def test_after_an_interrupt_no_reply_is_taken_for_another(scripted, monkeypatch):
    pool = scripted(size=1)
    pool.judge([("a", "a")])

    def interrupt(worker):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pool_module._Worker, "hear", interrupt)
        pool.judge([("b", "b"), ("c", "c")])
    assert verdicts(pool.judge([("d", "e"), ("f", "f")])) == [False, True]


def test_threads_share_a_pool(scripted):
    pool = scripted()
    found = {}

    def ask(name):
        found[name] = verdicts(pool.judge([(f"{name}{n}", f"{name}{n - n % 2}") for n in range(40)]))

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
    assert Pool(1).judge([(prose, "5")]) == [WRONG]


# A program of a user, with no guard around its main part.
PARENT = """
import os, signal, sys
from forkleft.verify import verify, verify_batch
from forkleft.verify.pool import shared_pool
print(verify_batch([r"\\boxed{5}", r"\\boxed{6}", ""], ["5"] * 3))
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
    right = verify_batch([r"\\boxed{7}", r"\\boxed{8}"], ["7", "7"]) == [True, False]
    own = not {w.process.pid for w in shared_pool()._workers} & set(before)
    sys.exit(0 if right and own else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(verify_batch([r"\\boxed{9}", r"\\boxed{8}"], ["9", "9"]))
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
