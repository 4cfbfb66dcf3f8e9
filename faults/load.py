"""Load: the tests and the demo on a machine that is busy with other work.

python -m faults.load            # six busy processes, `make test` and `forkleft demo`; about an hour on two cores
"""

import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from faults.spawner import ROOT
from faults.tally import Tally, print_tallies

BUSY = 6


def spin() -> None:
    """Keep a processor busy."""
    while True:
        pass


def main() -> int:
    """Exit code 1 if the tests or the demo fail. Prints a table of the kind of `make faults`."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(BUSY)]
    for other in others:
        other.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            demo = [sys.executable, "-m", "forkleft", "demo", "--output", str(Path(folder) / "demo")]
            # Both, even if the first fails.
            tallies = [under_load(command) for command in (["make", "test"], demo)]
    finally:
        for other in others:
            other.terminate()
    return 0 if print_tallies(tallies, Console()) else 1


def under_load(command: Sequence[str]) -> Tally:
    """Run a command, and say how it ended."""
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    minutes, name = (time.monotonic() - began) / 60, " ".join(command[:2] if command[0] == "make" else command[2:4])
    lost = [f"{name} ended with code {code}"] if code else []
    return Tally(f"{name} beside {BUSY} busy processes", 1, lost, f"{minutes:.0f} minutes")


if __name__ == "__main__":
    sys.exit(main())
