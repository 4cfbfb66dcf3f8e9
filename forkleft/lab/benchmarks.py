"""The lab's held-out sets as benchmarks: `lab-chain-2` … `lab-chain-6`, `lab-choice-2` … `lab-choice-6`."""

from forkleft.evaluate.benchmarks import Benchmark, Item, ItemSet, Protocol, item_set
from forkleft.evaluate.prompts import PLAIN
from forkleft.lab.questions import HELD_OUT_COUNT, HELD_OUT_SETS, Question, held_out
from forkleft.verify import Verifier

# Six steps of eight characters, the marked answer and the stop token, and some room to go wrong in.
MAX_NEW_TOKENS = 64
_PREFIX = "lab-"


def lab_benchmark(name: str, protocol: Protocol) -> Benchmark:
    """How questions of the lab are asked and judged."""
    return Benchmark(
        name,
        HELD_OUT_COUNT,
        protocol,
        Verifier("lab" if protocol == "generated" else "choice"),
        PLAIN,
        "Apache-2.0",
        max_new_tokens=MAX_NEW_TOKENS,
        source=lab_items,
    )


def item_of(question: Question) -> Item:
    """A question of the lab as the item of a benchmark."""
    return Item(question.id, question.question, question.answer, question.solution, question.choices)


def lab_items(benchmark: Benchmark, count: int = HELD_OUT_COUNT) -> ItemSet:
    """The items of one of the lab's benchmarks."""
    name = benchmark.name.removeprefix(_PREFIX)
    return item_set(benchmark, map(item_of, held_out(name, count)), f"lab:{name}")


LAB_BENCHMARKS = {
    f"{_PREFIX}{name}": lab_benchmark(f"{_PREFIX}{name}", "generated" if name.startswith("chain") else "slot")
    for name in HELD_OUT_SETS
}
