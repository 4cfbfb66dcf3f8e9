"""Run every benchmark, print the table and write `benchmarks/results.json`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import growth, loss, readout, rollout, update, verify

THREADS = 1


def main() -> int:
    """Exit code 1 if a goal is missed."""
    # One thread on both sides: a second one helps large and small tensors unequally, and the machine may be shared.
    torch.set_num_threads(THREADS)
    console = Console()
    results = []
    for module in (rollout, readout, loss, update, growth, verify):
        with console.status(module.__name__):
            results += module.run()
    table = Table(title="Benchmarks", caption=f"median of interleaved repeats, {THREADS} thread")
    table.add_column("measured")
    for column in ("value", "goal", "met", "spread"):
        table.add_column(column, justify="right")
    for result in results:
        low, high = result.spread
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.met]
        goal = "" if result.goal is None else f"{result.goal}x"
        table.add_row(result.name, f"{result.value:.2f}x", goal, met, f"{low:.2f}–{high:.2f}")
    console.print(table)
    rows = [asdict(result) | {"met": result.met} for result in results]
    Path(__file__).with_name("results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 1 if any(result.met is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
