import pytest

from forkleft.evaluate.prompts import CHOICE, LIVEMATHBENCH, LIVEMATHBENCH_CHINESE, MATH, PLAIN, letters_of, user_turn


@pytest.mark.parametrize(
    ("template", "turn"),
    [
        (MATH, "1+1?\nPlease reason step by step, and put your final answer within \\boxed{}."),
        (
            CHOICE,
            '1+1?\nPlease show your choice in the answer field with only the choice letter, e.g., "answer": "C".',
        ),
        (
            LIVEMATHBENCH,
            "Here is a math question, please reasoning step by step, and put your answer in \\boxed{}.\n1+1?\n",
        ),
        (LIVEMATHBENCH_CHINESE, "下面是一个数学问题，请逐步推理，并把最终答案放置于\\boxed{}中。\n1+1?\n"),
        (PLAIN, "1+1?"),
    ],
)
def test_the_wording(template, turn):
    assert user_turn(template, "1+1?") == turn


def test_options_stand_one_a_line():
    assert user_turn(CHOICE, "1+1?", ["1", "2", "3"]).startswith("1+1?\nA. 1\nB. 2\nC. 3\nPlease show your choice")


def test_braces_in_a_question_stay():
    assert user_turn(MATH, r"\frac{1}{2} {question} {0}?").startswith("\\frac{1}{2} {question} {0}?\nPlease")


def test_letters():
    assert letters_of(["x"] * 4) == "ABCD"
    assert letters_of(["x"] * 10) == "ABCDEFGHIJ"
