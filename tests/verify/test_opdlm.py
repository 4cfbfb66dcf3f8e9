import pytest

from forkleft.verify import opdlm
from forkleft.verify.opdlm import find_answer, judge


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


@pytest.mark.parametrize(
    ("response", "expected", "right"),
    [
        # To the letter, where training reads otherwise (test_math.py).
        ("The answer is 1/3.", "1/3", False),
        ("**Answer: 22**", "22", False),
        ("2^5.", "32", False),
        ("\\boxed{3}</think>\n\\boxed{4}", "4", False),
        (r"\boxed{2x-y+2z-18=0}", "0", True),
        (r"\boxed{5=6}", "6", True),
        (r"\boxed{0.000067}", ".0000672", True),
        (r"\boxed{１２}", "12", False),
        (r"\boxed{12个}", "12", False),
        (r"\boxed{1\,000}", "1000", False),
        (r"\boxed{3t}", "3", True),
    ],
)
def test_its_own_ways_are_kept(response, expected, right):
    assert judge(response, expected)[0] is right


def test_without_an_expected_answer_it_is_only_looked_for():
    assert judge(r"\boxed{5}", None) == (False, "5")
    assert judge("nothing", "5") == (False, None)


def test_an_exception_is_wrong(monkeypatch):
    def refuse(*arguments, **options):
        raise RecursionError

    monkeypatch.setattr(opdlm, "verify", refuse)
    assert judge(r"\boxed{5}", "5") == (False, "5")
    monkeypatch.setattr(opdlm, "parse", refuse)
    assert judge(r"\boxed{5}", "5") == (False, None)
