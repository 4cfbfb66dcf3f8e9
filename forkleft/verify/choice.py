r"""The letter chosen in a written answer to a multiple-choice question.

The last match of the first of these that occurs: `\boxed{C}`; `answer: C`, also as `"answer": "C"` or
`**Answer** = (C)`; `answer is C`; a capital that stands alone. Only offered letters count. A box marks a letter well
enough to take it in lower case too, if the letter ends there or a sign such as a full stop follows: what goes on may be
a formula (`\boxed{a+b}`, `\boxed{d = 5}`). So does a colon if the letter is quoted, in brackets or at the end of the
line. Otherwise a lower-case one is rather a word, as in "Answer: a triangle" or "the answer is a prime".

This departs from the scorer of OPDLM, which needs no boundary behind a letter in a box or behind a colon, so that the
first letter of a word may count ("Answer: because"), and takes lower case behind "answer is" too ("the answer is a").
"""

import functools
import re

# Quotes, brackets and emphasis around a letter. Bounded, so that no text makes the search slow.
_AROUND = r"[\s*_\"'“”‘’()\[\]$]{0,12}"
_FONT = r"\\(?:text|math)[a-z]{0,4}\s?\{\s?"
_NOUN = r"(?i:(?:option|choice|letter)\b)"
# What may stand behind a letter in a box; not a lone `*` or `'`, as in a formula.
_CLOSING = r"(?:[})\].:,;$\"”’）．。：，、]|\*\*|'\s?\})"


def choice_answer(response: str, letters: str) -> str | None:
    """The letter of `letters` that the response chooses, or None if it chooses none."""
    for pattern in _patterns(letters):
        found = pattern.findall(response)
        if found:
            return found[-1].upper()
    return None


@functools.cache
def _patterns(letters: str) -> tuple[re.Pattern[str], ...]:
    # Not `\b`: between Chinese characters and a letter there is no word boundary.
    alone = r"(?![A-Za-z0-9_])"
    capital, either = f"([{letters}]){alone}", f"([{letters}{letters.lower()}]){alone}"
    closed = r"[\"”)\]}*$]|['’](?![A-Za-z])|[^\S\n]{0,12}\.?[^\S\n]{0,12}(?:\n|\Z)"
    marked = f"([{letters}]{alone}|[{letters.lower()}](?={closed}))"
    answer = r"(?<![A-Za-z])(?i:answer)"
    gap = rf"{_AROUND}(?:{_NOUN})?{_AROUND}(?:{_FONT})?"
    in_box = rf"{_AROUND}(?:(?:{_FONT}|{_NOUN}){_AROUND}){{0,3}}"
    return (
        re.compile(rf"\\boxed\s?\{{{in_box}{either}(?=\s{{0,12}}{_CLOSING})"),
        re.compile(rf"{answer}{_AROUND}[:=：]{gap}{marked}"),
        re.compile(rf"{answer}{_AROUND}\s(?i:is):?{gap}{capital}"),
        re.compile(rf"(?<![A-Za-z0-9_]){capital}"),
    )
