"""2,500 mathematical responses through two worker processes, after their start, judged in both ways.

The responses are the reference solutions of GSM8K (training and test) and MATH500, first with their own answers, then
with answers of other questions, which takes longer because every way to be equal is tried. No pair occurs twice. The
files are read from the folder FORKLEFT_DATA; without it there are no rows, and a message says so.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.harness import Result
from forkleft.evaluate.benchmarks import read_items
from forkleft.verify import math, opdlm
from forkleft.verify.pool import Pool

# Every fourth of 10,000.
COUNT, EVERY, WORKERS, SECONDS, COMPARED = 2500, 4, 2, 15, 250
FILES = ("math500.jsonl", "gsm8k_test.jsonl", "gsm8k_train.jsonl.gz")


def run() -> list[Result]:
    """The verifier's rows of the table."""
    folder = os.environ.get("FORKLEFT_DATA")
    if not folder:
        print("verify: not measured, since FORKLEFT_DATA names no folder with GSM8K and MATH500", file=sys.stderr)
        return []
    pairs, own = _pairs(Path(folder))
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time-outs are off
    return [row for kind, module in (("math", math), ("opdlm", opdlm)) for row in _rows(kind, module.judge, pairs, own)]


def _rows(
    kind: str, judge: Callable[[str, str], tuple[bool, str | None]], pairs: Sequence[tuple[str, str]], own: int
) -> list[Result]:
    requests = [(kind, *pair) for pair in pairs]
    pool = Pool(WORKERS)
    compared = slice(None, None, COUNT // COMPARED)
    start = time.perf_counter()
    alone = [(*judge(*pair), True) for pair in pairs[compared]]
    alone_seconds = time.perf_counter() - start
    assert pool.judge(requests[compared]) == alone
    start = time.perf_counter()
    pool.judge(requests[compared])
    share = alone_seconds / (time.perf_counter() - start)
    start = time.perf_counter()
    judged = pool.judge(requests)
    used = (time.perf_counter() - start) / SECONDS
    pool.close()
    wrong = [pair[0][-60:] for pair, (correct, *_) in zip(pairs[:own], judged[:own], strict=True) if not correct]
    assert not wrong, f"judged wrong with their own answers: {wrong}"
    return [
        Result(f"verify {kind}: {COUNT:,} responses on two workers / {SECONDS} s", used, "<= 1", (used, used)),
        Result(f"verify {kind}: in this process / two workers", share, None, (share, share)),
    ]


def _pairs(folder: Path) -> tuple[list[tuple[str, str]], int]:
    """Responses with an expected answer each, and how many of them have their own."""
    solved = [
        (f"{item.solution}\n\\boxed{{{item.answer}}}", item.answer)
        for name in FILES
        for item in read_items(folder / name)
    ]
    crossed = [(response, answer) for (response, _), (_, answer) in pairwise(solved)]
    return (solved + crossed)[: COUNT * EVERY : EVERY], len(solved[::EVERY])
