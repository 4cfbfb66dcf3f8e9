"""Short forms of the endurance of `make faults`: enough to see something that is kept for every step."""

import mmap
import os
import subprocess
import sys

from faults import endurance
from faults.endurance import Course

PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}


def test_updates_leave_no_files_and_processes_behind(tmp_path):
    course = endurance.trained(tmp_path, 12)
    assert course.steps == list(range(1, 13))
    # Memory of so few updates says nothing yet.
    assert course.grown(float("inf")) == []


def test_verdicts_leave_nothing_behind():
    course = endurance.judged(300, batch=10)
    assert len(course.steps) == 30
    assert course.grown(float("inf")) == []


def test_what_is_kept_is_seen():
    kept, files = [], []

    def hoard(responses, answers):
        # A mapping of its own, because a process that has freed memory before would use that first.
        kept.append(mmap.mmap(-1, 1 << 17))
        kept[-1].write(b"x" * (1 << 17))
        files.append(os.open(os.devnull, os.O_RDONLY))

    try:
        course = endurance.judged(300, hoard, batch=1)
        memory, opened = course.grown(endurance.CALL_BYTES)
        assert memory.startswith("memory grows by ")
        assert opened.startswith("open files grow from ")
    finally:
        for file in files:
            os.close(file)


def test_the_memory_of_workers_counts():
    alone, with_worker = Course(), Course()
    alone.note(0)
    program = "import sys; x = b'x' * (1 << 25); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], **PIPES) as worker:
        worker.stdout.readline()
        with_worker.note(0)
        worker.stdin.close()
    assert with_worker.memory[0] - alone.memory[0] > 1 << 25
    assert with_worker.children[0] == alone.children[0] + 1
    course = Course([0, 1], [2**20, 2 * 2**20], [3, 4], [0, 2])
    assert course.said() == "1,048,576 bytes a step; at the end 2 MB, 4 files, 2 children"
    assert endurance.resident(str(worker.pid)) == 0


def test_the_slope_is_that_after_the_start():
    course = Course(list(range(8)), [0, 900, 1000, 1010, 1020, 1030, 1040, 1050], [3] * 8, [0] * 8)
    assert round(course.slope(), 6) == 10
    assert course.grown(11) == []
    assert course.grown(9) == ["memory grows by 10 bytes a step"]
