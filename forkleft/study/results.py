"""The results of a study, in memory and in one small file.

`results.json` holds, for every cell and benchmark, the verdict on each item as one bit, so that every figure and test
can be made again from it alone. A study of 32 runs on three benchmarks of 500 items takes about 30 kB.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from forkleft.digests import is_intact, sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS, read_regular, write_text
from forkleft.objective.routes import Route
from forkleft.study.cells import writing
from forkleft.study.effects import Clusters, Verdicts
from forkleft.study.grid import CellKind, Place
from forkleft.study.names import check_folder

FORMAT = 1
# Parts into which the updates of a run are cut when its routes are counted.
PARTS = 10
ROUTE_NAMES = tuple(str(route) for route in Route)


@dataclass(frozen=True)
class Measured:
    """One benchmark of one cell. step: the update whose checkpoint was measured; None: the final model."""

    decoding: str
    step: int | None
    benchmark: str
    verdicts: np.ndarray
    tokens: int
    forwards: int


@dataclass(frozen=True)
class Routes:
    """How many questions a run had on each route (CE, LEFTOPD, GOLD, EXCLUDE): at first visits, and in each tenth of
    its updates."""

    first: tuple[int, ...]
    parts: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class CellResults:
    """What was measured of a cell."""

    kind: CellKind
    label: str
    measured: tuple[Measured, ...]
    routes: Routes | None = None


@dataclass(frozen=True)
class Hole:
    """A cell that is missing: why, and the command that makes it."""

    label: str
    error: str
    command: str


@dataclass(frozen=True)
class Items:
    """The items of a benchmark: how many, a digest of what is asked, and their clusters (None: each its own)."""

    count: int
    digest: str
    clusters: tuple[int, ...] | None


@dataclass(frozen=True)
class ArmFacts:
    """What a reader must know about an arm: the options that not all arms share, its models and its updates."""

    options: dict[str, Any]
    students: tuple[str, ...]
    teacher: str
    updates: int
    questions_from: dict[str, str] | None = None


@dataclass(frozen=True)
class StudyResults:
    """All that tables and figures are made of. `shared` are the options that all arms have in common."""

    name: str
    about: str
    shared: dict[str, Any]
    arms: dict[str, ArmFacts]
    seeds: tuple[int, ...]
    benchmarks: tuple[str, ...]
    limit: int | None
    decoding: dict[str, dict[str, Any]]
    curve: bool
    compare: tuple[tuple[str, str], ...]
    effects: dict[str, dict[str, tuple[str, ...]]]
    places: tuple[Place, ...]
    items: dict[str, Items] = field(default_factory=dict)
    cells: dict[str, CellResults] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()

    @property
    def clusters(self) -> Clusters:
        """The clusters of the items of each benchmark."""
        return {name: items.clusters for name, items in self.items.items()}

    def steps(self, arm: str) -> list[int]:
        """The updates after which an arm was measured: 0 is the base, the last one the final model."""
        cells = [self.cells[place.cell] for place in self.places if place.arm == arm and place.cell in self.cells]
        between = {measured.step for cell in cells for measured in cell.measured if measured.step is not None}
        return [0, *sorted(between), self.arms[arm].updates]

    def of_arm(self, arm: str, decoding: str, step: int | None = None) -> dict[int, dict[str, np.ndarray]]:
        """An arm's verdicts by seed and benchmark, of the seeds that were measured on all benchmarks."""
        if step == 0:
            return self.of_base(arm, decoding)
        last = step is None or step == self.arms[arm].updates
        return self._by_seed(arm, "cell", decoding, None if last else step)

    def of_base(self, arm: str, decoding: str) -> dict[int, dict[str, np.ndarray]]:
        """The verdicts on the student that each seed of an arm began with."""
        return self._by_seed(arm, "base", decoding, None)

    def of_teacher(self, arm: str) -> dict[int, dict[str, np.ndarray]]:
        """The verdicts on the teacher of each seed of an arm."""
        return self._by_seed(arm, "teacher", None, None)

    def _by_seed(self, arm: str, kind: str, decoding: str | None, step: int | None) -> dict[int, dict[str, np.ndarray]]:
        found = {}
        for place in self.places:
            cell = self.cells.get(getattr(place, kind))
            if place.arm != arm or cell is None:
                continue
            verdicts = {
                measured.benchmark: measured.verdicts
                for measured in cell.measured
                if measured.step == step and decoding in (None, measured.decoding)
            }
            if all(name in verdicts for name in self.benchmarks):
                found[place.seed] = {name: verdicts[name] for name in self.benchmarks}
        return found


def tables(chosen: Sequence[Mapping[int, Mapping[str, np.ndarray]]]) -> tuple[list[int], list[Verdicts]]:
    """The seeds that several arms have in common, and for each arm the tables of verdicts, seeds by items."""
    common = [seed for seed in chosen[0] if all(seed in by_seed for by_seed in chosen)]
    if not common:
        return [], []
    names = chosen[0][common[0]]
    return common, [{name: np.stack([by_seed[seed][name] for seed in common]) for name in names} for by_seed in chosen]


def save_results(path: Path, results: StudyResults) -> None:
    """Write results to a file, with a line for each arm, cell and so on, so that a diff of two files can be read."""
    said = (
        {"format": FORMAT}
        | vars(results)
        | {
            "arms": {name: asdict(arm) for name, arm in results.arms.items()},
            "places": [asdict(place) for place in results.places],
            "items": {name: asdict(items) for name, items in results.items.items()},
            "holes": [asdict(hole) for hole in results.holes],
            "cells": {name: _compact(cell) for name, cell in results.cells.items()},
        }
    )
    text = "{\n" + ",\n".join(f'"{name}": {_lines(value)}' for name, value in sealed(said).items()) + "\n}\n"
    with writing(path.parent):
        write_text(path, text)


def _lines(value: Any) -> str:
    """JSON with a line for each entry of a list or object that holds others."""
    if isinstance(value, dict) and any(isinstance(entry, dict) for entry in value.values()):
        entries = [f" {json.dumps(name, ensure_ascii=False)}: {_line(entry)}" for name, entry in value.items()]
        return "{\n" + ",\n".join(entries) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f" {_line(entry)}" for entry in value) + "\n]"
    return _line(value)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def load_results(path: Path) -> StudyResults:
    """Read what `save_results` wrote. Raises ForkLeftError if it is damaged, naming what is wrong."""
    said = read_object(path)
    try:
        study = study_of(said)
        items = {
            name: Items(kept["count"], kept["digest"], None if kept["clusters"] is None else tuple(kept["clusters"]))
            for name, kept in said["items"].items()
        }
        cells = {name: _loaded(cell, items) for name, cell in said["cells"].items()}
        holes = tuple(Hole(**hole) for hole in said["holes"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        advice = "restore it, or remove it and start forkleft study run again"
        raise ForkLeftError(f"{path} is damaged ({error!r}); {advice}") from error
    return StudyResults(**vars(study) | {"items": items, "cells": cells, "holes": holes})


def _compact(cell: CellResults) -> dict[str, Any]:
    rows = [
        [
            measured.decoding,
            measured.step,
            measured.benchmark,
            int(measured.verdicts.sum()),
            _packed(measured.verdicts),
            measured.tokens,
            measured.forwards,
        ]
        for measured in cell.measured
    ]
    routes = None if cell.routes is None else [cell.routes.first, cell.routes.parts]
    return {"kind": cell.kind, "label": cell.label, "routes": routes, "measured": rows}


def _loaded(said: Mapping[str, Any], items: Mapping[str, Items]) -> CellResults:
    measured = []
    for decoding, step, benchmark, correct, packed, tokens, forwards in said["measured"]:
        verdicts = _unpacked(packed, items[benchmark].count)
        if int(verdicts.sum()) != correct:
            raise ValueError(f"{said['label']}: {benchmark} says {correct} right, its verdicts {verdicts.sum()}")
        measured.append(Measured(decoding, step, benchmark, verdicts, tokens, forwards))
    routes = None
    if said["routes"] is not None:
        first, parts = said["routes"]
        routes = Routes(tuple(first), tuple(map(tuple, parts)))
    return CellResults(said["kind"], said["label"], tuple(measured), routes)


def _packed(verdicts: np.ndarray) -> str:
    return base64.b64encode(np.packbits(verdicts.astype(bool)).tobytes()).decode()


def _unpacked(text: str, count: int) -> np.ndarray:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text, validate=True), np.uint8))
    if not count <= len(bits) < count + 8:
        raise ValueError(f"expected {count} verdicts, found {len(bits)}")
    return bits[:count].astype(bool)


def study_of(said: Mapping[str, Any]) -> StudyResults:
    """The study that a file describes, without what was measured."""
    study = StudyResults(
        name=said["name"],
        about=said["about"],
        shared=said["shared"],
        arms={name: ArmFacts(**arm | {"students": tuple(arm["students"])}) for name, arm in said["arms"].items()},
        seeds=tuple(said["seeds"]),
        benchmarks=tuple(said["benchmarks"]),
        limit=said["limit"],
        decoding=said["decoding"],
        curve=said["curve"],
        compare=tuple((first, second) for first, second in said["compare"]),
        effects={
            factor: {level: tuple(arms) for level, arms in levels.items()} for factor, levels in said["effects"].items()
        },
        places=tuple(Place(**place) for place in said["places"]),
    )
    for place in study.places:
        for digest in (place.cell, place.base, place.teacher):
            check_folder(digest)
    return study


def read_object(path: Path) -> dict[str, Any]:
    """The content of one of our JSON files. Raises ForkLeftError if it is missing or damaged."""
    try:
        said = json.loads(read_regular(path))
        if not isinstance(said, dict) or said.get("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        if not is_intact(said):
            raise ValueError("it is not as it was written")
    except FileNotFoundError:
        raise ForkLeftError(f"there is no study in {path.parent}: expected {path.name}; name its folder") from None
    except (OSError, *JSON_ERRORS) as error:
        raise ForkLeftError(f"{path} is damaged ({error}); run the study again, or restore the file") from error
    return {name: value for name, value in unsealed(said).items() if name != "format"}
