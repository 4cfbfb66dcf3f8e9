import json

import pytest

from forkleft.errors import ForkLeftError
from forkleft.report.play.settings import Settings, read_settings

LEAST = {"question": "1+1?", "max_new_tokens": 8, "verifier": "math"}
VERIFIERS = ("math", "lab")


def test_what_is_not_said_has_its_default():
    assert read_settings(LEAST, VERIFIERS) == Settings("1+1?", 8, "math")
    said = {"order": "random", "passes": 4, "threshold": 1, "temperature": 0.5, "seed": 3, "expected": "2"}
    assert read_settings(LEAST | said, VERIFIERS) == Settings("1+1?", 8, "math", **said)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"question": " \n"}, "the question is empty"),
        ({"question": 3}, "question must be a text"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be"),
        ({"verifier": "os:system"}, "verifier must be one of math, lab, found 'os:system'"),
        ({"verifier": None}, "verifier must be a text"),
        ({"decoding": "best"}, "decoding must be one of"),
        ({"order": "best"}, "order must be one of"),
        ({"order": ["random"]}, "order must be one of"),
        ({"passes": True}, "passes must be"),
        ({"passes": "4"}, "passes must be"),
        ({"threshold": "0.5"}, "threshold must be a number"),
        ({"threshold": 2}, "threshold is a probability"),
        ({"temperature": None}, "temperature must be a number"),
        ({"temperature": -1}, "temperature must be 0"),
        ({"temperature": json.loads("NaN")}, "temperature must be 0"),
        ({"seed": -1}, "seed must be a whole number from 0"),
        ({"seed": 2**53}, "seed must be"),
        ({"seed": 1.5}, "seed must be"),
        ({"expected": 5}, "expected must be a text"),
        ({"batch_size": 5}, "unknown setting 'batch_size'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(said, message):
    with pytest.raises(ForkLeftError, match=message):
        read_settings(LEAST | said, VERIFIERS)


def test_requests_that_are_none():
    with pytest.raises(ForkLeftError, match="expected the settings as a JSON object"):
        read_settings([1], VERIFIERS)
    with pytest.raises(ForkLeftError, match="the settings lack max_new_tokens, verifier"):
        read_settings({"question": "1+1?"}, VERIFIERS)
