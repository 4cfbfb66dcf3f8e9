import re

import pytest

from forkleft.errors import ForkLeftError
from forkleft.trust import EVERYTHING, Trust, names_code, trusting_words

OWN = {"verifier": "my_package.judges:mine"}
REMOTE = {"trust_remote_code": True}


def test_a_verifier_of_a_file_must_be_allowed():
    message = (
        "r.yaml names the verifier my_package.judges:mine, whose code would run: expected that the command line "
        "allows it, too; read my_package.judges, and if you trust it add --trust-verifier"
    )
    for trust in (Trust(), Trust(remote_code=True), Trust(named=("my_package.judges:other",))):
        with pytest.raises(ForkLeftError, match=f"^{re.escape(message)}$"):
            trust.check(OWN, "r.yaml")
    for trust in (Trust(verifiers=True), Trust(named=("my_package.judges:mine",)), EVERYTHING):
        trust.check(OWN, "r.yaml")


def test_remote_code_of_a_file_must_be_allowed():
    message = "r.yaml says trust_remote_code: true, .*; read that code, and if you trust it add --trust-remote-code$"
    for trust in (Trust(), Trust(verifiers=True)):
        with pytest.raises(ForkLeftError, match=message):
            trust.check(REMOTE, "r.yaml")
    for trust in (Trust(remote_code=True), EVERYTHING):
        trust.check(REMOTE, "r.yaml")


def test_what_runs_no_code_needs_no_permission():
    for options in ({}, {"verifier": "math"}, {"verifier": None}, {"trust_remote_code": False}):
        Trust().check(options, "r.yaml")
        assert trusting_words(options) == []


def test_a_command_says_what_its_file_needs():
    assert trusting_words(OWN) == ["--trust-verifier"]
    assert trusting_words(OWN | REMOTE) == ["--trust-verifier", "--trust-remote-code"]


def test_functions_are_told_from_kinds():
    assert names_code("a:b") and names_code(":") and not names_code("math") and not names_code(None)
