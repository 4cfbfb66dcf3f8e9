r"""Brings a mathematical answer to one form: characters, separators, units, punctuation.

Models write `１２`, `١٢`, `12个`, `1\,000`, `12 cm²` or `**12**.` where `12` or `1000` is meant.
"""

import re
import unicodedata

# A letter of a script that formulas do not use: not Latin, not Greek, not a symbol such as ℝ.
_FOREIGN = r"[^\W\d_\u0000-\u024f\u0370-\u03ff\u2100-\u214f]"
# The same with the marks that scripts such as Devanagari and Thai put on letters. For `re` they are not letters.
# Letters of these scripts are in both kinds: each must match in one way only, or a search takes for ever.
_MARK = rf"(?!{_FOREIGN})[\u0900-\u0dff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]"
_FOREIGN_WORD = rf"{_FOREIGN}(?:{_FOREIGN}|{_MARK})*"


def _everywhere() -> dict[int, str]:
    """The text with one form for characters that mean the same, in prose as well as in formulas."""
    table = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    for code in range(128, 0x20000):
        kind = unicodedata.category(chr(code))
        if kind == "Nd":
            table[code] = str(unicodedata.decimal(chr(code)))
        elif kind == "Zs":
            table[code] = " "
        elif kind == "Cf":
            table[code] = ""
    return table | str.maketrans(
        {"−": "-", "﹣": "-", "。": ".", "｡": ".", "、": ",", "٪": "%", "٫": ".", "٬": ",", "，": ","}
    )


_EVERYWHERE = _everywhere()
_IN_FORMULAS = str.maketrans(
    {
        **dict.fromkeys("·⋅∙", r"\cdot "),
        **dict.fromkeys("÷∕⁄", "/"),
        **dict.fromkeys("’′", "'"),
        **{"×": r"\times ", "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "≈": r"\approx ", "±": r"\pm "},
        **{"≤": r"\leq ", "≥": r"\geq ", "≠": r"\neq ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in "},
    }
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = {chr(code): unicodedata.normalize("NFKC", chr(code)).split("\u2044") for code in (0xBC, 0xBD, 0xBE)} | {
    chr(code): unicodedata.normalize("NFKC", chr(code)).split("\u2044") for code in range(0x2150, 0x215F)
}
_CURRENCY = "".join(chr(code) for code in range(128, 0xFFFF) if unicodedata.category(chr(code)) == "Sc")

_SEPARATED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:,\\!|\\[,;:! >]|\{,\}|~|')\s*\d{3})+(?!\d)")
_WITH_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
# In brackets a comma separates numbers. But no number begins with a zero: (1,000) is not (1,0).
_WITH_COMMAS_IN_BRACKETS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})*,0\d\d(?:,\d{3})*(?!\d|,\d)")
_WITH_UNDERSCORES = re.compile(r"(?<![\w.,\\])\d{1,3}(?:\\?_\d{3})+(?!\w)")
_SCIENTIFIC = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))[eE]([-+]?\d{1,3})")
_WITH_SPACES = re.compile(r"^[-+]?\d{1,3}(?: \d{3})+(?! ?\d)")
_FOREIGN_NAME = re.compile(rf"^{_FOREIGN_WORD}(?:\s+{_FOREIGN_WORD})*\s*[=:]?\s*(?=[-+]?[\d\\])")

_SHORT_UNITS = "m(?=/)|mm|cm|dm|km|mg|kg|ml|mL|ft|in|mi|yd|lb|oz|hr|Hz|Pa|kW"
_WORD = (
    r"(?:\\(?:text|mbox|mathrm|textrm|textit|textbf|operatorname)\s*\{[^{}]*\}"
    rf"|(?<![\\A-Za-z])(?:(?:{_SHORT_UNITS})(?![A-Za-z])|[A-Za-z\u00c0-\u024f]{{3,}}\.?)|{_FOREIGN_WORD})"
)
_POWER = r"(?:\s?\^\s?(?:\d|\{-?\d\}))?"
_NEXT = rf"[\s~/.-]{{1,3}}(?:per |a )?(?:{_WORD}|(?<=/)[hsgml]){_POWER}"
_UNIT = re.compile(rf"(?:\^\s?\{{?\\circ\}}?\s*[CF]|{_WORD}{_POWER}(?:{_NEXT}){{0,5}})\s*$")
# Units of one letter, but not t or d, which are as often variables.
_LETTER_UNIT = re.compile(r"(?<=[\d}\s])[mgshlLNJWV]\s*$")
_UNIT_CHARACTERS = 120


def plain(response: str) -> str:
    """A response with ASCII digits, and with a space between foreign letters and a number.

    Some scripts have no spaces between words; without the space no number would be found there.
    """
    text = response.translate(_EVERYWHERE)
    return re.sub(rf"({_FOREIGN}[:,.]?)(?=[-+]?[\d$\\])", r"\1 ", text)


def trimmed(answer: str) -> str:
    """An answer without the characters around it: spaces, dollar signs, emphasis, the full stop of its sentence."""
    before = None
    while answer != before:
        before = answer
        answer = answer.strip(" \t\r\n$`").lstrip("*=").rstrip("*.,;:")
        answer = answer.removeprefix("\\(").removeprefix("\\[").removesuffix("\\)").removesuffix("\\]")
    return answer


def normal(answer: str) -> str:
    """A LaTeX answer without what does not change it: characters around it, currencies, separators of thousands."""
    text = answer.translate(_EVERYWHERE).translate(_IN_FORMULAS)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+", lambda found: f"^{{{found[0].translate(_RAISED)}}}", text)
    text = re.sub("[¼-¾⅐-⅞]", lambda found: "\\frac{{{}}}{{{}}}".format(*_VULGAR[found[0]]), text)
    text = re.sub(r"√\s?(?:\(([^()]*)\)|(\d+|[a-z]))", lambda found: f"\\sqrt{{{found[1] or found[2]}}}", text)
    text = re.sub(rf"\\\$|[{_CURRENCY}]", "", text)
    text = re.sub(r"(?<!\\)%", r"\\%", trimmed(text))
    text = re.sub(r"^\\(?:approx|simeq|sim)(?![A-Za-z])\s*", "", text)
    text = _WITH_UNDERSCORES.sub(_digits, _SEPARATED.sub(_digits, text))
    # Not in (1,100), which is two numbers.
    in_brackets = re.search(r"[(\[]|\\\{", text)
    text = (_WITH_COMMAS_IN_BRACKETS if in_brackets else _WITH_COMMAS).sub(_digits, text)
    text = _WITH_SPACES.sub(lambda found: found[0].replace(" ", ""), text)
    return _FOREIGN_NAME.sub("", text)


def without_unit(answer: str, *, letters: bool) -> str | None:
    """The part of a normalised answer before the unit words at its end; None if there are none.

    letters: whether a letter such as m counts as a unit too. Hours with minutes are not a number with a unit.
    """
    found = _UNIT.search(answer, max(0, len(answer) - _UNIT_CHARACTERS))
    if found is None and letters:
        found = _LETTER_UNIT.search(answer)
    number = answer[: found.start()].rstrip(" ~\\,;") if found else ""
    return number if number and ":" not in number else None


def scientific(answer: str) -> str | None:
    """A normalised answer such as 1e3, a number as computers print it, in LaTeX; None if it is not one.

    2e-3 may be a formula too, so this is only one of its readings.
    """
    found = _SCIENTIFIC.fullmatch(answer)
    return f"{found[1]}\\times 10^{{{found[2]}}}" if found else None


def bare(answer: str) -> str:
    """A normalised answer as text to compare: without fonts and without the spaces that LaTeX ignores."""
    text = re.sub(r"\\(?:text|mbox|mathrm|mathbf|textbf|textrm|textit|operatorname)\s*\{([^{}]*)\}", r"\1", answer)
    text = re.sub(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\[,;:! ]|~", "", text)
    return re.sub(r"(?<![0-9A-Za-z])\s+|\s+(?![0-9A-Za-z])", "", " ".join(text.split()))


def base(answer: str) -> str | None:
    """The base in the index of a normalised number, as 8 in 52_8; None if it has none."""
    found = re.fullmatch(r"[0-9A-Z]+\s?_\s?(?:\{\s?(\d+)\s?\}|(\d))", answer)
    return found and (found[1] or found[2])


def _digits(number: re.Match[str]) -> str:
    return re.sub(r"\D", "", number[0])
