"""The evaluations of a run, from the rows of its metrics.jsonl."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

_EVALUATION = re.compile(r"eval_(?:(.+)_)?accuracy")


def evaluated(logged: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Accuracy in the evaluations of a run by update, for each set of questions that it was evaluated on."""
    found: dict[str, dict[int, float]] = {}
    for row in logged:
        for name in row:
            if evaluation := _EVALUATION.fullmatch(name):
                label = f"held-out {evaluation[1]}" if evaluation[1] else "held-out"
                found.setdefault(label, {})[row["step"]] = row[name]
    return found


def items_of(logged: Sequence[Mapping[str, Any]], label: str) -> dict[int, int]:
    """How many questions each of these evaluations had, by update, where that was noted. label: as in `evaluated`."""
    name = label.removeprefix("held-out").strip()
    name = f"eval_{name}_count" if name else "eval_count"
    return {row["step"]: row[name] for row in logged if isinstance(row.get(name), int) and row[name] > 0}
