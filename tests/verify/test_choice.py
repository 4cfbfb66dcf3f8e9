import pytest

from forkleft.verify.choice import choice_answer


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        # A box comes first, whatever else is there; the last one counts.
        (r"answer: A, no \boxed{B}, I mean \boxed{C}. The answer is D", "C"),
        (r"\boxed{\text{B}}", "B"),
        (r"\boxed{\textbf{(B)}}", "B"),
        (r"\boxed{ b }", "B"),
        (r"$\boxed{\mathrm{D}}$", "D"),
        (r"\boxed{Dog} so B", "B"),
        (r"\boxed{C. text}, not A", "C"),
        (r"\boxed{(C) text}, not A", "C"),
        (r"\boxed{**C**}, not A", "C"),
        (r"\boxed{'C'}, not A", "C"),
        (r"\boxed{C：文}, not A", "C"),
        (r"\boxed{\text{Option C}}, not A", "C"),
        (r"\boxed{\textbf{Choice (c)}}, not A", "C"),
        (r"\boxed{option \text{C}}, not A", "C"),
        # A formula in a box is no letter.
        (r"\boxed{a+b} Answer: C", "C"),
        (r"\boxed{a*b} Answer: C", "C"),
        (r"\boxed{b' - 1} Answer: C", "C"),
        (r"\boxed{d = 5}. Answer: B", "B"),
        (r"\boxed{A \cap B}. Answer: C", "C"),
        # Then an answer field.
        ('"answer": "C"', "C"),
        ('{"answer":"c"}', "C"),
        ("**Answer:** B, since A and C are wrong", "B"),
        ("Answer = (D)", "D"),
        ("**Answer**: **A**", "A"),
        ("Answer: option C", "C"),
        (r"Answer: $\text{C}$", "C"),
        ('"answer": "A" … "answer": "B" and D', "B"),
        ("Answer：B", "B"),
        ("The answer is A. Answer: B", "B"),
        ("Answer: because C", "C"),
        ("Answer: a triangle has three sides, so D", "D"),
        ("Answer: a's square, so D", "D"),
        ("Answer: (b) as A fails", "B"),
        ("Answer: **b** as A fails", "B"),
        ("Answer: 'b', as A fails", "B"),
        ("Answer: b.\nA fails", "B"),
        ("A fails. answer: b", "B"),
        # Then a sentence.
        ("The correct answer is C, not D.", "C"),
        ("the answer is: (B) as A fails", "B"),
        ("My answer is option **D**, not A", "D"),
        ("The answer is a prime, so D", "D"),
        # Then a letter that stands alone.
        ("It cannot be A, so it must be C.", "C"),
        ("选C。", "C"),
        ("ABCD", None),
        ("C_1 and B2", None),
        ("c", None),
        ("I say E", None),
        ("none of them", None),
        ("", None),
    ],
)
def test_the_rules_in_their_order(response, letter):
    assert choice_answer(response, "ABCD") == letter


def test_only_offered_letters_count():
    assert choice_answer("B or E", "ABCD") == "B"
    assert choice_answer("B or E", "ABCDE") == "E"
    assert choice_answer(r"\boxed{E}, that is A", "ABCD") == "A"


@pytest.mark.parametrize(
    "piece",
    [
        "answer is ",
        "answer" + " " * 50,
        "answer : ",
        r"\boxed{",
        r"\boxed{\text{option" + " " * 50,
        " ",
        "(",
        "\x00",
        "\u202e",
        "\ud800",
    ],
)
def test_megabytes_are_no_trouble(piece):
    # A search that is quadratic in the length takes hours.
    assert choice_answer(piece * (2_000_000 // len(piece)), "ABCD") is None
