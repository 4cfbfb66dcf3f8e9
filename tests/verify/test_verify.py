import pytest

from forkleft.errors import ForkLeftError
from forkleft.verify import verify


def test_lab_answers():
    assert verify("b=1+1=2;#2", "2", "lab")
    assert not verify("b=1+1=2;#3", "2", "lab")
    assert not verify("b=1+1=2;", "2", "lab")


def test_unknown_kind_names_what_exists():
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'lap'; there are lab"):
        verify("#2", "2", "lap")
