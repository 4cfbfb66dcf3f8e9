import pytest

from forkleft.verify.markup import after_thought, without_markup


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Ｃ：（Ａ）", "C:(A)"),
        ("C\u200b\u200f\u00ad", "C"),
        ("“C” «C» 「C」", '"C" "C" "C"'),
        ("【答案】C", "[答案]C"),
        ("**Answer**: C", "Answer : C"),
        ("**C** or *d* or `B`", '"C" or "d" or "B"'),
        ("__so__ _it_ goes", "so it goes"),
        ("a*b and C_1", "a*b and C_1"),
        ("### Answer\n> C\n- D", "Answer\nC\nD"),
        ("A\n---\nB", "A\n\nB"),
        ("~~A~~ B", "B"),
        ("<answer>C</answer>D", "answer: C\nD"),
        ("[FINAL ANSWER] C [/FINAL ANSWER]", "answer: C"),
        ("<i>B</i><br/>C<|im_end|>", "B \nC"),
        ("<C> is <D>", "<C> is <D>"),
        ("2 < 3 > 1", "2 < 3 > 1"),
        (r"\(\text{C}\), \textbf{\mathrm{D}}, {\bf B}", "C , D , { B}"),
        (r"$\boxed{\text{C}}$", r"\boxed{ C }"),
    ],
)
def test_what_is_left(text, plain):
    assert _spaced(without_markup(text)) == _spaced(plain)


def _spaced(text):
    """With spaces in one form: how many are left does not matter."""
    return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())


def test_thoughts():
    assert after_thought("the answer is C") is None
    assert after_thought("<think>A</think>B") == "B"
    assert after_thought("<think>A</think>B</THINKING> C") == " C"
    assert after_thought("<think>A") is None
