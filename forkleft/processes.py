"""One command in several processes on this machine, which find each other as under `torchrun`.

The first process has the terminal. What the others print is shown only if one of them is the first to fail: the first
process then knows no more than that it was left alone.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from forkleft.signals import at_first_signal, exit_code

PROGRAM = (sys.executable, "-m", "forkleft")
_POLL_SECONDS = 0.05
# When the first has ended, the others have no more to do than to leave. Those that hang are not waited for.
_GRACE_SECONDS = 10.0
# glibc keeps large buffers instead of giving them back after every operation (docs/training.md, *On a CPU*).
KEEP_BUFFERS = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "8589934592",
    "MALLOC_TOP_PAD_": "67108864",
}


def run_together(words: Sequence[str], count: int, *, program: Sequence[str] = PROGRAM) -> int:
    """Run a command in `count` processes with one thread each, and return the exit code of the first.

    words: the command and its arguments; program: what starts `forkleft`. SIGINT and SIGTERM are passed on to all.
    """
    together = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    environment = KEEP_BUFFERS | os.environ | together | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port()}
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{rank}.log") for rank in range(count)]
        processes: list[subprocess.Popen] = []
        for rank, log in enumerate(logs):
            with log.open("wb") as file:
                output = file if rank else None
                process = subprocess.Popen(
                    [*program, *words],
                    env=environment | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    # Ctrl-C reaches a whole process group. Each gets its signal from us, once: a second would end it
                    # before it has saved.
                    process_group=0,
                )
            processes.append(process)

        def pass_on(number: int) -> None:
            for process in processes:
                process.send_signal(number)

        with at_first_signal(pass_on):
            failed = _wait(processes)
        # All processes find a mistake of the user, and the first one has told it.
        if failed and processes[failed].returncode != processes[0].returncode:
            print(logs[failed].read_text(encoding="utf-8", errors="replace"), end="", file=sys.stderr)
    code = processes[0].returncode
    return exit_code(-code) if code < 0 else code


def _wait(processes: Sequence[subprocess.Popen]) -> int:
    """Wait for all processes. Returns the number of one that failed while the first still ran; else 0."""
    failed = 0
    while processes[0].poll() is None:
        failed = failed or next((rank for rank, process in enumerate(processes) if process.poll()), 0)
        time.sleep(_POLL_SECONDS)
    for process in processes:
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return failed


def _free_port() -> str:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])
