r"""Mathematical answers exactly as OPDLM scores them: for the figures of the paper, which builds on OPDLM.

Math-Verify looks for the answer as an expression and as LaTeX. Then both answers are put into `\boxed{}`, read as LaTeX
and compared; an error in any step makes the response wrong. Training needs something else: `math.py`.

Runs only in the worker processes of `pool.py`: SymPy may take hours or all memory for an answer such as 9^9^9^9, and
only the end of the process stops it.
"""

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

_LATEX = (LatexExtractionConfig(),)
_ANYWHERE = (ExprExtractionConfig(), *_LATEX)


def judge(response: str, answer: str | None) -> tuple[bool, str | None]:
    """Whether `response` has the expected answer, and the answer found in it; if `answer` is None, only the latter."""
    try:
        found = find_answer(response)
    except Exception:  # Math-Verify and SymPy may raise anything; it means that no answer can be read
        return False, None
    if found is None or answer is None:
        return False, found
    try:
        # The order matters: x=5 is right if 5 is expected, but not the other way round.
        return bool(verify(_boxed(answer), _boxed(found), timeout_seconds=None)), found
    except Exception:
        return False, found


def find_answer(response: str) -> str | None:
    """The final answer as it is written in `response`, or None if there is none."""
    # Its own time-outs are off: they use signals, which cannot stop a single long operation.
    found = parse(response, extraction_config=_ANYWHERE, parsing_timeout=None)
    # The value and, unless it is empty, the text it was read from.
    return str(found[min(1, len(found) - 1)]) if found else None


def _boxed(answer: str) -> list:
    return parse(f"\\boxed{{{answer}}}", extraction_config=_LATEX, parsing_timeout=None)
