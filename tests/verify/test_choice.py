import re

import pytest

from forkleft.verify.choice import choice_answer

# How models state that they choose C, with other letters behind it or before it.
STATES_C = [
    # Boxes.
    r"\boxed{C}",
    r"\boxed{C}, since A and B are wrong",
    r"answer: A, no \boxed{B}, I mean \boxed{C}. The answer is D",
    r"\boxed{\text{C}} A fails",
    r"\boxed{\textbf{(C)}}",
    r"\boxed{\textbf{(C) } 12}, as A and B are too small",
    r"\boxed{ c }",
    r"$\boxed{\mathrm{C}}$. B is out.",
    r"\boxed{C. text}, not A",
    r"\boxed{(C) text}, not A",
    r"\boxed{**C**}, not A",
    r"\boxed{'C'}, not A",
    r"\boxed{C：文}, not A",
    r"\boxed{\text{Option C}}, not A",
    r"\boxed{\textbf{Choice (c)}}, not A",
    r"\boxed{option \text{C}}, not A",
    r"\boxed{Answer: C}, not A",
    r"\fbox{C}, not A",
    r"\boxed {C}, A is wrong",
    r"\boxed{Dog} so C",
    # Answer fields.
    '"answer": "C"',
    '{"answer":"c"}',
    '{"explanation": "A and B are too large", "answer": "C", "confidence": "A"}',
    '```json\n{"answer": "C"}\n```\nA is the usual mistake.',
    "{'final_answer': 'C'} and A is wrong",
    '{"choice": "C", "reason": "A is too small"}',
    '{"correct_option": "C"}. A is not.',
    "**Answer:** C, since A and B are wrong",
    "**Answer**: **C**\n\nA is wrong.",
    "*Answer*: C. A is wrong.",
    "__Answer__: C. A is wrong.",
    "Answer = (C), B fails",
    "Answer: option C, not A",
    "Answer: C) Paris. A) is in England.",
    "Answer: [C] A is in England.",
    "Answer: [[C]] A is in England.",
    r"Answer: $\text{C}$, B fails",
    r"Answer: $C$. B fails",
    '"answer": "A" … "answer": "C" and D',
    "Answer：C。A错",
    "ANSWER: C\nA IS WRONG",
    "The answer is A. Answer: C",
    "Final Answer: C\n\nA, B and D contradict the text.",
    "Final answer - C. B is close.",
    "Answer → C. B is close.",
    "Correct answer: C, A is wrong",
    "Correct choice: (C) because A is wrong",
    "My choice: C. A looks right at first.",
    "Answer: (c) as A fails",
    "Answer: **c** as A fails",
    "Answer: 'c', as A fails",
    "Answer: c.\nA fails",
    "A fails. answer: c",
    "Answer:\nC. Paris\n\nA. is in England",
    "Answer: `C`. A is wrong",
    "> Answer: C\n\nA is wrong.",
    "| Answer | C |\n\nA is wrong",
    "Answer C\nBecause A and B are too small.",
    "### Answer\n\nC\n\nExplanation: A and B are wrong",
    "## Final Answer\n**C**\n\nWhy A is wrong: …",
    "**Answer**\n\n(C) 12\n\nA would be too small.",
    "<answer>C</answer> A is wrong",
    "<answer> (C) </answer>\nA is wrong",
    "<ANSWER>\nC\n</ANSWER> Not A.",
    "<final_answer>C</final_answer> A was close",
    "<choice>C</choice> A was close",
    "[ANSWER]C[/ANSWER] A was close",
    "<b>Answer:</b> <b>C</b><br>A is wrong",
    "Answer: C<|im_end|>\nA",
    "<think>Answer: A? No, answer: B.</think>The answer is C.",
    "<think>The answer is A.</think>\n\nC",
    # Sentences.
    "The answer is C.",
    "The answer is C, not D.",
    "The answer is C and not A.",
    "the answer is: (C) as A fails",
    "My answer is option **C**, not A",
    "The correct option is C because A and B are wrong",
    "the answer should be C rather than A",
    "The answer must be C instead of B.",
    "The answer would be C. A is too small.",
    "The right choice is C; A is a distractor.",
    "The best answer here is C. B is second best.",
    "The answer to this question is C, while A is wrong.",
    "The answer that fits the text best is C. A does not fit.",
    "The correct answer is therefore clearly C. B is not.",
    'The correct answer is "C". A is not.',
    "The correct answer is **C. Paris**. A is wrong.",
    "The correct answer is **C. baz**. Option A is wrong because it is small.",
    "The correct answer is **C) baz**. Option A describes it.",
    "The correct answer is **(C)** baz. Option A describes it.",
    "The correct answer is **C** – baz. Option A describes it.",
    "The answer is __C__. Option A describes it.",
    "The answer is *C.* Option A describes it.",
    "The answer is: **C – baz**. A describes it.",
    # An option's text that reads like a verdict, or like a heading.
    "The answer is (C) cannot be determined. A is too much.",
    "The correct answer is **C) does not move**. A would move.",
    "The correct answer is:\n\n**(C) Incorrect**\n\nA would be right elsewhere.",
    "Answer: (C) Cannot be determined. A is too much.",
    "The answer is C. False. A says so.",
    "The correct answer is **C: False**. A says so.",
    "The answer is C. Turn right\n\nOption A describes it.",
    # In lower case.
    "the answer is c",
    "The answer is c. A describes it.",
    "The correct option is c.\nA describes it.",
    "The answer to this question should be c. A describes it.",
    "The answer is therefore option c) baz. A describes it.",
    "Answer: c. A describes it.",
    "The answer is not A but C.",
    "The answer is not A. The answer is C. B is wrong",
    "The correct one is C, for A is too large.",
    r"The correct answer is \textbf{C}. Option A fails.",
    r"The answer is $\mathbf{(C)}$. B fails.",
    "I choose C. A is tempting.",
    "I would choose option C over A.",
    "I'd go with C here. A doesn't work.",
    "I'll pick (C), though B is close.",
    "I select C. A and B are incomplete.",
    "I would not choose A. I choose C, and not B.",
    "The answer is C. If we forgot the sign, the answer would be A.",
    "The answer is C. One might think that the answer is A.",
    "Why is the answer A wrong? The answer is C.",
    "Some students say the answer is A. The answer is C. B is worse.",
    "If the answer were A, we would see it. If the answer is B, too. The answer is C.",
    # Judgements.
    "Option C is correct. Option A is incorrect.",
    "C is the correct answer. A is too small, B too large.",
    "(C) is right, A is wrong",
    "C is the best option; D is second.",
    "A is incorrect. B is incorrect. C is correct. D is incorrect.",
    "A: Incorrect.\nB: Incorrect.\nC: Correct.\nD: Incorrect.",
    "A. wrong\nB. wrong\nC. correct\nD. wrong",
    "Only C is correct: A and B are not.",
    # Lines and beginnings.
    "C",
    "c",
    "(c)",
    "(C)",
    "C.",
    "**C**",
    "`C`",
    "A is too small, B too large.\n\nC",
    "A is too small.\n\n**C.**\n",
    "C\n\nA is wrong.",
    "C. Because A and B are wrong, D too.",
    "C) Paris. It cannot be A.",
    "(C) Paris, as A lies in England",
    "C: A and B lie in England",
    "C because A and B lie in England",
    "C - since A lies in England",
    # Conclusions.
    "It cannot be A, so it must be C.",
    "It is C since A fails.",
    "In this case C fits.",
    "The answer is figure C.",
    "I choose plan C.",
    "Options A and B are too small, so C fits.",
    "A is too small. Therefore, C. B was close.",
    "Hence (C), and B is too large.",
    "Thus option C: B has the wrong sign.",
    "That leaves C. A had the wrong sign.",
    "It's C. A has the wrong sign.",
    # Nothing but letters.
    "Neither A nor B nor D fits, C does",
    "A, B and D are wrong; C",
    "Not A. Not B. Hm, C?",
    "Answer: because C",
    "Answer: a triangle has three sides, so C",
    "Answer: a's square, so C",
    "The answer is a prime, so C",
    "~~A~~ C",
    "C. A more careful look confirms it.",
    "The vector A = (1, 2) and C",
    # LaTeX and signs.
    r"\(\text{C}\)",
    r"\[\boxed{\text{C}}\] A is wrong",
    r"$$\text{C}$$",
    r"\textbf{C}",
    "Ｃ",
    "（Ｃ）",
    "Ⓒ",
    "𝐂",
    "“C”",
    "The answer is\u00a0C\u200b, not A",
    "\u200fالإجابة: \u200eC\u200f لأن A خطأ",
    # Chinese.
    "答案是C，因为A不成立。",
    "答案：C。A项错误。",
    "答案为C，A不对",
    "故选C。A项错误，B项无关。",
    "故选：C。A错误",
    "所以选C，而不是A",
    "因此应选（C）。A不符合题意。",
    "本题选择C选项，A错误。",
    "【答案】C【解析】A项错误",
    "【答案】 C\n【解析】A、B错误",
    "正确答案是C，A是错误的",
    "正确的是C，排除A",
    "A、B错误，C项正确，D项错误",
    "不选A，选C。",
    "答案不是A，而是C",
    "选C。",
    # Others.
    "Antwort: C. A ist falsch",
    "Die richtige Antwort ist C, weil A falsch ist.",
    "Antwort C ist richtig, Antwort A ist falsch.",
    "Réponse : C. A est fausse.",
    "La bonne réponse est la C, car A est fausse.",
    "C'est la réponse C, A est fausse.",
    "La respuesta correcta es C, porque A es incorrecta.",
    "La respuesta es la opción C. A es falsa.",
    "Respuesta: C) París. A) no.",
    "A resposta correta é a alternativa C. A alternativa A é falsa.",
    "Resposta: C. A letra A está errada.",
    "La risposta corretta è la C, A è sbagliata.",
    "Het juiste antwoord is C, A is fout.",
    "Prawidłowa odpowiedź to C, a nie A.",
    "Правильный ответ: C. A неверно.",
    "Ответ — C, а не A.",
    "Doğru cevap C'dir. A yanlış.",
    "Cevap: C. A yanlış.",
    "Jawaban yang benar adalah C. A salah.",
    "Đáp án là C, vì A sai.",
    "Đáp án đúng là C. A sai.",
    "Chọn C vì A sai.",
    "คำตอบคือ C เพราะ A ผิด",
    "คำตอบที่ถูกต้องคือ C",
    "정답은 C입니다. A는 틀렸습니다.",
    "정답: C\nA는 오답입니다.",
    "C가 정답입니다. A는 아닙니다.",
    "答えはCです。Aは誤りです。",
    "正解はC。Aは違います。",
    "よって、Cが正しい。",
    "الإجابة الصحيحة هي C لأن A خاطئة",
    "सही उत्तर C है, A गलत है।",
    "Jibu sahihi ni C.",
]

# No choice among A to D.
STATES_NONE = [
    "",
    "none of them",
    "ABCD",
    "C_1 and B2",
    "I say E",
    "I cannot determine it. A more careful look is needed.",
    "A triangle has three sides.",
    "The answer is A more difficult one than it seems.",
    "A partir de los datos no se puede saber.",
    "Answer: A triangle has three sides.",
    "The answer is a triangle",
    "The answer is not c.",
    "The answer is c. Wrong.",
    "The answer follows if the side is a.",
    "The answer is a.m. and not p.m.",
    # Names.
    "Vitamin C is needed",
    "so vitamin C is needed",
    "Group A and group B were compared",
    "Groups A and B were compared.",
    "The answer is unclear. As in case D, ",
    "As in Figure B and C",
    "Points A, B, C and D lie on a circle.",
    "Patients with hepatitis B or type A diabetes",
    "There are options A, B, C and D.",
    "It is not A.",
    "It is neither A nor B.",
    "A is wrong, and B is wrong too.",
    "A and B are wrong.",
    "排除A和B",
    "The temperature is 25 °C.",
    "The answer is 12 °C.",
    "P(A) = 1/2",
    "A = 5 and B = 3",
    "I use C++.",
    "In 300 B.C. it began.",
    "C'est la vie.",
    "A. London\nB. Rome\nC. Paris\nD. Bonn",
    "Options:\nA) London\nB) Rome\nC) Paris\nD) Bonn\nI do not know.",
    r"\boxed{a+b}",
    r"\boxed{A \cap B}",
    r"\boxed{12}",
]


@pytest.mark.parametrize("response", STATES_C)
def test_a_stated_choice(response):
    assert choice_answer(response, "ABCD") == "C"


@pytest.mark.parametrize("response", STATES_NONE)
def test_no_choice(response):
    assert choice_answer(response, "ABCD") is None


def _exchanged(response, letter):
    """The response with C and the letter exchanged wherever they stand alone."""
    pairs = {"C": letter, letter: "C", "c": letter.lower()}
    pairs |= {chr(first + 2): chr(first + ord(letter) - ord("A")) for first in (0xFF21, 0x24B6, 0x1D400)}
    alone = r"(?<![A-Za-z\u00c0-\u024f])(?<![A-Za-z]')([A-D]|c(?=\W|$))(?![A-Za-z\u00c0-\u024f]|'(?!dir)[a-z])"
    return re.sub(f"{alone}|[\uff23\u24b8\U0001d402]", lambda found: pairs.get(found[0], found[0]), response)


@pytest.mark.parametrize("letter", "ABD")
def test_every_letter_is_stated_alike(letter):
    exchanged = [_exchanged(response, letter) for response in STATES_C]
    assert [response for response in exchanged if choice_answer(response, "ABCD") != letter] == []


@pytest.mark.parametrize(
    ("response", "letter"),
    [
        # A formula in a box is no letter.
        (r"\boxed{a+b} Answer: C", "C"),
        (r"\boxed{a*b} Answer: C", "C"),
        (r"\boxed{b' - 1} Answer: C", "C"),
        (r"\boxed{d = 5}. Answer: B", "B"),
        (r"\boxed{A \cap B}. Answer: C", "C"),
        # The article is no letter, a letter before a verb is.
        ("The answer is A because B is wrong", "A"),
        ("A is right. A more careful look shows it.", "A"),
        ("Option A more or less", "A"),
        ("(A) more or less", "A"),
        ("**A** more or less", "A"),
        # A verdict on each option is no option's text.
        ("Let's look at each option:\n(A) is wrong.\n(B) is right.\n(C) is wrong.", "B"),
        ("Checking each option: (A) is wrong, (B) is right", "B"),
        ("Claiming that the answer is A is wrong. So B.", "B"),
        # Options that are listed again.
        ("A. London\nB. Rome\nC. Paris\nD. Bonn\n\nIn France there is only C.", "C"),
    ],
)
def test_letters_and_words(response, letter):
    assert choice_answer(response, "ABCD") == letter


def test_the_pronoun_is_no_letter():
    letters = "ABCDEFGHI"
    assert choice_answer("I cannot determine it.", letters) is None
    assert choice_answer("I think it is B. I am sure.", letters) == "B"
    assert choice_answer("Answer: I", letters) == "I"
    assert choice_answer("The answer is (I). B is wrong.", letters) == "I"


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
        "answer\n",
        "答案",
        r"\boxed{",
        r"\boxed{\text{option" + " " * 50,
        " ",
        "(",
        "*",
        "_",
        "<",
        "[answer",
        "\\text{",
        "~~",
        "\n",
        "- ",
        "\x00",
        "\u202e",
        "\ud800",
        "not A, ",
        "A and ",
        "a.",
        "the answer is a. ",
        "points A, B, ",
        "answer here ",
    ],
)
def test_megabytes_are_no_trouble(piece):
    # A search that is quadratic in the length takes hours.
    assert choice_answer(piece * (400_000 // len(piece)), "ABCD") in (None, "A")
