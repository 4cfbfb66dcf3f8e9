"""The names of the files and folders of a study, by which it is known."""

from typing import Any

# In the folder of a study: what it consists of, and its results.
STUDY = "study.json"
RESULTS = "results.json"
# Beside the folders of studies: what they train and evaluate.
CELLS = "cells"


def check_folder(found: Any) -> None:
    """Raise ValueError if what a file names is no folder inside another: a cell, an evaluation or a benchmark."""
    named = isinstance(found, str) and 0 < len(found) < 256 and not {"/", "\0"} & set(found)
    if not named or found in (".", ".."):
        raise ValueError(f"expected the name of a folder, found {found!r:.80}")
