"""Traces as the fork viewer of a report needs them: rounded, cut to what is shown, and checked."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from forkleft.objective.fork_entropy import FORK_ENTROPY

# Tokens of a response that the viewer shows.
LONGEST = 4096
# Alternatives below this probability are left out.
_RARE = 0.0005
_TEXTS = ("id", "route", "order", "prompt", "expected", "student_extracted", "teacher_extracted", "teacher_answer")
_FLAGS = ("judged", "student_right", "teacher_right", "teacher_stopped", "stopped", "reference_cut")
_PER_TOKEN = ("commit_pass", "entropy", "confidence")
_PER_POSITION = ("kl", "contrast", "mask_entropy", "left_entropy", "left_confidence")
_ALTERNATIVES = ("student_alternatives", "teacher_alternatives")


def compact(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A row of traces.jsonl or showcase.jsonl for the viewer; None if it lacks what the viewer needs.

    Figures that the version which wrote the row did not keep yet are None. `cut`: the response is longer than shown.
    """
    try:
        tokens = [str(token) for token in row["tokens"]]
        if any(len(row[name]) != len(tokens) for name in _PER_TOKEN):
            return None
        shown: dict[str, Any] = {name: _text(row.get(name)) for name in (*_TEXTS, "reference")}
        shown |= {name: row.get(name) for name in _FLAGS}
        shown |= {"step": row["step"], "length": len(tokens), "cut": len(tokens) > LONGEST, "tokens": tokens[:LONGEST]}
        shown["commit_pass"] = [int(value) for value in row["commit_pass"][:LONGEST]]
        shown |= {name: _rounded(row[name][:LONGEST]) for name in ("entropy", "confidence")}
        starts = row.get("block_starts")
        shown["block_starts"] = None if starts is None else _starts(starts, len(tokens))
        return shown | _supervised(row)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        return None


def _starts(starts: Sequence[int], tokens: int) -> list[int]:
    begins = starts[0] == 0 if tokens else not starts
    if not begins or list(starts) != sorted({int(start) for start in starts}):
        raise ValueError("blocks that do not cover the response")
    return [start for start in starts if start < LONGEST]


def _supervised(row: Mapping[str, Any]) -> dict[str, Any]:
    positions = row.get("positions") or []
    if any(not 0 <= position < len(row["tokens"]) for position in positions):
        raise ValueError("positions outside the response")
    kept = [k for k, position in enumerate(positions) if position < LONGEST]
    shown: dict[str, Any] = {"positions": [positions[k] for k in kept]}
    for name in _PER_POSITION:
        values = row.get(name)
        shown[name] = None if values is None else _rounded([values[k] for k in kept])
    for name in _ALTERNATIVES:
        values = row.get(name)
        shown[name] = None if values is None else [_flat(values[k]) for k in kept]
    return shown


def _flat(alternatives: Sequence[Sequence[Any]]) -> list[Any]:
    """Tokens and probabilities in turns: brackets around each pair would be a third of a page's size."""
    return [part for token, p in alternatives if p >= _RARE for part in (str(token), round(float(p), 4))]


def _rounded(values: Sequence[float]) -> list[float]:
    if not all(math.isfinite(value) for value in values):
        raise ValueError("JSON has no such numbers")
    return [round(float(value), 3) for value in values]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def spread(rows: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the rows, evenly spaced, the first among them."""
    if len(rows) <= count:
        return list(rows)
    return [rows[k * len(rows) // count] for k in range(count)]


def right_in_use(rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Whether a question of the showcase was right before and after training, as the student writes in use.

    Empty if there is no before and after.
    """
    in_use = sorted((row for row in rows if row["order"] == "confidence"), key=lambda row: row["step"])
    return [bool(in_use[0]["student_right"]), bool(in_use[-1]["student_right"])] if len(in_use) > 1 else []


def good_example(traces: Iterable[tuple[int, Mapping[str, Any]]]) -> dict[str, int] | None:
    """Of traces, each with its number, the one that shows the method best, its fork, and where to see the teacher.

    It is on the teacher's route. Best is where student and teacher disagree most at a supervised position; more so if
    that is a fork, and if both had written the same until there: then it is where the student went wrong. A response
    that fits on a screen comes before a longer one. None if no trace is of that kind.
    """
    best: tuple[float, dict[str, int]] | None = None
    for number, trace in traces:
        needed = ("kl", *_ALTERNATIVES, "tokens")
        if trace["route"] != "LEFTOPD" or not all(trace[name] for name in needed):
            continue
        fork = max(range(len(trace["tokens"])), key=lambda i: trace["entropy"][i])
        for k, position in enumerate(trace["positions"]):
            student, teacher = trace["student_alternatives"][k], trace["teacher_alternatives"][k]
            if not student or not teacher or teacher[0] == trace["tokens"][position]:
                continue
            value = min(trace["kl"][k], 3.0) + 2.0 * (trace["entropy"][position] >= FORK_ENTROPY) + (position == fork)
            value += 3.0 * (trace["teacher_answer"] or "").startswith("".join(trace["tokens"][:position]))
            value -= len(trace["tokens"]) / 100
            if best is None or value > best[0]:
                best = value, {"trace": number, "fork": fork, "position": position}
    return None if best is None else best[1]
