"""Tests that need what a machine may lack, and cases that only `.ci/run` tries."""

import os
from functools import partial
from typing import NoReturn

import pytest

# A case of a parametrised test that is tried with the slow tests.
slow = partial(pytest.param, marks=pytest.mark.slow)


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test for want of something; where nothing may be missing, fail."""
    if os.environ.get("FORKLEFT_NO_SKIPS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
