r"""A response as plain text: without Markdown, HTML-like tags, LaTeX fonts, full-width and invisible characters.

    without_markup(r"**Answer:** Ｃ, <b>not</b> \(\text{D}\)")  # " Answer:  C,  not    D  "

What marks an answer stays: `\boxed{…}` as it is, `<answer>C</answer>` as a line `answer: C`.
"""

import re
import unicodedata

_FONT = re.compile(r"\\(?:text|math)[a-z]{0,6}\s?\{([^{}\n]{0,200})\}|\\(?:bf|it|rm|sf|tt)\b")
_THOUGHT = re.compile(r"(?i)</think(?:ing)?>|◁/think▷")
_SIGNS = str.maketrans(
    dict.fromkeys("“”„‟«»「」『』《》〈〉", '"')
    | dict.fromkeys("‘’‚‛‹›", "'")
    | dict.fromkeys("【〔〖［", "[")
    | dict.fromkeys("】〕〗］", "]")
)
_RULES = (
    # Soft hyphens, joiners and marks of direction: invisible characters between a letter and its neighbours.
    (re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufe0f\ufeff]"), ""),
    # Text that is struck out does not count.
    (re.compile(r"~~[^~\n]{1,80}~~"), " "),
    (re.compile(r"(?i)[<\[](?:final[_ ]?)?(?:answer|ans|choice)[>\]]"), "\nanswer: "),
    (re.compile(r"(?i)[<\[]/(?:final[_ ]?)?(?:answer|ans|choice)[>\]]|<(?:br|p|/p|div|/div|li|/li)\s?/?>"), "\n"),
    # Tags and special tokens, but not <C>.
    (re.compile(r"<(?![A-Z]>)/?[A-Za-z][^<>\n]{0,80}>|<\|[^|<>\n]{1,40}\|>"), " "),
    (_FONT, lambda found: f" {found[1] or ''} "),
    (_FONT, lambda found: f" {found[1] or ''} "),
    (re.compile(r"\\(?:left|right|displaystyle|q?quad|;|,|:|!|\(|\)|\[|\]|\s)|\$"), " "),
    # An emphasised letter counts like a quoted one.
    (re.compile(r"(?<![\w*])[*_`]{1,3}[ \t]?([A-Za-z])[ \t]?[*_`]{1,3}(?![\w*])"), r' "\1" '),
    # Emphasis and headings, quotations and bullets at the start of a line.
    (re.compile(r"\*{2,}|(?<![\w)])\*|\*(?![\w(])|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])|[`|]"), " "),
    (re.compile(r"(?m)^[ \t]{0,8}(?:#{1,6}[ \t]|>|[-+•●▪][ \t])[ \t]{0,8}"), ""),
    (re.compile(r"(?m)^[ \t]{0,8}[-=]{3,}[ \t]{0,8}$"), ""),
)


def without_markup(text: str) -> str:
    """The text with its signs in one form and its markup removed."""
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def after_thought(text: str) -> str | None:
    """The text after the thoughts of a model that marks them; None if it marks none."""
    ends = list(_THOUGHT.finditer(text))
    return text[ends[-1].end() :] if ends else None
