import pytest

from forkleft.verify import math
from forkleft.verify.math import find_answer, judge


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"First $\boxed{3}$, no: $\boxed{4}$", "4"),
        # Boxes outside of formulas count together.
        (r"\boxed{3} and \boxed{4}", "3,4"),
        (r"Thus $\boxed{\frac{3}{4}}$.", r"\frac{3}{4}"),
        ("The final answer is $x+1$. I hope it is correct.", "x+1"),
        ("There are 3 cats. The answer is 12.", "12"),
        ("She pays 2 + 3 = 5 dollars", "5"),
        ("no number at all", None),
        ("", None),
        (r"\boxed{", None),
    ],
)
def test_the_answer_that_is_found(response, answer):
    assert find_answer(response) == answer


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        ("5", "5", True),
        ("5", "6", False),
        ("0.5", r"\frac{1}{2}", True),
        (r"\dfrac12", r"\frac{1}{2}", True),
        ("1,000", "1000", True),
        (r"\$18", "18", True),
        (r"50\%", "50", True),
        (r"(1,2)", r"\left( 1, 2 \right)", True),
        (r"(2,1)", r"(1,2)", False),
        (r"\{2,1\}", r"\{1,2\}", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("x+1", "1+x", True),
        ("x=5", "5", True),
        (r"\text{odd}", r"\text{odd}", True),
        (r"\text{odd}", r"\text{even}", False),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", True),
    ],
)
def test_values_are_compared(found, expected, right):
    assert judge(f"so \\boxed{{{found}}}", expected)[0] is right


def test_without_an_expected_answer_it_is_only_looked_for():
    assert judge(r"\boxed{5}", None) == (False, "5")
    assert judge("nothing", "5") == (False, None)


def test_an_exception_is_wrong(monkeypatch):
    def refuse(*arguments, **options):
        raise RecursionError

    monkeypatch.setattr(math, "verify", refuse)
    assert judge(r"\boxed{5}", "5") == (False, "5")
    monkeypatch.setattr(math, "parse", refuse)
    assert judge(r"\boxed{5}", "5") == (False, None)
