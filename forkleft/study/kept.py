"""What is known of cells whose folders are gone: the verdicts in the `results.json` of studies.

Results are small and are kept, for instance in a repository; the cells are large and are not. A study that is continued
on another machine does not make a cell again that one of the results beside it holds.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from forkleft.study.cells import CellFolder
from forkleft.study.grid import Cell, Evaluation
from forkleft.study.names import RESULTS
from forkleft.study.results import Items, Measured, Routes, StudyResults, load_results

# A cell's digest, the folder of an evaluation, a benchmark.
_Key = tuple[str, str, str]


@dataclass
class Kept:
    """Measurements of the studies in a folder, by cell, evaluation and benchmark, and the routes of trainings."""

    measured: dict[_Key, tuple[Measured, Items]] = field(default_factory=dict)
    routes: dict[str, Routes] = field(default_factory=dict)

    @classmethod
    def in_root(cls, root: Path) -> "Kept":
        """All that the results of the studies in `root` hold. Raises ForkLeftError if one of them is damaged."""
        kept = cls()
        for path in sorted(root.glob(f"*/{RESULTS}")):
            kept._add(load_results(path))
        return kept

    def _add(self, results: StudyResults) -> None:
        for digest, cell in results.cells.items():
            if cell.routes is not None:
                self.routes[digest] = cell.routes
            for measured in cell.measured:
                # A teacher writes greedily; its way to decode has no settings and is not among the study's.
                settings = results.decoding.get(measured.decoding, {})
                how = Evaluation(measured.decoding, settings, (), results.limit, measured.step)
                items = results.items[measured.benchmark]
                self.measured[digest, how.folder, measured.benchmark] = (measured, items)

    def find(self, cell: Cell, evaluation: Evaluation, benchmark: str) -> tuple[Measured, Items] | None:
        """What was measured, under the name that this study gives the way to decode."""
        found = self.measured.get((cell.digest, evaluation.folder, benchmark))
        if found is None:
            return None
        measured, items = found
        return replace(measured, decoding=evaluation.decoding), items

    def settles(self, folder: CellFolder) -> bool:
        """Whether a cell has no folder, and all its measurements are kept."""
        cell = folder.cell
        wanted = [(evaluation, name) for evaluation in cell.evaluations for name in evaluation.benchmarks]
        return not folder.path.exists() and bool(wanted) and all(self.find(cell, *pair) for pair in wanted)


def still_needed(folders: Iterable[CellFolder], kept: Kept) -> dict[str, CellFolder]:
    """The cells without those that need not be made: all is kept of them, and no cell that is to be made needs them.

    A training on the questions of another one needs that one's folder, and every training its teacher's answers.
    """
    by_digest = {folder.cell.digest: folder for folder in folders}
    needed: set[str] = set()
    wanted = [digest for digest, folder in by_digest.items() if not _is_settled(folder, kept)]
    while wanted:
        digest = wanted.pop()
        if digest not in needed:
            needed.add(digest)
            wanted += _needs(by_digest, digest)
    return {digest: folder for digest, folder in by_digest.items() if digest in needed}


def _is_settled(folder: CellFolder, kept: Kept) -> bool:
    # Answers are of no use but to trainings.
    return kept.settles(folder) or (folder.cell.kind == "answers" and not folder.is_finished())


def _needs(by_digest: Mapping[str, CellFolder], digest: str) -> list[str]:
    """The cells that a cell needs if it is still to be made."""
    folder = by_digest[digest]
    return [] if folder.is_finished() else [need for need in folder.cell.needs if need in by_digest]
