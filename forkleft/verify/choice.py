r"""The letter chosen in a written answer to a multiple-choice question.

The last match of the first of these that occurs: `\boxed{C}`; `answer: C`, also as `"answer": "C"` or
`**Answer** = (C)`; `answer is C`; a capital that stands alone. Only offered letters count. A box marks a letter well
enough to take it in lower case too, and so does a colon if the letter is quoted, in brackets or at the end of the line.
Otherwise a lower-case one is rather a word, as in "Answer: a triangle" or "the answer is a prime".

This departs from the scorer of OPDLM, which needs no boundary behind a letter in a box or behind a colon, so that the
first letter of a word may count ("Answer: because"), and takes lower case behind "answer is" too ("the answer is a").
"""

import functools
import re

# Quotes, brackets and emphasis around a letter. Bounded, so that no text makes the search slow.
_AROUND = r"[\s*_\"'“”‘’()\[\]$]{0,12}"
_FONT = r"(?:\\(?:text|math)[a-z]{0,4}\s?\{\s?)?"
_NOUN = r"(?:(?:option|choice|letter)\b)?"


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
    gap = rf"{_AROUND}(?i:{_NOUN}){_AROUND}{_FONT}"
    return (
        re.compile(rf"\\boxed\s?\{{{_AROUND}{_FONT}{_AROUND}{either}"),
        re.compile(rf"{answer}{_AROUND}[:=：]{gap}{marked}"),
        re.compile(rf"{answer}{_AROUND}\s(?i:is):?{gap}{capital}"),
        re.compile(rf"(?<![A-Za-z0-9_]){capital}"),
    )
