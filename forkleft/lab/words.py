"""Word problems of one and two steps, from templates: questions within the reach of small language models.

    forkleft lab words --steps 2 --count 200 --split heldout > words-2.jsonl

The lab's chains are for the lab's own models; these are plain English, for a real one. Training and held-out problems
are disjoint by construction: the split of a problem is a hash of its text.
"""

import random
from collections.abc import Iterator
from itertools import islice

from forkleft.digests import text_digest
from forkleft.errors import ForkLeftError
from forkleft.lab.questions import Split

_NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix", "Grace", "Hugo", "Ivy", "Jonas", "Kate", "Leo")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "flowers", "marbles", "pencils", "shells", "stickers")
_HELD_OUT_ONE_IN = 4
# After so many draws, and so many for each problem that is asked for, we take it that there are no others.
_PATIENCE, _TRIES = 10_000, 100

# Question and solution; x, y and z are numbers, r and s results.
_ONE = (
    (
        "{name} has {x} {things} and gets {y} more. How many {things} does {name} have now?",
        "{name} has {x} + {y} = {r} {things} now.",
        lambda x, y, z: (x + y,),
    ),
    (
        "{name} has {x} {things} and gives away {y}. How many {things} does {name} have left?",
        "{name} has {x} - {y} = {r} {things} left.",
        lambda x, y, z: (x - y,),
    ),
    (
        "There are {y} boxes with {z} {things} in each. How many {things} are there in all?",
        "There are {y} * {z} = {r} {things} in all.",
        lambda x, y, z: (y * z,),
    ),
)
_TWO = (
    (
        "{name} has {x} {things}, gives away {y} and then gets {z} more. How many {things} does {name} have now?",
        "{name} has {x} - {y} = {r} {things} left. With {z} more, that makes {r} + {z} = {s}.",
        lambda x, y, z: (x - y, x - y + z),
    ),
    (
        "{name} has {x} {things} and buys {y} bags with {z} {things} in each. How many {things} does {name} have now?",
        "The bags have {y} * {z} = {r} {things}. With them {name} has {x} + {r} = {s}.",
        lambda x, y, z: (y * z, x + y * z),
    ),
    (
        "{name} has {x} {things}. {other} has {y} more than {name}. How many {things} do they have together?",
        "{other} has {x} + {y} = {r} {things}. Together they have {x} + {r} = {s}.",
        lambda x, y, z: (x + y, x + x + y),
    ),
)


def word_problems(count: int, steps: int, *, split: Split, seed: int = 0) -> list[dict[str, str]]:
    """`count` different problems of one or two steps: rows with id, question, answer and solution.

    Raises ForkLeftError for other numbers of steps, and if there are not so many.
    """
    if steps not in (1, 2):
        raise ForkLeftError(f"word problems have 1 or 2 steps, found {steps}")
    if count < 1:
        raise ForkLeftError(f"count must be at least 1, found {count}")
    found: dict[str, dict[str, str]] = {}
    for row in islice(_stream(steps, seed), _PATIENCE + count * _TRIES):
        if (int(row["id"][-12:], 16) % _HELD_OUT_ONE_IN == 0) == (split == "heldout"):
            found.setdefault(row["id"], row)
        if len(found) == count:
            return list(found.values())
    raise ForkLeftError(f"there are only about {len(found)} such problems of {steps} step(s), {count} were asked for")


def _stream(steps: int, seed: int) -> Iterator[dict[str, str]]:
    rng = random.Random(f"{seed}/words/{steps}")

    def below(bound: int) -> int:
        # As in `questions.py`: the one method whose sequence Python promises never to change.
        return int(rng.random() * bound)

    templates = _ONE if steps == 1 else _TWO
    while True:
        question, solution, results = templates[below(len(templates))]
        name, other = below(len(_NAMES)), below(len(_NAMES) - 1)
        numbers = {"x": 10 + below(30), "y": 2 + below(8), "z": 2 + below(8)}
        values = dict(zip("rs", results(**numbers), strict=False))
        words = {
            "name": _NAMES[name],
            "other": _NAMES[(name + 1 + other) % len(_NAMES)],
            "things": _THINGS[below(len(_THINGS))],
        }
        asked = question.format(**words, **numbers)
        yield {
            "id": f"words-{steps}-{text_digest(asked)[:12]}",
            "question": asked,
            "answer": str(list(values.values())[-1]),
            "solution": solution.format(**words, **numbers, **values),
        }
