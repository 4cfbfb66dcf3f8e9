import os
import signal
import subprocess
import sys

import pytest
import torch
from nodes import ENVIRONMENT, SECONDS, free_port

from forkleft.errors import ForkLeftError
from forkleft.train.lost import named_lost_processes

RESET = "[/x/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:48259: Connection reset by peer. This is\nmore"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(RESET),
        RuntimeError("[/x/gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 8000ms for recv operation"),
        torch.distributed.DistBackendError("NCCL communicator was aborted"),
        torch.distributed.DistNetworkError("failed to recv, got 0 bytes"),
    ],
    ids=["reset", "silent", "backend", "network"],
)
def test_a_lost_process_is_named_and_the_way_on(tmp_path, error):
    first = str(error).splitlines()[0]
    with pytest.raises(ForkLeftError) as raised, named_lost_processes(tmp_path):
        raise error
    said = str(raised.value)
    assert said.startswith("another process of this run has ended, or did not answer in time")
    assert first in said and "more" not in said
    assert said.endswith("start again; there is no checkpoint yet")


def test_other_errors_pass(tmp_path):
    for error in (
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        torch.OutOfMemoryError("CUDA"),
        KeyError("x"),
    ):
        with pytest.raises(type(error)) as raised, named_lost_processes(tmp_path):
            raise error
        assert raised.value is error


SILENT = """
import datetime, os, signal, torch, torch.distributed as dist
from pathlib import Path
from forkleft.train.lost import named_lost_processes

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
dist.barrier()
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
with named_lost_processes(Path("none")):
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_a_process_that_is_silent_is_given_up_after_the_time_limit():
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    one, frozen = (
        subprocess.Popen(
            [sys.executable, "-c", SILENT],
            env=os.environ | ENVIRONMENT | meeting | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    try:
        _, error = one.communicate(timeout=SECONDS)
    finally:
        for process in (one, frozen):
            process.send_signal(signal.SIGKILL)
        frozen.communicate()
    assert one.returncode == 1
    assert "ForkLeftError: another process of this run has ended, or did not answer in time (" in error
    assert "Timed out waiting" in error
