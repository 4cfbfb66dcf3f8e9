"""Signs that teaching does not work: rules over the rows of metrics.jsonl, each with what to do about it.

Most rules use the newest rows that together hold enough questions. So they notice a run that starts badly as well as a
run that breaks down later. A rule gives None, or a text for people.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import mean, variance
from typing import Any

MetricsRow = Mapping[str, float]

# Fewer questions than these may all be alike by chance: in a long run, which is checked often, and at its start.
_QUESTIONS, _FEWEST = 96, 32
_MOST = 0.5
# A larger share of cut references spoils what the others teach.
_REFERENCES_CUT = 0.1
# Right by chance, like a teacher whose answers the verifier cannot read.
_BY_CHANCE = 0.02
# KL is noisy, so its thirds are compared only after so many updates, and so many rows.
_KL_UPDATES, _KL_ROWS = 40, 12
# If accuracy rises by more than this, the student learns, whatever KL does: the questions still taught are harder.
_GAIN = 0.05

_ROUTES = {
    "route_ce": "both models are right on all of the last {count} questions, so that the teacher has nothing to teach: "
    "take harder questions",
    "route_leftopd": "the teacher is right on all of the last {count} questions and the student on none: if its "
    "answers look right in traces.jsonl (trace_steps: 10), the verifier does not find them, mend prompt_template or "
    "verifier; else let it write with more passes, or start with easier questions",
    "route_gold": "neither model is right on any of the last {count} questions, so that only references teach: look at "
    "traces.jsonl (trace_steps: 10), mend prompt_template or verifier if answers are right there, or take easier "
    "questions",
    "route_exclude": "only the student is right, on all of the last {count} questions, so that no update changes "
    "anything: take a stronger teacher, or look in traces.jsonl (trace_steps: 10) at why its answers count as wrong",
}


def signs(rows: Sequence[MetricsRow], known: Collection[str] = ()) -> dict[str, str]:
    """The signs in the rows of updates, by name. Known signs are not looked for again."""
    found = {name: rule(rows) for name, rule in RULES.items() if name not in known}
    return {name: text for name, text in found.items() if text is not None}


def new_signs(history: Sequence[Mapping[str, Any]], *, routed: bool) -> dict[str, str]:
    """The signs in the log of a run that it has not warned of yet. routed: False where routes decide nothing."""
    known = {row["warning"] for row in history if "warning" in row}
    if not routed:
        known.add("one_route")
    return signs([row for row in history if "loss" in row], known)


def responses_unfinished(rows: Sequence[MetricsRow]) -> str | None:
    """Most responses are empty, or were cut at the budget."""
    recent, count = _recent(rows)
    empty, cut = _mean(recent, "empty"), 1 - _mean(recent, "stopped")
    if not recent or empty + cut <= _MOST:
        return None
    return (
        f"of the last {count} responses {empty:.0%} are empty and {cut:.0%} were cut: if they are cut in "
        "mid-sentence, raise max_new_tokens; else the student does not know this form of question, check its chat "
        "template, family and mask token (forkleft generate shows what it writes)"
    )


def references_cut(rows: Sequence[MetricsRow]) -> str | None:
    """References are longer than the budget."""
    recent, count = _recent(rows)
    cut = sum(row["references_cut"] for row in recent)
    if not recent or cut <= _REFERENCES_CUT * count:
        return None
    return (
        f"of the last {count} questions {cut} have a reference that was cut, which teaches neither the answer nor "
        "where to stop: raise max_new_tokens, or leave those questions out"
    )


def one_route(rows: Sequence[MetricsRow]) -> str | None:
    """All questions are on one route."""
    recent, count = _recent(rows)
    whole = [name for name in _ROUTES if recent and sum(row[name] for row in recent) == count]
    return _ROUTES[whole[0]].format(count=count) if whole else None


def teacher_wrong(rows: Sequence[MetricsRow]) -> str | None:
    """The teacher is never right, or hardly ever."""
    recent, count = _recent(rows)
    right = round(count * _mean(recent, "teacher_accuracy"))
    if not recent or right > _BY_CHANCE * count:
        return None
    return (
        f"the teacher is right on {right} of the last {count} questions: look at its answers in traces.jsonl "
        "(trace_steps: 10); if they are right, mend verifier or prompt_template; if they are cut, raise "
        "teacher_max_new_tokens; else take easier questions or a stronger teacher"
    )


def kl_not_falling(rows: Sequence[MetricsRow]) -> str | None:
    """KL to the teacher has not fallen by more than its noise, and the student is not right more often either."""
    taught = [row for row in rows if "kl" in row]
    if len(taught) < _KL_ROWS or taught[-1]["step"] - taught[0]["step"] < _KL_UPDATES:
        return None
    third = len(taught) // 3
    first, last = taught[:third], taught[-third:]
    before, after = ([row["kl"] for row in part] for part in (first, last))
    fall, noise = mean(before) - mean(after), math.sqrt((variance(before) + variance(after)) / third)
    gain = _mean(last, "student_accuracy") - _mean(first, "student_accuracy")
    if fall > noise or gain > _GAIN:
        return None
    return (
        "the student's odds do not come closer to the teacher's: their distance (KL, in nats, 0 if they are the same) "
        f"was {mean(before):.3g} over updates {first[0]['step']} to {first[-1]['step']}, {mean(after):.3g} over "
        f"updates {last[0]['step']} to {last[-1]['step']}, with a noise of {noise:.2g}; nor is it right more often in "
        "training, written as rollout_order says: raise learning_rate, or lower it if the loss jumps; "
        "more questions an update, or a larger share of supervised positions (rho), make both steadier"
    )


RULES: dict[str, Callable[[Sequence[MetricsRow]], str | None]] = {
    rule.__name__: rule for rule in (responses_unfinished, references_cut, one_route, teacher_wrong, kl_not_falling)
}


def _recent(rows: Sequence[MetricsRow]) -> tuple[Sequence[MetricsRow], int]:
    """The newest rows that together have enough questions, and how many those are; no rows if there are too few.

    At the start of a run these are all rows, so that a short run is checked, too.
    """
    count = 0
    for start in reversed(range(len(rows))):
        count += int(rows[start]["questions"])
        if count >= _QUESTIONS:
            return rows[start:], count
    return (rows, count) if count >= _FEWEST else ([], 0)


def _mean(rows: Sequence[MetricsRow], name: str) -> float:
    """The mean over the questions of all rows."""
    return sum(row[name] * row["questions"] for row in rows) / (sum(row["questions"] for row in rows) or 1)
