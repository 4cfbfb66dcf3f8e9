"""The lab's answers: a digit after the last `#`, or a letter in `"answer": "C"`."""

import re

_MARKED = re.compile(r'#(\d)|"answer": "([A-D])"')


def lab_answer(response: str) -> str | None:
    """The last marked answer in a lab response, or None if none is marked."""
    found = _MARKED.findall(response)
    return found[-1][0] or found[-1][1] if found else None
