r"""Mathematical answers in training: the last box of a response or, without a box, what it states, compared by value.

    judge(r"so \boxed{\frac{1}{2}}", "0.5")  # (True, r"\frac{1}{2}")

Math-Verify reads the values and compares them, as in `opdlm.py`. What is read, and what counts as equal, is our choice:

- Of several boxes only the last that is complete and not empty counts. Without a box Math-Verify looks for the answer
  in the text. Then both the value and the text in which it was found count (`1/3.`, `22**`).
- Digits of all scripts, full-width characters, thousands separators and unit words are normalised (`normal.py`).
- Where a number is expected, an equation is wrong, unless it names the number (`x = 5`, `5 = x`) or is a correct
  calculation (`2 + 3 = 5`).
- Decimals agree to six places and to five significant digits.

Runs in the worker processes of `pool.py` only, as `opdlm.py` does.
"""

import re
from collections.abc import Iterator
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from latex2sympy2_extended.logic import And
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Abs, Eq, Float, Interval, MatrixBase, Mul, Set, Symbol, Tuple, floor, log
from sympy.core.function import AppliedUndef

from forkleft.verify.normal import bare, base, normal, plain, scientific, trimmed, without_unit

# We remove units ourselves: Math-Verify takes `t` and `d` for units too, so that 3t would be 3.
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
)
_LATEX = (LatexExtractionConfig(normalization_config=_NORMALIZATION),)
_ANYWHERE = (ExprExtractionConfig(), *_LATEX)
_TOKEN = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\(?:boxed|fbox)\s*(?P<argument>[^\s{}$\\]+)|\\[{}]|[{}]")
_DECIMALS, _SIGNIFICANT = 6, 5


def judge(response: str, answer: str | None) -> tuple[bool, str | None]:
    """Whether `response` has the expected answer, and the answer found in it; if `answer` is None, only the latter."""
    try:
        found, values = find_answer(response)
    except Exception:  # Math-Verify and SymPy may raise anything; it means that no answer can be read
        return False, None
    if found is None or answer is None:
        return False, found
    try:
        return _is_right(answer, found, values), found
    except Exception:
        return False, found


def find_answer(response: str) -> tuple[str | None, list[Any]]:
    """The final answer as it is written in `response`, None if there is none; and the values that Math-Verify read.

    There are no values for an answer in a box, which is read as a whole.
    """
    box = last_box(response)
    if box is not None:
        return box, []
    # Its own time-outs are off: they use signals, which cannot stop a single long operation.
    found = parse(plain(response), extraction_config=_ANYWHERE, parsing_timeout=None)
    if not found:
        return None, []
    *values, text = found if isinstance(found[-1], str) else [*found, str(found[-1])]
    return trimmed(text), values


def last_box(response: str) -> str | None:
    r"""The content of the last `\boxed{}` that is complete and not empty; None if there is none."""
    boxes: dict[int, str] = {}
    # The start of each open box, and None for other open braces.
    opened: list[int | None] = []
    for token in _TOKEN.finditer(response):
        if token["argument"]:
            boxes[token.start("argument")] = token["argument"]
        elif token["box"]:
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(None)
        elif token[0] == "}" and opened and (start := opened.pop()) is not None:
            boxes[start] = response[start : token.start()].strip()
    return next((boxes[start] for start in sorted(boxes, reverse=True) if boxes[start]), None)


def _is_right(answer: str, found: str, values: list[Any]) -> bool:
    gold, ours = normal(answer), normal(found)
    if bare(gold) == bare(ours):
        return bare(gold) != ""
    if None not in (base(gold), base(ours)) and base(gold) != base(ours):
        # Math-Verify does not read the base of 52_8.
        return False
    # If 3s is expected, 3 is wrong.
    golds = list(_readings(gold, letters=False))
    return any(_same(right, value) for value in [*_readings(ours, letters=True), *values] for right in golds)


def _readings(text: str, *, letters: bool) -> Iterator[Any]:
    """The possible values of a text: as it is written, as a number before a unit, and as a computer writes it (1e3).

    letters: whether a single letter may be a unit.
    """
    yield from _values(text)
    if (number := scientific(text)) is not None:
        yield from _values(number)
    if (number := without_unit(text, letters=letters)) is not None:
        yield from (value for value in _values(number) if not _symbols(value))


def _values(text: str) -> list[Any]:
    found = parse(f"\\boxed{{{text}}}", extraction_config=_LATEX, parsing_timeout=None)
    return [value for value in found if not isinstance(value, str)]


def _same(gold: Any, found: Any) -> bool:
    if not _is_equation(gold) and not any(map(_is_equation, _parts(gold))):
        found = _stated(found)
        if found is None:
            return False
    # The order matters: 5 is right if x=5 is expected.
    return bool(verify(gold, found, float_rounding=_decimals(gold, found), timeout_seconds=None))


def _stated(found: Any) -> Any:
    """The answer that an equation states, for each part of a list; None if it states none."""
    if isinstance(found, Set | Tuple) and any(map(_is_equation, found.args)):
        stated = [_stated(part) for part in getattr(found, "_unsorted_args", found.args)]
        return None if None in stated else found.func(*stated)
    if not _is_equation(found):
        return found
    relations = found._unsorted_args if isinstance(found, And) else (found,)
    first, last = relations[0].lhs, relations[-1].rhs
    if _is_name(first):
        return last
    if len(relations) == 1 and _is_name(last):
        return first
    sides = [first, *(relation.rhs for relation in relations)]
    if any(map(_symbols, sides)) or str(first) == str(last):
        return None
    right = all(verify(last, side, float_rounding=_decimals(last, side), timeout_seconds=None) for side in sides)
    return last if right else None


def _is_equation(value: Any) -> bool:
    return isinstance(value, Eq) or (isinstance(value, And) and all(isinstance(part, Eq) for part in value.args))


def _is_name(value: Any) -> bool:
    """x, AB (a product to the parser), f(3), |AB|, (x, y) (an interval to the parser)."""
    if isinstance(value, Mul | Abs | Tuple):
        return all(map(_is_name, value.args))
    if isinstance(value, Interval):
        return _is_name(value.start) and _is_name(value.end)
    return isinstance(value, Symbol | AppliedUndef)


def _symbols(value: Any) -> bool:
    return bool(getattr(value, "free_symbols", ()))


def _decimals(*values: Any) -> int:
    """To how many places decimals must agree: six, or more for a number so small that six places are few digits."""
    if not any(value.has(Float) for value in values):
        return _DECIMALS
    numbers = [part for value in values for part in _parts(value) if part.is_number and not _symbols(part)]
    # A percentage is a product that SymPy does not compute by itself.
    sizes = [abs(number.doit().evalf()) for number in numbers]
    # Not as floats of Python, which end at 1e308.
    least = min((log(size, 10).evalf() for size in sizes if size.is_positive and size.is_finite), default=0)
    return max(_DECIMALS, _SIGNIFICANT - 1 - int(floor(least)))


def _parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, MatrixBase):
        return tuple(value.flat())
    return value.args if isinstance(value, Set | Tuple) else (value,)
