"""Made-up runs that reports are made of: every number and word in them is known."""

import json
from pathlib import Path

BLOCK = 8
HOSTILE = ["<script>", "window.pwned = 1", "</script>", "<!--", "<img src=x onerror=window.pwned=1>", "&lt;b&gt;"]


def made_up_trace(number=0, *, tokens=24, route="LEFTOPD", step=1, order=None, **changes):
    """A response in blocks of eight, each written from right to left; two supervised positions in each block."""
    positions = [i for i in range(tokens) if i % BLOCK in (2, 5)]
    trace = {
        "step": step,
        "id": f"q{number}",
        "route": route,
        "prompt": f"<|user|>question {number}?<|assistant|>",
        "expected": "4",
        "judged": True,
        "student_right": route in ("CE", "EXCLUDE"),
        "student_extracted": "2",
        "teacher_right": route in ("CE", "LEFTOPD"),
        "teacher_extracted": "4",
        "teacher_answer": "so it is 4",
        "teacher_stopped": True,
        "reference": "it is 4",
        "reference_cut": False,
        "tokens": [f"w{i}" for i in range(tokens)],
        "commit_pass": [BLOCK - i % BLOCK for i in range(tokens)],
        "block_starts": list(range(0, tokens, BLOCK)),
        "entropy": [1.5 if i % BLOCK == BLOCK - 1 else 0.02 * (i % BLOCK) for i in range(tokens)],
        "confidence": [0.9 - 0.01 * (i % BLOCK) for i in range(tokens)],
        "stopped": True,
        "positions": positions,
        "student_alternatives": [[(f"w{i}", 0.6), ("x", 0.3), ("y", 0.0)] for i in positions],
        "teacher_alternatives": [[("t", 0.7), (f"w{i}", 0.2)] for i in positions] if route == "LEFTOPD" else None,
        "kl": [0.25 + 0.01 * i for i in positions] if route == "LEFTOPD" else None,
        "contrast": [0.4 + 0.01 * i for i in positions],
        "mask_entropy": [1.0 for i in positions],
        "left_entropy": [0.6 - 0.01 * i for i in positions],
        "left_confidence": [0.6 for i in positions],
    }
    return trace | ({"order": order} if order else {}) | changes


def made_up_metrics(step, **changes):
    return {
        "step": step,
        "loss": 1 / step,
        "questions": 8,
        "student_accuracy": 0.5,
        "teacher_accuracy": 1.0,
        "route_ce": 4,
        "route_leftopd": 4,
        "route_gold": 0,
        "route_exclude": 0,
        "loss_ce": 0.1,
        "loss_leftopd": 0.2,
        "kl": 0.3,
        "rank_loss": 0.1,
        "left_entropy": 0.2,
        "response_tokens": 24.0,
        "seconds_rollout": 2.0,
        "seconds_backward": 1.0,
    } | changes


def made_up_run(folder: Path, *, traces=None, updates=3, finished=True, recipe=None):
    """A folder as `forkleft train` leaves it."""
    folder.mkdir(parents=True)
    (folder / "forkleft.json").write_text(json.dumps({"rollout_order": "high_entropy", "max_steps": updates}))
    said = {"student": "lab:student-block", "teacher": "lab:teacher-strong", "max_steps": updates, "verifier": "lab"}
    (folder / "recipe.yaml").write_text(json.dumps(said | (recipe or {})))
    rows = [made_up_metrics(step) for step in range(1, updates + 1)]
    rows += (
        [{"step": step, "eval_accuracy": 0.4 + step / 10, "eval_count": 50} for step in (1, updates)] if rows else []
    )
    write_rows(folder / "metrics.jsonl", rows)
    write_rows(
        folder / "traces.jsonl",
        [made_up_trace(k, route=r) for k, r in enumerate(("LEFTOPD", "CE", "GOLD", "EXCLUDE"))]
        if traces is None
        else traces,
    )
    shown = [
        made_up_trace(k, route=None, step=step, order=order, positions=[], student_right=step > 0 and k == 1)
        for step in (0, updates)
        for order in ("high_entropy", "confidence")
        for k in range(2)
    ]
    write_rows(folder / "showcase.jsonl", shown)
    if finished:
        (folder / "README.md").write_text("# card")
    return folder


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
