"""`forkleft eval --list`: the list of benchmarks. Not in `evaluation.py`, which loads PyTorch."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import DATA_FOLDER, Benchmark, data_at_hand
from forkleft.files import read_jsonl


def list_benchmarks(
    benchmarks: Iterable[Benchmark],
    console: Console | None = None,
    folder: str | Path | None = None,
) -> None:
    """Print a table of the benchmarks: protocol, items, budget, licence, and where the data would come from.

    folder: where to look for data, instead of FORKLEFT_DATA.
    """
    caption = "generated: the model writes; slot: likelihood of the offered letters.\ndata: a file in the folder "
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.caption = f"{caption}{escape(str(folder or DATA_FOLDER))}, or the hub"
    for column in ("benchmark", "protocol"):
        table.add_column(column, no_wrap=True)
    for column in ("items", "budget"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("licence", "data"):
        table.add_column(column, overflow="fold")
    for benchmark in benchmarks:
        if benchmark.source is not None:
            data = "[green]made here[/]"
        elif path := data_at_hand(benchmark, folder):
            data = _at_hand(benchmark, path)
        else:
            data = "[red]not at hand[/]" if benchmark.hub is None else f"hub: {escape(benchmark.hub.path)}"
        # Nothing is written in a slot, so there is no budget.
        budget = str(benchmark.max_new_tokens) if benchmark.protocol == "generated" else "–"
        said = (benchmark.name, benchmark.protocol, str(benchmark.items), budget, benchmark.licence)
        # A file of others may hold what Rich takes for markup; so may a path.
        table.add_row(*map(Text, said), data)
    (console or Console()).print(table)


def _at_hand(benchmark: Benchmark, path: Path) -> str:
    """Whether a file holds all items of a benchmark, for the list."""
    try:
        count = len(read_jsonl(path))
    except ForkLeftError:
        return "[red]at hand, damaged[/]"
    return "[green]at hand[/]" if count == benchmark.items else f"[yellow]at hand, {count} of {benchmark.items}[/]"
