"""The lab's questions: chains of assignments modulo 10, answered step by step.

    question  a=7;b=a+5;c=b-a;c?
    solution  b=7+5=2;c=2-7=5;#5        every step is eight characters, `#` marks the final answer
    answer    5

    forkleft lab sample --steps 4 --count 3 --seed 1

Training and held-out questions are disjoint by construction: a question's split is a hash of its first two steps, so
a held-out chain shares no beginning of two steps or more with any training chain, whatever the seeds.

All random numbers come from `random.Random.random()`, the one method whose sequence Python promises never to change. So
a seed gives the same questions on every platform and Python version.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from forkleft.digests import text_digest
from forkleft.errors import ForkLeftError

Split = Literal["train", "heldout"]
Form = Literal["chain", "choice"]

OPERATORS = "+-*"
EQUAL_SHARES = (1.0, 1.0, 1.0)
MIN_STEPS, MAX_STEPS = 2, 6
LETTERS = "ABCD"
ANSWER_MARK = "#"

_VARIABLES = "abcdefg"
_HELD_OUT_ONE_IN = 10
_SPLIT_PREFIX = len("a=7;b=a+5;c=b-a;")
# After this many known questions in a row, we take it that there are no others.
_PATIENCE = 10_000

_HELD_OUT_SETS: dict[str, tuple[Form, int]] = {
    f"{form}-{steps}": (form, steps) for form in ("chain", "choice") for steps in range(MIN_STEPS, MAX_STEPS + 1)
}
HELD_OUT_SETS = tuple(_HELD_OUT_SETS)
HELD_OUT_COUNT = 500
_HELD_OUT_SEED = 20261


@dataclass(frozen=True)
class Question:
    """One verifiable question. `answer` is a digit, or a letter of `choices` in the multiple-choice form."""

    id: str
    question: str
    solution: str
    answer: str
    steps: int
    choices: tuple[str, ...] | None = None

    @property
    def prompt(self) -> str:
        """The text of the user turn: the question, and its options, if it has any, each on a line."""
        if self.choices is None:
            return self.question
        return "\n".join([self.question, *(f"{a}. {text}" for a, text in zip(LETTERS, self.choices, strict=True))])


def questions(
    count: int,
    steps: int,
    *,
    split: Split,
    seed: int,
    shares: tuple[float, ...] = EQUAL_SHARES,
    form: Form = "chain",
) -> list[Question]:
    """`count` different questions of `steps` steps, a function of the arguments alone.

    `shares` weighs the operators `+`, `-`, `*` in each step. Raises ForkLeftError for a step count the generator cannot
    make, for unusable shares, and when fewer than `count` different questions exist.
    """
    check_steps(steps)
    check_shares(shares)
    if count < 1:
        raise ForkLeftError(f"count must be at least 1, found {count}")
    # The form is not part of the key: a seed gives the same chains with and without options.
    rng = random.Random(f"{seed}/{split}/{steps}/chain")
    found: dict[str, Question] = {}
    misses = 0
    while len(found) < count:
        question = _draw(rng, steps, split, shares, form)
        misses = misses + 1 if question.id in found else 0
        found.setdefault(question.id, question)
        if misses > _PATIENCE:
            raise ForkLeftError(
                f"only about {len(found)} different {split} questions of {steps} steps exist with operator shares "
                f"{shares}, {count} were asked for; ask for fewer, or for more steps"
            )
    return list(found.values())


def training_stream(
    seed: int, *, shares: tuple[float, ...] = EQUAL_SHARES, choice_share: float = 0.0, guessed: float = 0.0
) -> Iterator[Question]:
    """An endless stream of training questions: chains of all step counts alike, and a share of multiple-choice ones.

    Multiple-choice questions have two steps, because they are answered at once: models of the lab's size cannot do more
    without writing. Questions may repeat. guessed: the share of the `*` steps whose result is a random digit, from
    which the chain goes on. What follows tells such a result, what stands before it does not.
    """
    check_shares(shares)
    if not 0 <= guessed <= 1:
        raise ForkLeftError(f"expected a share of guessed products from 0 to 1, found {guessed}")
    rng = random.Random(f"{seed}/stream")
    while True:
        if rng.random() < choice_share:
            yield _draw(rng, MIN_STEPS, "train", shares, "choice", guessed)
        else:
            steps = MIN_STEPS + _below(rng, MAX_STEPS - MIN_STEPS + 1)
            yield _draw(rng, steps, "train", shares, "chain", guessed)


def held_out(name: str, count: int = HELD_OUT_COUNT) -> list[Question]:
    """The fixed held-out set `chain-2` … `chain-6` or `choice-2` … `choice-6`; all operators in equal shares."""
    if name not in _HELD_OUT_SETS:
        raise ForkLeftError(f"no held-out set {name!r}; there are {', '.join(HELD_OUT_SETS)}")
    form, steps = _HELD_OUT_SETS[name]
    return questions(count, steps, split="heldout", seed=_HELD_OUT_SEED, form=form)


def split_of(question: str) -> Split:
    """The split a chain belongs to, read off its first two steps."""
    digest = hashlib.sha256(question[:_SPLIT_PREFIX].encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") % _HELD_OUT_ONE_IN == 0 else "train"


def check_steps(steps: int) -> None:
    """Raise ForkLeftError unless chains of `steps` steps exist."""
    if not MIN_STEPS <= steps <= MAX_STEPS:
        raise ForkLeftError(f"chains have {MIN_STEPS} to {MAX_STEPS} steps, found {steps}")


def check_shares(shares: tuple[float, ...]) -> None:
    """Raise ForkLeftError unless `shares` weighs each of the three operators."""
    if len(shares) != len(OPERATORS) or min(shares) < 0 or not 0 < sum(shares) < float("inf"):
        raise ForkLeftError(
            f"operator shares are {len(OPERATORS)} weights for {', '.join(OPERATORS)}, none negative and not all zero; "
            f"found {shares}"
        )


def _draw(
    rng: random.Random, steps: int, split: Split, shares: tuple[float, ...], form: Form, guessed: float = 0.0
) -> Question:
    chain, solution, result = _chain(rng, steps, shares, guessed)
    while split_of(chain) != split:
        chain, solution, result = _chain(rng, steps, shares, guessed)
    # The chain decides everything else, so that an id means the same question under every seed.
    rng = random.Random(chain)
    id_ = f"lab-{form}-{steps}-{text_digest(chain)[:12]}"
    if form == "chain":
        return Question(id_, chain, f"{solution}{ANSWER_MARK}{result}", str(result), steps)
    options = [result]
    while len(options) < len(LETTERS):
        digit = _below(rng, 10)
        if digit not in options:
            options.append(digit)
    place = _below(rng, len(LETTERS))
    options[0], options[place] = options[place], options[0]
    letter = LETTERS[place]
    return Question(id_, chain, f'"answer": "{letter}"', letter, steps, tuple(str(digit) for digit in options))


def _chain(rng: random.Random, steps: int, shares: tuple[float, ...], guessed: float) -> tuple[str, str, int]:
    """A random chain: its question, the steps of its solution, and the value of its last variable."""
    values = [_below(rng, 10)]
    question, solution = [f"a={values[0]};"], []
    for step in range(1, steps + 1):
        operator = _weighted(rng, shares)
        previous = (_VARIABLES[step - 1], values[step - 1])
        earlier = _below(rng, step)
        digit = _below(rng, 10)
        other = (_VARIABLES[earlier], values[earlier]) if rng.random() < 0.5 else (str(digit), digit)
        (left, x), (right, y) = (previous, other) if rng.random() < 0.5 else (other, previous)
        value = {"+": x + y, "-": x - y, "*": x * y}[operator] % 10
        # No draw where nothing is guessed: the questions of a seed stay what they are.
        if guessed and operator == "*" and rng.random() < guessed:
            value = _below(rng, 10)
        name = _VARIABLES[step]
        question.append(f"{name}={left}{operator}{right};")
        solution.append(f"{name}={x}{operator}{y}={value};")
        values.append(value)
    question.append(f"{_VARIABLES[steps]}?")
    return "".join(question), "".join(solution), values[-1]


def _below(rng: random.Random, bound: int) -> int:
    return int(rng.random() * bound)


def _weighted(rng: random.Random, shares: tuple[float, ...]) -> str:
    mark = rng.random() * sum(shares)
    for operator, share in zip(OPERATORS, shares, strict=True):
        mark -= share
        if mark < 0:
            return operator
    return max(zip(shares, OPERATORS, strict=True))[1]  # rounding left the mark at the very end
