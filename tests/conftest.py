import os
from pathlib import Path

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def two_threads():
    """The suite is sized for two cores; more threads only fight over tiny tensors."""
    torch.set_num_threads(2)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of real benchmark data that FORKLEFT_DATA names; skips, or fails in CI, where it is not there."""
    folder = os.environ.get("FORKLEFT_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder)
    reason = f"needs benchmark data: FORKLEFT_DATA is {folder!r}, which is no folder"
    if os.environ.get("FORKLEFT_REQUIRE_DATA"):
        pytest.fail(reason)
    pytest.skip(reason)
