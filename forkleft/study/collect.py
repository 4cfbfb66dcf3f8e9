"""From the cells on disk to the results of a study."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from forkleft.digests import sealed
from forkleft.errors import ForkLeftError
from forkleft.evaluate.results import SUMMARY, Results, flat, read_results
from forkleft.files import remove_unfinished, write_json
from forkleft.study.cells import ROUTES, CellFolder, writing
from forkleft.study.grid import Cell, Evaluation, Grid
from forkleft.study.kept import Kept, still_needed
from forkleft.study.names import RESULTS, STUDY, check_folder
from forkleft.study.results import (
    FORMAT,
    PARTS,
    ROUTE_NAMES,
    CellResults,
    Hole,
    Items,
    Measured,
    Routes,
    StudyResults,
    read_object,
    study_of,
)
from forkleft.train.data import read_routes
from forkleft.train.recipes import not_default


def note_study(folder: Path, grid: Grid) -> None:
    """Write the list of a study's cells into its folder, so that its results can be read from them."""
    said = _header(grid) | {"cells": [cell.as_json() for cell in grid.cells.values()]}
    with writing(folder):
        remove_unfinished(folder)
        write_json(folder / STUDY, sealed({"format": FORMAT} | said), indent=1, ensure_ascii=False)


def read_noted(folder: Path) -> dict[str, Any] | None:
    """What `note_study` wrote, or what the results say where they alone are kept, which is no cell's options; or None.

    Raises ForkLeftError if it is damaged.
    """
    if (folder / STUDY).is_file():
        return read_object(folder / STUDY)
    return read_object(folder / RESULTS) | {"cells": []} if (folder / RESULTS).is_file() else None


def collect(folder: Path) -> StudyResults:
    """The results of a study from its cells, which are beside its folder; a missing cell is a hole.

    Of a cell whose folder is gone, what the `results.json` of this study or of one beside it holds is taken.
    """
    noted = read_object(folder / STUDY)
    try:
        cells = [_cell(said) for said in noted.pop("cells")]
        study = study_of(noted)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ForkLeftError(f"{folder / STUDY} is damaged ({error!r}); run the study again") from error
    kept = Kept.in_root(folder.parent)
    folders = [CellFolder(folder.parent, cell) for cell in cells]
    needed = still_needed(folders, kept)
    items: dict[str, Items] = {}
    found: dict[str, CellResults] = {}
    holes = []
    for on_disk in folders:
        cell = on_disk.cell
        if kept.settles(on_disk):
            measured, wrong = _kept(cell, kept, items)
            routes = kept.routes.get(cell.digest)
        else:
            measured, wrong = _measured(on_disk, items)
            try:
                routes = _routes(on_disk)
            except ForkLeftError as error:
                routes, wrong = None, wrong or str(error)
        if measured:
            found[cell.digest] = CellResults(cell.kind, cell.label, tuple(measured), routes)
        if wrong or (cell.digest in needed and not on_disk.is_finished()):
            holes.append(_hole(on_disk, wrong))
    return StudyResults(**vars(study) | {"items": items, "cells": found, "holes": tuple(holes)})


def _hole(folder: CellFolder, wrong: str | None) -> Hole:
    if folder.is_running():
        # So there is no command to try it by hand.
        return Hole(folder.cell.label, "running", "")
    failure, tasks = folder.failure(), folder.tasks()
    error = wrong or (failure.error if failure else "not run yet")
    command = failure.command if failure else (tasks[0].command if tasks else "")
    return Hole(folder.cell.label, error, command)


def _measured(folder: CellFolder, items: dict[str, Items]) -> tuple[list[Measured], str | None]:
    """What was measured of a cell, and what is wrong with it. items: those of each benchmark in the first cell."""
    found: list[Measured] = []
    for evaluation in folder.cell.evaluations:
        for benchmark in evaluation.benchmarks:
            if not folder.has(evaluation, benchmark):
                continue
            try:
                results = _results(folder.evaluation(evaluation) / benchmark, benchmark)
            except ForkLeftError as error:
                return found, str(error)
            here = _items(results)
            if items.setdefault(benchmark, here) != here:
                return found, f"{results.folder} was measured on other items than the cells before; remove it"
            figures = results.summary["results"]
            verdicts = np.array([record.correct for record in results.records])
            found.append(
                Measured(
                    evaluation.decoding, evaluation.step, benchmark, verdicts, figures["tokens"], figures["forwards"]
                )
            )
    return found, None


def _results(folder: Path, benchmark: str) -> Results:
    """The results of a benchmark. Raises ForkLeftError if they lack what a study shows."""
    results = next(iter(read_results(folder).values()))
    leaves = flat(results.summary)
    wanted = {"results.tokens": int, "results.forwards": int, "configuration.items.digest": str}
    wrong = [name for name, kind in wanted.items() if not isinstance(leaves.get(name), kind)]
    if leaves["configuration.benchmark"] != benchmark:
        wrong = ["configuration.benchmark"]
    if wrong:
        found = f"{leaves.get(wrong[0])!r:.40}"
        raise ForkLeftError(f"{folder / SUMMARY} is damaged: {wrong[0]} is {found}; remove {folder}, and run it again")
    return results


def _kept(cell: Cell, kept: Kept, items: dict[str, Items]) -> tuple[list[Measured], str | None]:
    """The same for a cell whose folder is gone."""
    found: list[Measured] = []
    for evaluation in cell.evaluations:
        for benchmark in evaluation.benchmarks:
            if (of_cell := kept.find(cell, evaluation, benchmark)) is None:
                continue
            measured, here = of_cell
            if items.setdefault(benchmark, here) != here:
                return found, f"what is kept of it was measured on other items of {benchmark}; remove {RESULTS}"
            found.append(measured)
    return found, None


def _items(results: Results) -> Items:
    names = [record.cluster for record in results.records]
    own = all(record.cluster == record.id for record in results.records)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    clusters = None if own else tuple(numbers[name] for name in names)
    return Items(len(names), results.summary["configuration"]["items"]["digest"][:16], clusters)


def _routes(folder: CellFolder) -> Routes | None:
    path = folder.train / ROUTES
    if folder.cell.kind != "train" or not path.is_file():
        return None
    rows = read_routes(path)
    first: dict[str, str] = {}
    parts = [[0] * len(ROUTE_NAMES) for _ in range(PARTS)]
    for number, routed in enumerate(rows):
        for name, route in routed:
            first.setdefault(name, route)
            parts[number * PARTS // len(rows)][ROUTE_NAMES.index(route)] += 1
    counts = tuple(list(first.values()).count(route) for route in ROUTE_NAMES)
    return Routes(counts, tuple(map(tuple, parts)))


def _header(grid: Grid) -> dict[str, Any]:
    """The description of a study in the files of its results."""
    study = grid.study
    # What takes turns with the seeds is no option of all of them.
    options = {
        name: {option: value for option, value in not_default(arm.options).items() if option not in arm.with_seed}
        for name, arm in study.arms.items()
    }
    shared = _shared(options.values())
    arms = {}
    for name, arm in study.arms.items():
        by_seed = [study.options(name, seed) for seed in study.seeds]
        own = {option: value for option, value in options[name].items() if option not in shared}
        arms[name] = {
            "options": own | {option: list(values) for option, values in arm.with_seed.items()},
            "students": list(dict.fromkeys(seed_options["student"] for seed_options in by_seed)),
            "teacher": by_seed[0]["teacher"],
            "updates": by_seed[0].get("max_steps", -1),
            "questions_from": None if arm.questions_from is None else asdict(arm.questions_from),
        }
    return {
        "name": study.name,
        "about": study.about,
        "shared": shared,
        "arms": arms,
        "seeds": study.seeds,
        "benchmarks": study.benchmarks,
        "limit": study.limit,
        "decoding": study.decoding,
        "curve": bool(study.curve),
        "compare": study.compare,
        "effects": study.effects,
        "places": [asdict(place) for place in grid.places],
    }


def _shared(options: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    first, *others = options
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _cell(said: Mapping[str, Any]) -> Cell:
    evaluations = tuple(
        Evaluation(**evaluation | {"benchmarks": tuple(evaluation["benchmarks"])}) for evaluation in said["evaluations"]
    )
    cell = Cell(**dict(said) | {"evaluations": evaluations, "needs": tuple(said["needs"])})
    # All of these name folders.
    measured = [name for evaluation in evaluations for name in (evaluation.folder, *evaluation.benchmarks)]
    for name in (cell.digest, *cell.needs, *measured, *([] if cell.routes_of is None else [cell.routes_of])):
        check_folder(name)
    return cell
