r"""The letter chosen in a written answer to a multiple-choice question.

A response is read without its markup (`markup.py`). If a model marks its thoughts, the text after them is read first,
and the whole response only if that text chooses no letter. Every letter that stands alone is judged by the words before
and after it. The strongest of these ways to state a choice counts; of several choices stated in the same way, the last:

1. `\boxed{C}`;
2. an answer field: `"answer": "C"`, `Answer: (C)`, `【答案】C`, `<answer>C</answer>`, a heading `Answer` and C below;
3. a sentence: `the correct option is C`, `I choose C`, `答案是C`, `la respuesta es la C`;
4. a sentence that supposes something: `if the answer is C`;
5. a judgement: `C is correct`, `C项正确`;
6. a letter with a line to itself;
7. a letter at the very beginning: `C. Because …`;
8. a conclusion: `therefore C`, `it must be C`;
9. any other letter that is no part of a formula.

So a stated choice wins over any later letter. Only offered letters count. A letter does not count if it is a word (`A
more careful look`, `I cannot tell`), is ruled out (`not A`, `A is wrong`, `排除A`), or labels a line in a list of the
options. What looks like a verdict after a stated choice is the option's text: `the answer is (D) cannot be determined`.
In way 9, a letter does not count if it belongs to a name (`vitamin C`, `points A and B`). A letter in lower case counts
if brackets, quotes or the end of a line mark it, or if it ends the sentence that states it (`the answer is c.`).

This is not the scorer of OPDLM: the paper compares the likelihood of letters (protocol `slot`) and reads no text.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from forkleft.verify import wording
from forkleft.verify.markup import after_thought, without_markup

# How many characters before and after a letter are read.
_BEFORE, _BEHIND = 180, 90
# If a text names very many letters, only so many at each end are read.
_MARKS_AT_AN_END = 500

_LATIN = "A-Za-z0-9_\u00c0-\u024f"
_WORD_END = r"(?![A-Za-z\u00c0-\u024f])"
# In Turkish, `is` follows an apostrophe: C'dir. In other languages an apostrophe makes a word: C'est, D's.
_END = rf"(?![{_LATIN}]|'(?![dt][iıuü]r)[A-Za-z\u00c0-\u024f])"
_OPEN, _CLOSE = r"[\s\"'(\[{]{0,12}", r"[\s\"')\]}]{0,12}"
_CLOSE_HERE = r"[ \t\"')\]}]{0,12}"
_LINE_ENDS = r"[^\S\n]{0,12}[.。]?[^\S\n]{0,12}(?:\n|\Z)"
_LABEL = re.compile(r"(?m)^[ \t]{0,8}[(\[]?([A-Z])[).:\]、][ \t]{0,8}\S")
_OPENED, _CLOSED = re.compile(r"[\"'(\[{]\s?$"), re.compile(r"\s?(?:[\")\]}]|'(?![A-Za-z]))")
# Sums, sets and degrees; hyphens and full stops within a word: C++, D-glucose, B.C.
_FORMULA_BEFORE = re.compile(r"(?:(?:[=+*/<>^∩∪⊂∈°]|\\[A-Za-z]+)\s?|[A-Za-z]\(|[A-Za-z]\.|[A-Za-z]-)$")
_FORMULA_BEHIND = re.compile(r"\s?(?:[=+*/<>^∩∪⊂∈#]|\\[A-Za-z])|\.[A-Za-z]|-[A-Za-z]")


@dataclass(frozen=True)
class _Mark:
    """A letter that stands alone, and what is around it. begins: only punctuation is before it in the text."""

    letter: str
    before: str
    behind: str
    begins: bool
    listed: bool


def choice_answer(response: str, letters: str) -> str | None:
    """The letter of `letters` that the response chooses, or None if it chooses none."""
    last_words = after_thought(response)
    found = None if last_words is None else _chosen(without_markup(last_words), letters)
    return found or _chosen(without_markup(response), letters)


def _chosen(text: str, letters: str) -> str | None:
    rules = _rules(letters)
    ranked = [(rank, mark.letter.upper()) for mark in rules.marks(text) if (rank := rules.rank(mark)) is not None]
    if not ranked:
        return None
    strongest = min(rank for rank, _ in ranked)
    return [letter for rank, letter in ranked if rank == strongest][-1]


def _listed(text: str) -> set[int]:
    """Where letters label options in a repeated list of them: A, B, … at the start of consecutive lines."""
    found: set[int] = set()
    last: re.Match[str] | None = None
    for label in _LABEL.finditer(text):
        if last and ord(label[1]) == ord(last[1]) + 1 and text.count("\n", last.start(1), label.start(1)) == 1:
            found |= {last.start(1), label.start(1)}
        last = label
    return found


@functools.cache
def _rules(letters: str) -> "_Rules":
    return _Rules(letters)


class _Rules:
    """Judges letters by the words around them. All patterns have bounded repeats, so no text makes a search slow."""

    def __init__(self, letters: str) -> None:
        small = letters.lower()
        self._mark = re.compile(
            rf"(?<![{_LATIN}])(?:[{letters}]{_END}|[{small}](?![{_LATIN}])(?=\s{{0,3}}[\"')\]}}.:,;]|{_LINE_ENDS}))"
        )
        # Without spaces, which belong to AND: a pattern that matches in two ways may take for ever.
        single = rf"[\"'(\[]{{0,2}}[{letters}]{_END}[\"')\]]{{0,2}}"
        several = rf"{single}(?:{wording.AND}{single}){{0,8}}"
        fillers = (
            rf"(?:[\s,:\"'(\[]{{0,4}}(?:(?i:{wording.FILLER})|{wording.SHORT_FILLER}){_WORD_END}){{0,6}}[\s,:]{{0,3}}"
        )
        noun = (
            rf"(?:(?<![A-Za-z])(?i:{wording.ANSWER}|{wording.CORRECT_ONE}){_WORD_END}|(?i:{wording.ANSWER_ELSEWHERE}))"
        )
        # Any text up to the letter, within its sentence, without another letter.
        letter = rf"(?<![{_LATIN}])[{letters}]{_END}"
        within = rf"(?:(?![.!?]\s|[。！？；;\n]|{letter}|{wording.ASIDE})[\s\S])"
        self._box = re.compile(rf"\\(?:boxed|fbox)\s?\{{{_OPEN}(?:(?i:{wording.OPTION}|answer)[\s:]{{1,3}})?{_OPEN}$")
        self._box_ends = re.compile(r"\s{0,12}(?:[})\].:,;\"、。]|'\s?\})")
        self._field = re.compile(
            rf"(?:{noun}{_CLOSE}(?:(?i:is)\s?)?(?:[:=–—→\]-]|=>|->)"
            # A heading names no letter: `The answer is C. Turn right` is not a heading.
            rf"|(?:\A|\n)(?:(?!{letter})[^\n]){{0,30}}{noun}[^\S\n]{{0,12}}\n)"
            rf"{fillers}{_OPEN}$"
        )
        self._sentence = re.compile(
            rf"(?:(?<![A-Za-z])(?i:{wording.ANSWER}|{wording.CORRECT_ONE}){_WORD_END}{within}{{0,90}}?"
            rf"(?:(?i:{wording.IS}){_WORD_END}|\bnot {several},? but){fillers}"
            rf"|(?i:{wording.ANSWER_ELSEWHERE}){within}{{0,40}}"
            rf"|(?<![A-Za-z])(?i:{wording.CHOOSE}){fillers}){_OPEN}$"
        )
        # In fewer words, so that nothing but the answer can follow. Not `each option: (A) is wrong`.
        self._stated = re.compile(
            rf"(?:(?<![A-Za-z])(?i:{wording.ANSWER}|{wording.CORRECT_ONE}){_WORD_END}"
            rf"(?: (?:here|should|would|must|to (?:this|the) (?:question|problem))){{0,2}}\s{{1,3}}"
            rf"(?i:{wording.IS}){_WORD_END}|(?<![A-Za-z])(?<!each )(?<!every )(?i:answer)\s?[:=](?!\s*\n))"
            rf"{fillers}{_OPEN}$"
        )
        self._option_text = re.compile(rf"\s?[)\]]|{_CLOSE_HERE}[.:]?\s?(?i:false)\b")
        self._name = re.compile(
            rf"(?<![A-Za-z])(?<!\bthis )(?<!\bthat )(?:(?i:{wording.NAME})\s(?:{single} (?:and|or)\s)?"
            rf"|(?i:{wording.SEVERAL_NAMES})\s(?:{several}{wording.AND})?){_OPEN}$"
        )
        self._supposed = re.compile(rf"(?i:{wording.SUPPOSED})(?:(?![.!?]\s|[。！？\n]|\bthen\b)[\s\S]){{0,80}}$")
        self._correct = re.compile(rf"{_CLOSE_HERE}(?:[.:,] ?)?(?i:{wording.IS_CORRECT})")
        self._therefore = re.compile(rf"(?<![A-Za-z])(?i:{wording.THEREFORE}){fillers}{_OPEN}$")
        self._noun = re.compile(rf"{noun}{_OPEN}$")
        self._directly_not = re.compile(rf"(?i:{wording.NOT})$")
        self._not = re.compile(rf"(?i:{wording.NOT})(?:{several}{wording.AND})?{_OPEN}$")
        # With a plural verb all letters of a series are wrong; in `C, A is wrong` only A is.
        others = rf"(?:{wording.AND}{single}){{1,8}}(?!{wording.IS_ONE})\s?"
        self._is_wrong = re.compile(rf"{_CLOSE_HERE}(?:{others})?(?i:{wording.IS_WRONG})")
        self._begins = re.compile(rf"{_CLOSE}(?:[.:,;)、。\]–—-]|$|(?i:{wording.BECAUSE}))|[\"')\]]|\s*\n")
        self._option = re.compile(rf"(?i:{wording.OPTION}){_OPEN}$")
        self._word = re.compile(rf"\s+(?!(?:{wording.FOLLOWS_A_LETTER}){_WORD_END})[a-z\u00df-\u024f]")

    def marks(self, text: str) -> Iterator[_Mark]:
        """The letters that stand alone, in their order."""
        found, listed = list(self._mark.finditer(text)), _listed(text)
        if len(found) > 2 * _MARKS_AT_AN_END:
            found = found[:_MARKS_AT_AN_END] + found[-_MARKS_AT_AN_END:]
        for match in found:
            start, end = match.span()
            before, behind = text[max(0, start - _BEFORE) : start], text[end : end + _BEHIND]
            begins = start <= _BEFORE and re.fullmatch(_OPEN, before) is not None
            yield _Mark(match[0], before, behind, begins, start in listed)

    def rank(self, mark: _Mark) -> int | None:
        """In which way (1 is the strongest) the letter is stated; None if it is not chosen."""
        before, behind = mark.before, mark.behind
        if self._box.search(before):
            return 1 if self._box_ends.match(behind) else None
        line_ends = re.match(_CLOSE_HERE + _LINE_ENDS, behind) is not None
        if mark.begins and line_ends and not behind.strip(" \n\"')]}.。"):
            # The letter is the whole text.
            return 6
        is_marked = bool(_OPENED.search(before) and _CLOSED.match(behind))
        if mark.letter.islower() and not is_marked:
            return self._rank_in_lower_case(before, behind, line_ends)
        if self._not.search(before) or self._is_ruled_out(before, behind) or self._may_be_word(mark, is_marked):
            return None
        if not mark.listed:
            if self._field.search(before):
                return 2
            if re.match(rf"{_CLOSE}(?:[.。]|\Z)|{_LINE_ENDS}", behind) and self._noun.search(before):
                return 3
            if sentence := self._sentence.search(before):
                return self._rank_of_sentence(before[: sentence.start()], behind)
        if self._correct.match(behind):
            return 5
        if mark.listed:
            return None
        if line_ends and re.search(r"(?:\A|\n)[ \t\"'(\[{]{0,12}$", before):
            return 6
        if mark.begins and self._begins.match(behind):
            return 7
        if self._therefore.search(before):
            return 8
        if _FORMULA_BEFORE.search(before) or _FORMULA_BEHIND.match(behind):
            return None
        return None if self._is_name(before) else 9

    def _rank_in_lower_case(self, before: str, behind: str, line_ends: bool) -> int | None:
        if not (line_ends or _CLOSED.match(behind) or re.match(r"\.(?:\s|\Z)", behind)):
            return None
        if self._is_ruled_out(before, behind):
            return None
        if self._field.search(before):
            return 2
        stated = self._stated.search(before)
        return self._rank_of_sentence(before[: stated.start()], behind) if stated else None

    def _is_ruled_out(self, before: str, behind: str) -> bool:
        if not self._is_wrong.match(behind):
            return False
        return not (self._option_text.match(behind) and self._stated.search(before))

    def _is_name(self, before: str) -> bool:
        """Whether the letter belongs to a name. Where an answer is stated, the options may be called so: `figure C`."""
        name = self._name.search(before)
        return name is not None and not self._sentence.search(before[: name.start()])

    def _rank_of_sentence(self, before: str, behind: str) -> int | None:
        if self._directly_not.search(before):
            return None
        is_supposed = self._supposed.search(before) or re.match(rf"{_CLOSE}if\s", behind)
        return 4 if is_supposed else 3

    def _may_be_word(self, mark: _Mark, is_marked: bool) -> bool:
        if mark.letter not in wording.WORDS or is_marked or self._option.search(mark.before):
            return False
        if mark.letter == "I":
            return re.match(r"\s+[A-Za-z]|'", mark.behind) is not None
        return self._word.match(mark.behind) is not None
