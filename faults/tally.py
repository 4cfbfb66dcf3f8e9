"""What was done to the program, and how it ended."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass
class Tally:
    """A kind of fault: how often it was injected, and what was lost by it, in words. Figures: measured on the way."""

    fault: str
    injected: int = 0
    lost: list[str] = field(default_factory=list)
    figures: str = ""

    @property
    def survived(self) -> int:
        """Faults after which all was as it should be."""
        return self.injected - len(self.lost)


class Tallies:
    """Tallies by fault, in the order in which they came up."""

    def __init__(self) -> None:
        self._found: dict[str, Tally] = {}

    def add(self, fault: str, lost: Sequence[str] = (), injected: int = 1, figures: str = "") -> None:
        """Count a fault, or several of a kind. lost: for each that was not survived, what is wrong."""
        tally = self._found.setdefault(fault, Tally(fault))
        tally.injected += injected
        tally.lost += lost
        tally.figures = figures or tally.figures

    def all(self) -> list[Tally]:
        """All of them."""
        return list(self._found.values())


def print_tallies(tallies: Iterable[Tally], console: Console) -> bool:
    """Print one table, and below it what was lost; True if nothing was."""
    tallies = list(tallies)
    table = Table(title="Faults")
    for name in ("fault", "injected", "survived", "lost", "figures"):
        table.add_column(name, justify="right" if name in ("injected", "survived", "lost") else "left")
    for tally in tallies:
        counts = (tally.injected, tally.survived, len(tally.lost))
        table.add_row(tally.fault, *(f"{count:,}" for count in counts), tally.figures)
    injected, lost = sum(tally.injected for tally in tallies), sum(len(tally.lost) for tally in tallies)
    table.add_section()
    table.add_row("all", f"{injected:,}", f"{injected - lost:,}", f"{lost:,}", "")
    console.print(table)
    for tally in tallies:
        for text in tally.lost:
            console.print(f"lost ({tally.fault}): {text}", highlight=False, markup=False)
    return lost == 0
