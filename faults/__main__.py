"""`make faults`: the long forms of all faults, and one table of what was injected, survived and lost."""

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from faults import crashes, damage, disk, endurance, hostile
from faults.tally import Tally, print_tallies

_PARTS = ("crashes", "disk", "damage", "hostile", "endurance")


def told(name: str, part: Callable[[], list[Tally]]) -> list[Tally]:
    """The tallies of a part. An error that ends it is a loss like any other, so that the table comes all the same."""
    try:
        return part()
    except Exception as error:
        traceback.print_exc()
        return [Tally(name, 1, [f"the harness itself failed: {type(error).__name__}: {error!s:.200}"])]


def main() -> int:
    """Exit code 1 if anything is lost; then the files of the runs stay."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=_PARTS, default=_PARTS, help="parts to run (default: all)")
    parser.add_argument("--kills", type=int, default=120, metavar="N", help="SIGKILLs of processes (default 120)")
    parser.add_argument("--disks", type=int, default=30, metavar="N", help="full disks (default 30)")
    parser.add_argument("--damages", type=int, default=5000, metavar="N", help="of each kind of file (default 5,000)")
    parser.add_argument("--cases", type=int, default=100_000, metavar="N", help="of hostile input (default 100,000)")
    parser.add_argument("--updates", type=int, default=2000, metavar="N", help="in one process (default 2,000)")
    parser.add_argument("--verdicts", type=int, default=100_000, metavar="N", help="in one process (default 100,000)")
    parser.add_argument("--seed", type=int, metavar="N", help="of all that is random (default: drawn, and printed)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    console, work = Console(), Path(tempfile.mkdtemp(prefix="faults-"))
    console.print(f"seed {seed}", highlight=False)
    parts: dict[str, Callable[[], list[Tally]]] = {
        "crashes": lambda: crashes.run(work / "crashes", options.kills, seed, console),
        "disk": lambda: disk.run(work / "disk", options.disks, seed),
        "damage": lambda: damage.run(work / "damage", options.damages, seed),
        "hostile": lambda: hostile.run(options.cases, seed),
        "endurance": lambda: endurance.run(work / "endurance", options.updates, options.verdicts),
    }
    tallies: list[Tally] = []
    try:
        for name in _PARTS:
            if name in options.only:
                tallies += told(name, parts[name])
    finally:
        survived = print_tallies(tallies, console)
    if not survived:
        console.print(f"the runs are in {work}", highlight=False, soft_wrap=True)
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
