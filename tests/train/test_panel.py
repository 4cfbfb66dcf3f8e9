import io

import pytest
from rich.console import Console
from tiny import tiny_tokenizer

from forkleft.lab.tokenizer import build_tokenizer
from forkleft.objective.forks import Fork
from forkleft.train.panel import Panel, fork_words

LOGS = {
    "loss": 0.25,
    "student_accuracy": 0.484,
    "teacher_accuracy": 0.979,
    "route_ce": 20,
    "route_leftopd": 25,
    "route_gold": 2,
    "route_exclude": 1,
    "tokens_per_second": 1240.4,
}
FORK = Fork("q (LEFTOPD)", 13, (12, 1), written=3, student=((7, 0.41), (3, 0.38)), teacher=(7, 0.99))
WORDS = "at token 14 (after b1) the student was torn between 7 (41%) and 3 (38%); the teacher says 7 (99%)"


def lines(panel, width=80):
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    console.print(panel)
    found = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert all(len(line) <= width for line in found)
    return found


def full():
    panel = Panel(tiny_tokenizer())
    panel.take_fork(FORK)
    panel.take_figures(LOGS)
    return panel


def test_eighty_columns_hold_all_of_it_in_five_lines():
    panel = full()
    panel.take_evaluation("eval", 0.62, 25)
    assert lines(panel) == [
        "routes  20 both right, 25 teacher only, 2 neither, 1 student only",
        "right   student 48%, teacher 98%; eval 62.0% at update 25",
        "loss    0.250, 1,240 tokens a second",
        "fork    at token 14 (after b1) the student was torn between 7 (41%) and 3 (38%);",
        "        the teacher says 7 (99%)",
    ]
    # The next figures keep the evaluation.
    panel.take_figures(LOGS | {"student_accuracy": 0.6})
    assert lines(panel)[1] == "right   student 60%, teacher 98%; eval 62.0% at update 25"


def test_forty_columns_lose_no_word():
    text = " ".join(" ".join(lines(full(), width=40)).split())
    assert WORDS in text and "1 student only right student 48%, teacher 98% loss" in text


def test_it_does_not_jump_when_the_words_become_fewer():
    panel = full()
    before = len(lines(panel))
    panel.take_fork(Fork("q", 0, (), written=3, student=((7, 0.4), (3, 0.3)), teacher=(7, 1.0)))
    assert len(lines(panel)) == before
    # Another width is another beginning.
    narrow = len(lines(panel, width=30))
    assert narrow > before and len(lines(panel)) <= before


def test_before_the_first_figures_there_is_nothing():
    panel = Panel(tiny_tokenizer())
    assert lines(panel) == []
    panel.take_evaluation("eval", 0.5, 0)
    assert lines(panel) == []


def test_a_fork_in_words():
    assert fork_words(FORK, tiny_tokenizer()) == WORDS


@pytest.mark.parametrize(
    ("text", "shown"), [("\n", r"'\n'"), (" ", "' '"), ("<|im_end|>", "<|im_end|>"), ("[", "["), ("'", "'")]
)
def test_tokens_that_a_terminal_would_not_show_are_quoted(text, shown):
    tokenizer = build_tokenizer()
    (i,) = tokenizer.encode(text)
    fork = Fork("q", 0, (), written=i, student=((i, 0.5), (i, 0.5)), teacher=(i, 1.0))
    assert fork_words(fork, tokenizer).endswith(f"the teacher says {shown} (100%)")
