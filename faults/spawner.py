"""Processes that run `forkleft`, in a moment: forks of one process that has imported everything.

    python -m faults.spawner        # reads a request a line, runs it, replies with lines: its pid, then its exit code

A request is a JSON object: `words` (after `forkleft`), `log` (a file for what it prints), and optionally `folder`,
whose files are watched: `events` is a file that gets a line for each time one of them is opened to be written, renamed
or removed; `at` and `nth` name such a line and which of its occurrences (from 0), at which the process sends itself
`signal`, before it happens.
"""

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forkleft.files import unfinished_mark

# A bound that only a process that hangs reaches, on a busy machine too.
SECONDS = 900.0
ROOT = Path(__file__).parents[1]
# Idle threads sleep, so that a busy machine does not wait for them.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
ENVIRONMENT |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
_OPERATIONS = {"os.rename": "rename", "os.remove": "remove", "os.rmdir": "remove", "os.mkdir": "make"}


class Spawner:
    """Starts such processes, one at a time."""

    def __init__(self) -> None:
        words = [sys.executable, "-m", "faults.spawner"]
        environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)
        self._heard = b""

    def __enter__(self) -> "Spawner":
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._output.close()

    @property
    def _output(self) -> Any:
        return self._process.stdout

    def start(self, words: Sequence[str], log: Path, **watch: Any) -> int:
        """Start `forkleft` with these words; its process id. watch: the other entries of a request."""
        assert self._process.stdin is not None
        request = {"words": list(words), "log": str(log), **watch}
        self._process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        self._process.stdin.flush()
        pid = self._line(SECONDS)
        assert pid is not None, "the spawner does not answer"
        return pid

    def wait(self, seconds: float = SECONDS) -> int | None:
        """The exit code, negative for a signal; None if the process still runs after so many seconds."""
        return self._line(seconds)

    def _line(self, seconds: float) -> int | None:
        while b"\n" not in self._heard:
            if not self._selector.select(seconds):
                return None
            piece = os.read(self._output.fileno(), 1 << 12)
            if not piece:
                raise RuntimeError("the process that starts others has ended")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return int(line)


def _serve() -> None:
    # Imported once, for all forks.
    import matplotlib.pyplot  # noqa: F401
    import torch

    import forkleft.cli.runs
    import forkleft.evaluate.evaluation
    import forkleft.lab.benchmarks
    import forkleft.report.studies
    import forkleft.study.runner
    import forkleft.train.adapt  # noqa: F401

    torch.set_num_threads(1)
    replies = os.dup(1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(replies)
            _run(request)
        os.write(replies, f"{pid}\n".encode())
        _, status = os.waitpid(pid, 0)
        os.write(replies, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _run(request: dict[str, Any]) -> None:
    """Be the process of a request."""
    from forkleft.cli.main import main

    # A group of its own and the usual signals, as a command has that a shell starts.
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    code: Any = 1
    try:
        if "folder" in request:
            _watch(request["folder"], request.get("events"), request.get("at"), request.get("nth", 0), request)
        code = main(request["words"])
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        if error := sys.exc_info()[1]:
            sys.excepthook(type(error), error, error.__traceback__)
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code)


def _watch(folder: str, events: str | None, at: str | None, nth: int, request: dict[str, Any]) -> None:
    """Write down what happens to the files of a folder, and send the signal of the request at its time."""
    note = None if events is None else os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seen, mark = 0, unfinished_mark()

    def hear(event: str, arguments: tuple) -> None:
        nonlocal seen
        if event == "open":
            name, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR):
                return
            operation = "write"
        elif event in _OPERATIONS:
            # Of a rename, the new name.
            name, operation = arguments[event == "os.rename"], _OPERATIONS[event]
        else:
            return
        if not isinstance(name, str | os.PathLike) or not str(name).startswith(folder):
            return
        # Files that are staged have the process in their names.
        said = f"{operation} {os.path.relpath(name, folder)}".replace(mark, "")
        if note is not None:
            os.write(note, f"{said}\n".encode())
        if said == at:
            seen += 1
            if seen == nth + 1:
                os.kill(os.getpid(), request["signal"])

    sys.addaudithook(hear)


if __name__ == "__main__":
    # A signal at the keyboard is for whoever started us; when they end, so do we.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve()
