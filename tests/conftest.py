import os
import shutil
from pathlib import Path

import pytest
import torch
from exact import float64_throughout

float64_throughout()


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
    missing("FORKLEFT_DATA names no folder with the benchmarks' files")


@pytest.fixture(scope="session")
def browser():
    """Chromium of the system, without a window; Playwright downloads none."""
    path = shutil.which("chromium")
    if path is None:
        missing("there is no chromium on the path, in which pages are tried")
    # Loads much, and most tests need no browser.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def missing(reason: str) -> None:
    """Skip a test for want of something; where nothing may be missing, fail."""
    if os.environ.get("FORKLEFT_NO_SKIPS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
