"""The lab's held-out sets as benchmarks: `lab-chain-2` … `lab-chain-6`, `lab-choice-2` … `lab-choice-6`."""

from forkleft.evaluate.benchmarks import Benchmark, Item, ItemSet, item_set
from forkleft.evaluate.prompts import PLAIN
from forkleft.lab.questions import HELD_OUT_COUNT, HELD_OUT_SETS, held_out
from forkleft.verify import Verifier

# Six steps of eight characters, the marked answer and the stop token, and some room to go wrong in.
MAX_NEW_TOKENS = 64
_PREFIX = "lab-"


def lab_items(benchmark: Benchmark, count: int = HELD_OUT_COUNT) -> ItemSet:
    """The items of one of the lab's benchmarks. Raises ForkLeftError if there is no such set."""
    name = benchmark.name.removeprefix(_PREFIX)
    items = [
        Item(question.id, question.question, question.answer, question.solution, question.choices)
        for question in held_out(name, count)
    ]
    return item_set(benchmark, items, f"lab:{name}")


def lab_set(name: str, count: int = HELD_OUT_COUNT) -> ItemSet:
    """A held-out set by its name in the lab, such as `chain-4`. Raises ForkLeftError if there is no such set."""
    return lab_items(_benchmark(name), count)


def _benchmark(name: str) -> Benchmark:
    """How the questions of a held-out set are asked and judged."""
    written = name.startswith("chain")
    return Benchmark(
        f"{_PREFIX}{name}",
        HELD_OUT_COUNT,
        "generated" if written else "slot",
        Verifier("lab" if written else "choice"),
        PLAIN,
        "Apache-2.0",
        max_new_tokens=MAX_NEW_TOKENS,
        source=lab_items,
    )


LAB_BENCHMARKS = {benchmark.name: benchmark for benchmark in map(_benchmark, HELD_OUT_SETS)}
