import os
import signal
import subprocess
import sys
import time

import pytest

from forkleft.cli import demo, main
from forkleft.processes import run_together


def program(text):
    """A program in place of `forkleft`: it knows its rank and its words."""
    head = "import os, sys, time; rank, words = int(os.environ['RANK']), sys.argv[1:]\n"
    return (sys.executable, "-c", head + text)


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
def test_the_exit_code_is_the_first_ones(code, capfd):
    """A mistake of the user is found by all and told once."""
    assert run_together([], 2, program=program(f"print('mistake', file=sys.stderr); sys.exit({code})")) == code
    assert capfd.readouterr().err == "mistake\n"


def test_another_process_that_fails_first_is_heard(tmp_path, capfd):
    """The first ends when the other is seen to be gone."""
    text = """
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
    assert run_together([str(tmp_path)], 2, program=program(text)) == 2
    assert capfd.readouterr().err == "left alone\nout of memory\n"


def test_those_that_hang_are_ended(monkeypatch):
    monkeypatch.setattr("forkleft.processes._GRACE_SECONDS", 0.2)
    begun = time.monotonic()
    assert run_together([], 2, program=program("time.sleep(600 * rank)")) == 0
    assert time.monotonic() - begun < 300


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once(tmp_path, number):
    """To all processes, although only the one that started them was asked."""
    text = """
import signal
def hear(number, frame):
    open(f"{words[0]}/heard-{rank}-{number}", "a").write("once ")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, hear)
open(f"{words[0]}/ready-{rank}", "w").close()
while not any(name.startswith(f"heard-{rank}") for name in os.listdir(words[0])):
    time.sleep(0.02)
time.sleep(0.2)
sys.exit(128 + number)
"""
    text = text.replace("sys.exit(128 + number)", f"sys.exit({128 + number})")
    start = "import sys; from forkleft.processes import run_together; "
    start += f"sys.exit(run_together([{str(tmp_path)!r}], 2, program={program(text)!r}))"
    process = subprocess.Popen([sys.executable, "-c", start])
    while len(list(tmp_path.glob("ready-*"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert {path.name: path.read_text() for path in tmp_path.glob("heard-*")} == {
        f"heard-{rank}-{int(number)}": "once " for rank in range(2)
    }


def test_the_demo_starts_itself_twice(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(demo, "run_together", lambda words, count: asked.append((words, count)) or 0)
    monkeypatch.delenv("RANK", raising=False)
    assert main(["demo", "--updates", "3", "--student", "student-shifted", "--output", str(tmp_path / "new")]) == 0
    words = ["demo", "--output", str(tmp_path / "new"), "--student", "student-shifted", "--updates", "3"]
    assert asked == [(words, 2)]
    monkeypatch.setattr(demo, "run_together", lambda words, count: 2)
    with pytest.raises(SystemExit, match="2"):
        main(["demo"])
    assert "RANK" not in os.environ
