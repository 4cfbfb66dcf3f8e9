"""Runs that are spread over processes and "nodes" of this machine, as torchrun starts them."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parent
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS.parent))), "OMP_NUM_THREADS": "1"}
# Enough on a machine that is busy with other things: what is bounded here is that a run ends at all.
SECONDS = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_nodes(nodes: int, words: Sequence[str], *, per_node: int = 1, cwd: Path | None = None) -> list[tuple[int, str]]:
    """Run a program under one torchrun for each node; the exit code and the standard error of each.

    Raises subprocess.TimeoutExpired if one of them does not end.
    """
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "test"]
    # What `torchrun` runs; its name is not on every path.
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc-per-node", str(per_node)]
    launch += [*meet, "--local-addr", "127.0.0.1"]
    started = [
        subprocess.Popen(
            [*launch, *words],
            env=os.environ | ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            start_new_session=True,
        )
        for _ in range(nodes)
    ]
    try:
        errors = [node.communicate(timeout=SECONDS)[1] for node in started]
    finally:
        for node in started:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
    return [(node.returncode, error) for node, error in zip(started, errors, strict=True)]
