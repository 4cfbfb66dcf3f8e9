import pytest

from forkleft.errors import ForkLeftError
from forkleft.verify import extract, verify, verify_batch


def test_lab_answers():
    assert verify("b=1+1=2;#2", "2", "lab")
    assert not verify("b=1+1=2;#3", "2", "lab")
    assert not verify("b=1+1=2;", "2", "lab")


def test_unknown_kind_names_what_exists():
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'lap'; there are lab"):
        verify("#2", "2", "lap")


def test_a_batch_keeps_its_order():
    assert verify_batch(["#2", "#3", "", "#4"], ["2", "2", "2", "4"], "lab") == [True, False, False, True]
    assert verify_batch([], [], "lab") == []
    with pytest.raises(ForkLeftError, match="an answer for each response, found 1 and 2"):
        verify_batch(["#2"], ["2", "3"], "lab")


def test_extract():
    assert extract("b=1+1=2;#2", "lab") == "2"
    assert extract("b=1+1=2;", "lab") is None
