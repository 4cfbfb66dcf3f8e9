"""One command in several processes on this machine, which find each other as under `torchrun`.

The first process has the terminal. What the others print is shown if one of them fails while the first still runs: the
first one knows no more than that it was left alone.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from forkleft.signals import at_first_signal, exit_code

PROGRAM = (sys.executable, "-m", "forkleft")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# glibc keeps large buffers instead of giving them back after every operation (docs/training.md, *On a CPU*).
KEEP_BUFFERS = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}
_POLL_SECONDS = 0.05
# When one has ended, the others have no more to do than to see it and to leave. Those that hang are not waited for.
_GRACE_SECONDS = 30.0


def run_together(words: Sequence[str], count: int, *, program: Sequence[str] = PROGRAM) -> int:
    """Run a command in `count` processes with one thread each, and return the exit code of the first; 1 if only another
    one has failed.

    words: the command and its arguments; program: what starts `forkleft`. The first SIGINT or SIGTERM is passed on to
    all, a second ends all at once.
    """
    together = dict.fromkeys(THREADS, "1") | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    environment = KEEP_BUFFERS | os.environ | together | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    processes: list[subprocess.Popen] = []
    asked: list[int] = []

    def pass_on(number: int) -> None:
        asked.append(number)
        for process in processes:
            process.send_signal(number)
        for other in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(other) is signal.SIG_DFL:
                signal.signal(other, end_at_once)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        _kill(processes)
        os._exit(exit_code(number))

    with tempfile.TemporaryDirectory() as folder, at_first_signal(pass_on):
        logs = [Path(folder, f"{rank}.log") for rank in range(count)]
        try:
            for rank, log in enumerate(logs):
                ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                processes.append(_started([*program, *words], environment | ranks, log if rank else None))
                if asked:
                    processes[-1].send_signal(asked[0])
            failed = _wait(processes)
        finally:
            _kill(processes)
        if failed and (said := logs[failed].read_text(encoding="utf-8", errors="replace")):
            print(f"process {failed + 1} of {count}:\n{said}", end="", file=sys.stderr)
    code = processes[0].returncode
    if code < 0:
        return exit_code(-code)
    return code or (1 if failed else 0)


def _started(words: Sequence[str], environment: dict[str, str], log: Path | None) -> subprocess.Popen:
    """A process that prints into a file, or as we do."""
    with open(log or os.devnull, "wb") as file:
        output = None if log is None else file
        # Ctrl-C reaches a whole process group. Each process gets its signal from us, once: a second would end it before
        # it has saved.
        return subprocess.Popen(
            words, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )


def _wait(processes: Sequence[subprocess.Popen]) -> int:
    """Wait for all processes. Returns the number of one that failed while the first still ran; else 0."""
    failed, deadline = 0, float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        first_runs = processes[0].poll() is None
        if not failed and first_runs:
            failed = next((rank for rank, process in enumerate(processes) if process.poll()), 0)
        if (failed or not first_runs) and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE_SECONDS
        time.sleep(_POLL_SECONDS)
    return failed


def _kill(processes: Sequence[subprocess.Popen]) -> None:
    """End what still runs, and what it has started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
