"""Faults: what the promises of docs/reliability.md are tested with, at length.

    make faults                                        # all of it, and one table
    python -m faults --only crashes --kills 6          # a part of it, or less of it

Short forms of the same run among the tests (tests/test_faults.py).
"""
