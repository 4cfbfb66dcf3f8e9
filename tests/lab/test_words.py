import json
import re

import pytest

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.lab.words import word_problems
from forkleft.verify import Verifier


@pytest.mark.parametrize("steps", [1, 2])
def test_solutions_are_right_and_verify(steps):
    rows = word_problems(120, steps, split="train")
    assert len({row["id"] for row in rows}) == len({row["question"] for row in rows}) == 120
    for row in rows:
        calculations = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", row["solution"])
        assert len(calculations) == steps
        for left, operator, right, result in calculations:
            x, y = int(left), int(right)
            assert int(result) == {"+": x + y, "-": x - y, "*": x * y}[operator] >= 0
        assert calculations[-1][-1] == row["answer"]
        assert "{" not in row["question"] + row["solution"]
    verdicts = Verifier.of("math").judge([row["solution"] for row in rows], [row["answer"] for row in rows])
    assert all(verdicts)


def test_splits_are_disjoint_and_seeds_repeat():
    train, held_out = (word_problems(200, 2, split=split) for split in ("train", "heldout"))
    assert not {row["id"] for row in train} & {row["id"] for row in held_out}
    assert word_problems(200, 2, split="train") == train
    assert word_problems(200, 2, split="train", seed=1) != train


def test_bad_numbers():
    with pytest.raises(ForkLeftError, match="1 or 2 steps, found 3"):
        word_problems(1, 3, split="train")
    with pytest.raises(ForkLeftError, match="count must be at least 1"):
        word_problems(0, 1, split="train")


def test_the_command(capsys):
    assert main(["lab", "words", "--steps", "2", "--count", "2", "--split", "heldout"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == word_problems(2, 2, split="heldout")
