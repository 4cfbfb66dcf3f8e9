r"""The wording of the prompts, to the letter: the paper's scores depend on it.

    from forkleft.evaluate.prompts import MATH, user_turn
    user_turn(MATH, "What is 1+1?")

Each model renders the one user turn with its own chat template, thinking off (`forkleft.prompts`).
"""

from collections.abc import Sequence
from string import ascii_uppercase

MATH = "{question}\nPlease reason step by step, and put your final answer within \\boxed{}."
CHOICE = '{question}\nPlease show your choice in the answer field with only the choice letter, e.g., "answer": "C".'
LIVEMATHBENCH = (
    "Here is a math question, please reasoning step by step, and put your answer in \\boxed{}.\n{question}\n"
)
LIVEMATHBENCH_CHINESE = "下面是一个数学问题，请逐步推理，并把最终答案放置于\\boxed{}中。\n{question}\n"
# What the lab's models were trained on.
PLAIN = "{question}"
# As the files that describe benchmarks name them.
TEMPLATES = {
    "math": MATH,
    "choice": CHOICE,
    "livemathbench": LIVEMATHBENCH,
    "livemathbench-chinese": LIVEMATHBENCH_CHINESE,
    "plain": PLAIN,
}

# What the assistant has already said when a choice is read off as the likelihood of the offered letters.
ANSWER_PREFIX = '"answer": "'


def user_turn(template: str, question: str, choices: Sequence[str] | None = None) -> str:
    """What the user says: the question, with its options one a line as `A. text`, in the template."""
    lines = [question]
    if choices is not None:
        lines += [f"{letter}. {text}" for letter, text in zip(letters_of(choices), choices, strict=True)]
    # Not `str.format`: templates and questions are full of LaTeX braces.
    return template.replace("{question}", "\n".join(lines))


def letters_of(choices: Sequence[str]) -> str:
    """The letters of the options, `ABCD` for four."""
    return ascii_uppercase[: len(choices)]
