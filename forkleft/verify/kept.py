"""Verdicts that are kept in a file, because some texts are judged again whenever a run starts.

The solutions of a data set are verified before every run, to see which of them state their answer. For mathematics that
takes minutes for 40,000, and always comes out the same: a verdict depends on verifier, response and answer alone. So it
is kept under a digest of these, of the code that judges and of the libraries that it uses.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from forkleft.digests import file_digest, json_digest
from forkleft.records import KeptRecords
from forkleft.verify import MATHEMATICAL, Verifier, verdicts

VERDICTS = "verdicts.jsonl"
_LIBRARIES = ("math-verify", "latex2sympy2_extended", "sympy")


def kept_verdicts(
    path: Path, verifier: Verifier, responses: Sequence[str], answers: Sequence[str], *, ids: Sequence[str]
) -> list[bool]:
    """`verifier.judge`, with the verdicts of mathematical verifiers kept in the file `path`.

    The others are quick, and the code of a function of the user may change.
    """
    if verifier.kind not in MATHEMATICAL or len(responses) != len(answers):
        return verifier.judge(responses, answers, ids=ids)
    records = KeptRecords(path, {"right": bool}, "verdicts")
    keys = [
        json_digest([verifier.kind, _judging_code(), response, answer])
        for response, answer in zip(responses, answers, strict=True)
    ]
    known = {key: record["right"] for key in keys if (record := records.get(key)) is not None}
    new = {key: k for k, key in enumerate(keys) if key not in known}
    found = verifier.judgements(
        [responses[k] for k in new.values()], [answers[k] for k in new.values()], ids=[ids[k] for k in new.values()]
    )
    # One that could not be judged within the bounds may be the next time.
    records.put({key: {"right": one.correct} for key, one in zip(new, found, strict=True) if one.judged})
    known |= zip(new, verdicts(found), strict=True)
    return [known[key] for key in keys]


@cache
def _judging_code() -> str:
    """A digest that changes with the code of the verifiers and the versions of their libraries."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return json_digest([[file_digest(file) for file in files], [version(name) for name in _LIBRARIES]])
