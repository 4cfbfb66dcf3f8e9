"""What a study would run: its cells, how long they take and their commands; and whether its folder is free for it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from forkleft.digests import differences
from forkleft.errors import ForkLeftError
from forkleft.files import check_writable
from forkleft.progress import clock_time
from forkleft.study.cells import CellFolder
from forkleft.study.collect import note_study, read_noted
from forkleft.study.grid import Cell, Grid, make_grid
from forkleft.study.kept import Kept, still_needed
from forkleft.study.names import CELLS
from forkleft.study.spec import read_study, with_seeds
from forkleft.study.timing import Rates
from forkleft.trust import EVERYTHING, Trust

LAUNCHER = "torchrun --nproc-per-node 8"


@dataclass(frozen=True)
class Plan:
    """A study in a folder. cells: those to be run now; the grid also has those of seeds that were run before.

    kept: how many cells are not among them because all that is to know of them is in the results beside the study.
    """

    root: Path
    folder: Path
    grid: Grid
    cells: dict[str, Cell]
    kept: int = 0

    def folders(self) -> list[CellFolder]:
        """The cells on disk."""
        return [CellFolder(self.root, cell) for cell in self.cells.values()]

    def begin(self) -> None:
        """Write the description of the study into its folder, so that `study show` finds its cells.

        Raises ForkLeftError if nothing can be written there.
        """
        check_writable(self.root)
        note_study(self.folder, self.grid)


def plan_study(
    file: Path,
    root: Path,
    *,
    seeds: Sequence[int] | None = None,
    base: Path | None = None,
    overrides: Sequence[str] = (),
    benchmarks: Sequence[str] | None = None,
    limit: int | None = None,
    decoding: str | None = None,
    trust: Trust = EVERYTHING,
) -> Plan:
    """Plan the study of a file in the folder `root`; the other arguments are those of `read_study`.

    seeds: run only these; results of other seeds stay in the tables. Raises ForkLeftError as `read_study` and
    `make_grid` do, and if the folder of that name holds another study.
    """
    study = read_study(
        file,
        base=base,
        overrides=overrides,
        benchmarks=benchmarks,
        limit=limit,
        decoding=decoding,
        trust=trust,
    )
    chosen = study.seeds if seeds is None else with_seeds(study, seeds).seeds
    folder = root / study.name
    noted = read_noted(folder)
    before = [] if noted is None else [seed for seed in noted["seeds"] if seed in study.seeds]
    grid = make_grid(with_seeds(study, {*before, *chosen}))
    if noted is not None:
        _check_same(folder, noted, grid)
    cells = grid.of_seeds(chosen)
    needed = still_needed([CellFolder(root, cell) for cell in cells.values()], Kept.in_root(root))
    return Plan(root, folder, grid, {digest: cells[digest] for digest in needed}, len(cells) - len(needed))


def print_plan(plan: Plan, jobs: int, console: Console) -> None:
    """Print the cells, which of them are finished, and how long the others will take."""
    rates, left = Rates.of_cells(plan.root / CELLS), 0.0
    folders = plan.folders()
    finished = sum(folder.is_finished() for folder in folders)
    # The path is the user's, and may hold what Rich takes for markup.
    head = f"{plan.grid.study.name}: {len(folders)} cells in {plan.root}, {finished} of them finished"
    console.print(head, markup=False)
    if plan.kept:
        console.print(f"{plan.kept} more are not needed: the results that are kept there hold what was measured")
    for folder in folders:
        tasks = folder.tasks()
        left += sum(rates.seconds(task.name, task.units) for task in tasks)
        names = ", ".join(f"{task.name} (resumed)" if task.resumed else task.name for task in tasks)
        state = f"to do     {folder.cell.label}: {names}" if tasks else f"finished  {folder.cell.label}"
        console.print(f"{folder.cell.digest}  {state}", markup=False, highlight=False, soft_wrap=True)
    if left:
        source = f"from {rates.count} measured tasks" if rates.count else "a guess: nothing was measured here yet"
        estimate = f"about {clock_time(left / jobs)} with {jobs} at a time ({source})"
        console.print(estimate, markup=False, highlight=False)


def commands_of(plan: Plan, launcher: str | None = None) -> Iterable[str]:
    """The commands that make what is missing, in their order, for several processes; writes their recipes.

    launcher: the words before them (default: those of the arm, or `LAUNCHER`). A teacher with a device map is spread
    over the devices by one process: its answers and its evaluation need no launcher.
    """
    own: dict[str, str] = {}
    for place in plan.grid.places:
        words = launcher or plan.grid.study.arms[place.arm].launcher or LAUNCHER
        for digest in (place.cell, place.base, place.teacher, *plan.grid.cells[place.cell].needs):
            own.setdefault(digest, words)
    for folder in plan.folders():
        if tasks := folder.tasks():
            folder.prepare()
            yield f"# {folder.cell.label}"
            for task in tasks:
                yield task.command if task.alone else f"{own[folder.cell.digest]} -m {task.command}"


def _check_same(folder: Path, noted: dict, grid: Grid) -> None:
    """Raise ForkLeftError if a folder holds another study: other cells for an arm and seed, other settings."""
    study, differing = grid.study, []
    old = {cell["digest"]: cell for cell in noted["cells"]}
    was = {(place["arm"], place["seed"]): place["cell"] for place in noted["places"]}
    for place in grid.places:
        before = was.get((place.arm, place.seed), place.cell)
        if before != place.cell:
            named = _differing(old[before]["options"], grid.cells[place.cell].options) if before in old else ""
            differing.append(f"{grid.cells[place.cell].label}: {named or 'its options, models or data changed'}")
    if noted["limit"] != study.limit:
        differing.append(_differing({"limit": noted["limit"]}, {"limit": study.limit}))
    for name, settings in study.decoding.items():
        if noted["decoding"].get(name, settings) != settings:
            differing.append(f"decoding {name}: {_differing(noted['decoding'][name], settings)}")
    if differing:
        raise ForkLeftError(
            f"{folder} holds another study of this name: {differing[0]}; name another --output, or give the study "
            "another name"
        )


def _differing(old: dict, new: dict) -> str:
    return ", ".join(f"{name} was {was!r}, is {now!r}" for name, was, now in differences(old, new))
