"""Tests that need what a machine may lack."""

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip a test for want of something; where nothing may be missing, fail."""
    if os.environ.get("FORKLEFT_NO_SKIPS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
