import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forkleft.cli import demo, main
from forkleft.processes import run_together


def program(text):
    """A program in place of `forkleft`: it knows its rank and its words."""
    head = "import os, sys, time; rank, words = int(os.environ['RANK']), sys.argv[1:]\n"
    return (sys.executable, "-c", head + text)


# The first process ends when the other is seen to be gone.
LAST = """
if rank == 1:
    with open(words[0] + "/new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(words[0] + "/new", words[0] + "/pid")
    print("out of memory", file=sys.stderr)
    sys.exit(7)
while not os.path.exists(words[0] + "/pid"):
    time.sleep(0.02)
try:
    while True:
        os.kill(int(open(words[0] + "/pid").read()), 0)
        time.sleep(0.02)
except ProcessLookupError:
    print("left alone", file=sys.stderr)
    sys.exit(2)
"""


def test_the_processes_know_each_other_and_the_first_speaks(tmp_path, capfd):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    text = f"""
with open(words[0] + str(rank), "w") as file:
    print(*(os.environ[name] for name in {names}), *words[1:], file=file)
with open(words[0] + "port" + str(rank), "w") as file:
    print(os.environ["MASTER_PORT"], file=file)
print("rank", rank)
print("error", rank, file=sys.stderr)
"""
    assert run_together([f"{tmp_path}/", "--updates", "3"], 3, program=program(text)) == 0
    for rank in range(3):
        assert (tmp_path / str(rank)).read_text() == f"{rank} {rank} 3 3 127.0.0.1 1 --updates 3\n"
    assert len({(tmp_path / f"port{rank}").read_text() for rank in range(3)}) == 1
    printed = capfd.readouterr()
    assert printed.out == "rank 0\n"
    assert printed.err == "error 0\n"


@pytest.mark.parametrize("code", [2, 0])
def test_the_exit_code_is_the_first_ones(code):
    assert run_together([], 2, program=program(f"sys.exit({code})")) == code


def test_a_failure_of_another_alone_is_one_too(tmp_path):
    assert run_together([str(tmp_path)], 2, program=program(LAST.replace("sys.exit(2)", "sys.exit(0)"))) == 1


@pytest.mark.parametrize("code", [7, 2])
def test_another_process_that_fails_first_is_heard(code, tmp_path, capfd):
    assert run_together([str(tmp_path)], 2, program=program(LAST.replace("sys.exit(7)", f"sys.exit({code})"))) == 2
    assert capfd.readouterr().err == "left alone\nprocess 2 of 2:\nout of memory\n"


@pytest.mark.parametrize("hanging", [0, 1])
def test_those_that_hang_are_ended(hanging, monkeypatch):
    """With what they have started; when the first has ended, or another has failed."""
    monkeypatch.setattr("forkleft.processes._GRACE_SECONDS", 0.2)
    text = f"""
import subprocess
if rank == {hanging}:
    subprocess.run(["sleep", "600"])
sys.exit(rank)
"""
    begun = time.monotonic()
    assert run_together([], 2, program=program(text)) == (137 if hanging == 0 else 0)
    assert time.monotonic() - begun < 300


def test_no_process_is_left_if_one_cannot_be_started(tmp_path, monkeypatch):
    start, ids = subprocess.Popen, []

    def popen(*arguments, **settings):
        if ids:
            raise OSError("no more processes")
        ids.append(start(*arguments, **settings))
        return ids[0]

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="no more processes"):
        run_together([], 2, program=program("time.sleep(600)"))
    assert ids[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("times", [1, 2])
def test_a_signal_is_passed_on_and_a_second_ends_all(tmp_path, number, times):
    """To all processes, although only the one that started them was asked. They save for as long as they are let."""
    text = f"""
import signal
def hear(number, frame):
    open(f"{{words[0]}}/heard-{{rank}}-{{number}}", "a").write("once ")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hear)
open(f"{{words[0]}}/ready-{{rank}}-{{os.getpid()}}", "w").write("ready")
while not any(name.startswith(f"heard-{{rank}}") for name in os.listdir(words[0])):
    time.sleep(0.02)
time.sleep({600 if times == 2 else 0.2})
sys.exit({128 + number})
"""
    start = "import sys; from forkleft.processes import run_together; "
    start += f"sys.exit(run_together([{str(tmp_path)!r}], 2, program={program(text)!r}))"
    process = subprocess.Popen([sys.executable, "-c", start])
    wait_for(process, tmp_path, "ready-*")
    process.send_signal(number)
    wait_for(process, tmp_path, "heard-*")
    if times == 2:
        process.send_signal(number)
    assert process.wait(timeout=300) == 128 + number
    heard = {path.name: path.read_text() for path in tmp_path.glob("heard-*")}
    assert heard == {f"heard-{rank}-{int(number)}": "once " for rank in range(2)}
    for path in tmp_path.glob("ready-*"):
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.name.split("-")[2]), 0)


def wait_for(process, folder, pattern):
    """Until both processes have written such a file to its end."""
    while sum(path.stat().st_size > 0 for path in folder.glob(pattern)) < 2 and process.poll() is None:
        time.sleep(0.02)


@pytest.mark.slow
def test_a_demo_of_two_processes_says_everything_once(tmp_path, capfd):
    """And leaves what that of one leaves, which `test_demonstration.py` describes."""
    demo_program = (sys.executable, str(Path(__file__).with_name("demo_runs.py")))
    folder = tmp_path / "demo"
    assert run_together([str(folder)], 2, program=demo_program) == 0
    printed = capfd.readouterr().out
    for name in ("lab-chain-3", "lab-chain-4", "lab-chain-5"):
        assert printed.count(f"\n{name}: ") == 2
        for results in ("base", "trained"):
            assert len((folder / "results" / results / name / "records.jsonl").read_text().splitlines()) == 40
    assert printed.count("report: ") == 1
    assert run_together([str(folder)], 2, program=demo_program) == 2
    error = capfd.readouterr().err
    assert error.count(f"{folder} exists already; name a new folder") == 1


def test_the_demo_starts_itself_twice(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(demo, "run_together", lambda words, count: asked.append((words, count)) or 0)
    monkeypatch.delenv("RANK", raising=False)
    said = ["--updates", "3", "--student", "student-shifted", "--output", str(tmp_path / "new")]
    assert main(["--debug", "demo", *said]) == 0
    words = ["demo", "--output", str(tmp_path / "new"), "--student", "student-shifted", "--updates", "3", "--debug"]
    assert asked == [(words, 2)]
    assert main(["demo", "--output", str(tmp_path)]) == 2
    assert len(asked) == 1
    monkeypatch.setattr(demo, "run_together", lambda words, count: 2)
    with pytest.raises(SystemExit, match="2"):
        main(["demo"])
    assert "RANK" not in os.environ
