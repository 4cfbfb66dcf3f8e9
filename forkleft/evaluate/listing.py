"""`forkleft eval --list`: what benchmarks there are. Apart from the evaluation, which loads PyTorch."""

from collections.abc import Iterable
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import DATA_FOLDER, Benchmark, data_at_hand
from forkleft.files import read_jsonl


def list_benchmarks(
    benchmarks: Iterable[Benchmark],
    console: Console | None = None,
    folder: str | Path | None = None,
) -> None:
    """Print what benchmarks there are: protocol, items, budget, licence, and where the data would come from.

    folder: where data is looked for, instead of in FORKLEFT_DATA.
    """
    caption = "generated: the model writes; slot: likelihood of the offered letters.\ndata: a file in the folder "
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    table.caption = f"{caption}{folder or DATA_FOLDER}, or the hub"
    for column in ("benchmark", "protocol"):
        table.add_column(column, no_wrap=True)
    for column in ("items", "budget"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("licence", "data"):
        table.add_column(column, overflow="fold")
    for one in benchmarks:
        if one.source is not None:
            data = "[green]made here[/]"
        elif path := data_at_hand(one, folder):
            data = _at_hand(one, path)
        else:
            data = "[red]not at hand[/]" if one.hub is None else f"hub: {one.hub.path}"
        # Nothing is written in a slot, so that there is no budget to tell.
        budget = str(one.max_new_tokens) if one.protocol == "generated" else "–"
        table.add_row(one.name, one.protocol, str(one.items), budget, one.licence, data)
    (console or Console()).print(table)


def _at_hand(benchmark: Benchmark, path: Path) -> str:
    """Whether a file holds all items of a benchmark, for the list."""
    try:
        count = len(read_jsonl(path))
    except ForkLeftError:
        return "[red]at hand, damaged[/]"
    return "[green]at hand[/]" if count == benchmark.items else f"[yellow]at hand, {count} of {benchmark.items}[/]"
