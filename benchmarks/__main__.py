"""Run the benchmarks, print the table and write `benchmarks/results.json`.

make bench                  all
make bench ROW=readout      one
"""

import argparse
import json
import platform
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import growth, limit, loss, readout, rollout, update, verify
from benchmarks.harness import Result, timed

ROWS = {
    "rollout": rollout,
    "readout": readout,
    "loss": loss,
    "update": update,
    "limit": limit,
    "growth": growth,
    "verify": verify,
}
THREADS = 1
OUTPUT = Path(__file__).with_name("results.json")


def main() -> int:
    """Exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--row", nargs="+", choices=ROWS, default=list(ROWS), help="(default: all)")
    chosen = parser.parse_args().row
    # One thread on both sides: a second one helps large and small tensors unequally, and the machine may be shared.
    torch.set_num_threads(THREADS)
    console = Console()
    results: list[Result] = []
    took = {}
    for name in chosen:
        with console.status(name):
            took[name], found = timed(ROWS[name].run)
        # Each as it comes: what is broken later takes nothing away.
        for result in found:
            console.print(f"{result.name}: {result.value:.2f}{result.unit}", style="dim", highlight=False)
        console.print(f"{name}: {took[name]:.0f} s", style="dim", highlight=False)
        results += found
    console.print(_table(results))
    console.print(f"{sum(took.values()):.0f} s in all", style="dim", highlight=False)
    rows = [asdict(result) | {"met": result.met} for result in results]
    settings = {"threads": THREADS, "torch": torch.__version__, "python": platform.python_version()}
    page = {"settings": settings, "seconds": took, "rows": rows}
    OUTPUT.write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")
    return 1 if any(result.met is False for result in results) else 0


def _table(results: list[Result]) -> Table:
    table = Table(title="Benchmarks", caption=f"medians of interleaved repeats, {THREADS} thread")
    table.add_column("measured")
    for column in ("value", "goal", "met", "spread"):
        table.add_column(column, justify="right")
    for result in results:
        low, high = result.spread
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.met]
        goal = "" if result.goal is None else f"{result.goal}{result.unit}"
        table.add_row(result.name, f"{result.value:.2f}{result.unit}", goal, met, f"{low:.2f}–{high:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main())
