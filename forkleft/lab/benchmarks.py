"""The lab's held-out sets as benchmarks: `lab-chain-2` … `lab-chain-6`, `lab-choice-2` … `lab-choice-6`."""

from forkleft.evaluate.benchmarks import Benchmark, Item, ItemSet, item_set
from forkleft.evaluate.prompts import PLAIN
from forkleft.lab.accuracy import MAX_NEW_TOKENS
from forkleft.lab.questions import HELD_OUT_COUNT, HELD_OUT_SETS, held_out

_PREFIX = "lab-"


def _benchmark(name: str) -> Benchmark:
    protocol, kind = ("generated", "lab") if name.startswith("chain") else ("slot", "choice")
    return Benchmark(
        f"{_PREFIX}{name}",
        HELD_OUT_COUNT,
        protocol,
        kind,
        PLAIN,
        "Apache-2.0",
        max_new_tokens=MAX_NEW_TOKENS,
        made=True,
    )


LAB_BENCHMARKS = {benchmark.name: benchmark for benchmark in map(_benchmark, HELD_OUT_SETS)}


def lab_items(benchmark: Benchmark, count: int = HELD_OUT_COUNT) -> ItemSet:
    """The items of one of the lab's benchmarks."""
    name = benchmark.name.removeprefix(_PREFIX)
    items = [Item(q.id, q.question, q.answer, q.solution, q.choices) for q in held_out(name, count)]
    return item_set(benchmark, items, f"lab:{name}")
