import pytest

from forkleft.verify import math
from forkleft.verify.math import find_answer, judge, last_box


@pytest.mark.parametrize(
    ("response", "box"),
    [
        (r"First $\boxed{3}$, no: $\boxed{4}$", "4"),
        ("\\boxed{3}</think>\n\\boxed{4}", "4"),
        (r"\boxed{3} and \boxed{4}", "4"),
        (r"\boxed{ \frac{3}{4} }.", r"\frac{3}{4}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ 1 \right.}", r"\left\{ 1 \right."),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed {5}", "5"),
        (r"$\boxed 5$", "5"),
        (r"\fbox{5}", "5"),
        # Neither an empty box nor one that was cut off takes the place of an answer.
        (r"\boxed{5}, in a \boxed{}", "5"),
        (r"\boxed{5}, so \boxed{\frac{1}{", "5"),
        (r"\boxed{5", None),
        (r"\boxed", None),
        ("5", None),
    ],
)
def test_the_last_box(response, box):
    assert last_box(response) == box


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"Thus $\boxed{\frac{3}{4}}$. It took 5 steps.", r"\frac{3}{4}"),
        ("The final answer is $x+1$. I hope it is correct.", "x+1"),
        ("There are 3 cats. The answer is 12.", "12"),
        ("**Answer: 22**", "22"),
        ("She pays 2 + 3 = 5 dollars", "5"),
        ("no number at all", None),
        ("", None),
        (r"\boxed{", None),
    ],
)
def test_the_answer_that_is_found(response, answer):
    assert find_answer(response)[0] == answer


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("The answer is 1/3.", "1/3"),
        ("**Answer: 22**", "22"),
        ("The answer: **12**.", "12"),
        ("2^5.", "32"),
        ("$$x = 12$$", "12"),
        ("#### 12", "12"),
        ("答案是１２。", "12"),
        ("答案：12", "12"),
        ("所以答案是 $\\frac{1}{2}$。", "1/2"),
        ("\\boxed{3}</think>\n\\boxed{4}", "4"),
    ],
)
def test_what_a_response_states(response, answer):
    assert judge(response, answer)[0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("5", "5"),
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\$18", "18"),
        (r"50\%", "50"),
        ("50%", "50"),
        ("0.1", r"10\%"),
        ("(1,2)", r"\left( 1, 2 \right)"),
        (r"\{2,1\}", r"\{1,2\}"),
        (r"2\sqrt{2}", r"\sqrt{8}"),
        ("x+1", "1+x"),
        (r"\text{odd}", "odd"),
        (r"\text{East}", r"\text{east}"),
        ("C", r"\text{(C)}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        ("90", r"90^\circ"),
        (r"\frac{270}{7}^\circ", r"\frac{270}7\text{ degrees}"),
        ("52", "52_8"),
        ("52_{8}", "52_8"),
        ("5!", "120"),
        # Digits, separators, signs.
        ("１２", "12"),
        ("-１２", "-12"),
        ("−5", "-5"),
        ("١٢", "12"),
        ("१२", "12"),
        ("\u202e5\u200f", "5"),
        (" 5. ", "5"),
        ("12。", "12"),
        ("**12**", "12"),
        ("1,000", "1000"),
        (r"1\,000", "1000"),
        ("1{,}000", "1000"),
        ("1 000", "1000"),
        ("1’000", "1000"),
        ("1，000", "1000"),
        ("1 000 000 people", "1000000"),
        ("x=1,000", "1000"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        ("32{,}348", r"\$32,\!348"),
        ("1_000", "1000"),
        (r"1\_000\_000", "1000000"),
        ("1e3", "1000"),
        ("2.5E-3", "0.0025"),
        ("1000", "1e3"),
        ("2e - 3", "2e-3"),
        ("(1,000)", "1000"),
        ("(1,000, 2)", "(1000,2)"),
        (r"\approx 5", "5"),
        ("≈5", "5"),
        (r"x \approx 5", "5"),
        ("12²", "144"),
        ("x²+1", "x^2+1"),
        ("2½", "2.5"),
        ("√2", r"\sqrt{2}"),
        ("√(x+1)", r"\sqrt{x+1}"),
        ("6.72×10⁻⁵", ".0000672"),
        # Units.
        ("12个", "12"),
        ("12 元", "12"),
        ("12 см²", "12"),
        ("12 सेमी", "12"),
        ("12 ตารางเมตร", "12"),
        ("面积=12", "12"),
        ("12 apples", "12"),
        (r"12\text{ cm}^2", "12"),
        ("12 cm²", "12"),
        (r"12\ \mathrm{cm}", "12"),
        ("12", r"12 \text{ cm}"),
        ("864 in^2", r"864 \mbox{ inches}^2"),
        ("60 km/h", "60"),
        (r"60\text{ miles per hour}", "60"),
        ("25°C", "25"),
        ("€12", "12"),
        ("12 €", "12"),
        ("5 m", "5"),
        # Equations that name what is asked for.
        ("x=5", "5"),
        ("5", "x=5"),
        ("5 = x", "5"),
        ("5 = AB", "5"),
        ("x=2+3=5", "5"),
        ("2+3=5", "5"),
        ("f(3)=5", "5"),
        ("AB = 5", "5"),
        (r"\text{Area} = 12", "12"),
        ("(x,y)=(1,2)", "(1,2)"),
        ("x=1, y=2", "(1,2)"),
        (r"x = 5 \text{ or } x = 3", "3,5"),
        (r"x = \pm 3", "3,-3"),
        ("f(x)=2x+3", "2x+3"),
        ("2x+3", "y = 2x + 3"),
        ("[-2,7]", r"x \in [-2,7]"),
        ("10x - 14y + 22z + 8 = 0", "5x - 7y + 11z + 4 = 0"),
        # Decimals.
        ("1.50", "1.5"),
        ("0.333333", "1/3"),
        ("0.033333", "1/30"),
        (r"6.72\times10^{-5}", ".0000672"),
        (r"1.5\times10^{500}", r"15\times10^{499}"),
        (r"(\frac52,\infty)", r"(2.5,\infty)"),
        (r"(-\infty,0.5)\cup(2,3)", r"(-\infty,\frac12)\cup(2,3)"),
        (r"\begin{pmatrix}0.5\\1\end{pmatrix}", r"\begin{pmatrix}\frac12\\1\end{pmatrix}"),
        ("0.5x+1", r"\frac{x}{2}+1"),
    ],
)
def test_what_counts_as_equal(found, expected):
    assert judge(f"so \\boxed{{{found}}}", expected)[0]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("5", "6"),
        ("4", "-4"),
        ("(2,1)", "(1,2)"),
        (r"\text{odd}", r"\text{even}"),
        ("3,4", "4"),
        (r"\frac{1}{23}", r"\frac{12}{3}"),
        ("1 2", "12"),
        ("(1,100)", "1100"),
        ("(1,000)", "(1,0)"),
        ("(1,0)", "(1,000)"),
        ("(1,050)", "(1,50)"),
        ("1_000", "1"),
        ("1e3", "13"),
        ("2e", "2"),
        (r"\approx 5", "6"),
        ("52_9", "52_8"),
        # An equation is no answer to a number.
        ("2x-y+2z-18=0", "0"),
        ("x-5=0", "0"),
        ("x^2=25", "25"),
        ("5=6", "6"),
        ("5=6", "5"),
        ("5 = x + 1", "5"),
        ("25 = x^2", "25"),
        ("6 = x", "5"),
        ("6=6", "6"),
        ("2+3=6", "6"),
        ("5=6, 7", "6,7"),
        ("y=5", "x=5"),
        ("x>5", "5"),
        # Small numbers are not all the same.
        ("0.000067", ".0000672"),
        ("0.0000004", "0"),
        ("(0.000067, 1)", "(0.0000672, 1)"),
        ("0.33", "1/3"),
        ("12.0001", "12"),
        # Letters that are no units, and times.
        ("3t", "3"),
        ("3", "3t"),
        ("3", "3s"),
        ("5x", "5"),
        ("2xy", "2"),
        (r"10:30 \text{ a.m.}", r"10:30 \text{ p.m.}"),
        (r"2\text{ hours } 30\text{ minutes}", "2"),
    ],
)
def test_what_does_not(found, expected):
    assert not judge(f"so \\boxed{{{found}}}", expected)[0]


def test_without_an_expected_answer_it_is_only_looked_for():
    assert judge(r"\boxed{5}", None) == (False, "5")
    assert judge("nothing", "5") == (False, None)
    assert judge(r"\boxed{}", "") == (False, None)


def test_an_exception_is_wrong(monkeypatch):
    def refuse(*arguments, **options):
        raise RecursionError

    monkeypatch.setattr(math, "verify", refuse)
    assert judge(r"\boxed{5}", "6") == (False, "5")
    monkeypatch.setattr(math, "parse", refuse)
    assert judge(r"\boxed{5}", "6") == (False, "5")
    assert judge("5", "6") == (False, None)
