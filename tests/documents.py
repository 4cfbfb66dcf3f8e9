"""The Python code in Markdown pages, to be run as it is printed."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def python_blocks(page: str) -> list[str]:
    """The code blocks of a page of the repository, in their order."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


def run_block(code: str, page: str) -> dict[str, Any]:
    """Run a block and return the names that it defines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(code, page, "exec"), names)
    return names
