"""Load: the tests and the demo on a machine that is busy with other work.

python -m faults.load            # six busy processes, `make test` and `forkleft demo`; about an hour on two cores
"""

import multiprocessing
import subprocess
import sys
import tempfile
from pathlib import Path

from faults.spawner import ROOT

BUSY = 6


def spin() -> None:
    """Keep a processor busy."""
    while True:
        pass


def main() -> int:
    """Exit code 1 if the tests or the demo fail."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(BUSY)]
    for other in others:
        other.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            demo = [sys.executable, "-m", "forkleft", "demo", "--output", str(Path(folder) / "demo")]
            # Both, even if the first fails.
            codes = [subprocess.run(command, cwd=ROOT, check=False).returncode for command in (["make", "test"], demo)]
            return int(any(codes))
    finally:
        for other in others:
            other.terminate()


if __name__ == "__main__":
    sys.exit(main())
