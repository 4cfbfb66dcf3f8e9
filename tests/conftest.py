import os
import signal
from pathlib import Path

import pytest
import torch
from exact import float64_throughout
from skips import skip_or_fail

float64_throughout()
# Shells start what runs in the background with this signal ignored, and so would all that tests start and send it to.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["browser"]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """On tiny tensors more threads only wait for each other, on a busy machine for minutes.

    `.ci/run` runs the oracles with another number, too: nothing may depend on it.
    """
    torch.set_num_threads(int(os.environ.get("FORKLEFT_TEST_THREADS", "1")))


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the benchmarks' files, which are not part of the repository."""
    folder = os.environ.get("FORKLEFT_DATA")
    if folder:
        return Path(folder)
    skip_or_fail("FORKLEFT_DATA names no folder with the benchmarks' files")
