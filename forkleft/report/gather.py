"""What a report shows, read from disk: runs, results beside them, and studies.

Whatever is missing, torn or still being written is left out, and a note for people says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forkleft.errors import ForkLeftError
from forkleft.evaluate.compare import Comparison, compare_results
from forkleft.evaluate.results import SUMMARY, unfinished
from forkleft.files import is_locked, read_appended, read_yaml
from forkleft.report.viewer import compact, spread
from forkleft.study.names import CELLS, RESULTS, STUDY
from forkleft.train.run_files import ADAPTATION, LOCK_FILE, METRICS, RUN_FILE, is_finished, read_run

if TYPE_CHECKING:
    from forkleft.study.analysis import Analysis
    from forkleft.study.results import StudyResults

Status = Literal["finished", "running", "stopped"]

# Traces on a page, unless the user says otherwise: they open in about a second at 1,024 tokens each.
TRACES = 200
# Any of these makes a folder the folder of a run.
_OF_A_RUN = (RUN_FILE, METRICS, "traces.jsonl")
# Entries that every update has in metrics.jsonl, and those that are no numbers.
_OF_AN_UPDATE = {"loss", "questions", "student_accuracy", "teacher_accuracy"}
_OF_AN_UPDATE |= {"route_ce", "route_leftopd", "route_gold", "route_exclude"}
_WORDS = ("warning", "text")
# The file that a run writes last.
_CARD = "README.md"
# The folder of a demo in which its results are, and the name of those before training.
_RESULTS, _BASE = "results", "base"


@dataclass(frozen=True)
class Run:
    """A training run as its folder shows it.

    options: of its recipe; without one (a run from Python), what decides the run. logged: the rows of metrics.jsonl.
    traces, showcase: rows for the viewer (`viewer.compact`). traced: how many traces there are in all. group: runs of
    the same group (an arm of a study) have one colour.
    """

    name: str
    folder: Path
    status: Status
    options: Mapping[str, Any]
    has_recipe: bool
    logged: Sequence[Mapping[str, Any]]
    traces: Sequence[Mapping[str, Any]]
    traced: int
    showcase: Sequence[Mapping[str, Any]]
    comparisons: Sequence[Comparison] = ()
    notes: Sequence[str] = ()
    group: str = ""

    @property
    def updates(self) -> list[Mapping[str, Any]]:
        """The logged rows of updates, without evaluations and warnings."""
        return [row for row in self.logged if row.keys() >= _OF_AN_UPDATE]


@dataclass(frozen=True)
class Study:
    """A study: its results, and what they show."""

    results: "StudyResults"
    analysis: "Analysis"


@dataclass
class Gathered:
    """All that a page shows."""

    runs: list[Run] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)


def gather(paths: Sequence[Path], *, traces: int = TRACES) -> Gathered:
    """Read the folders: of runs, of results (the first is compared with each other), and of studies.

    traces: how many traces are kept of all runs together. Raises ForkLeftError for a folder that is none of these.
    """
    if traces < 0:
        raise ForkLeftError(f"--traces must not be negative, found {traces}")
    kinds = {path: _kind(path) for path in dict.fromkeys(paths)}
    found, results = Gathered(), [path for path, kind in kinds.items() if kind == "results"]
    of_runs = [path for path, kind in kinds.items() if kind == "run"]
    for path, name in zip(of_runs, _names(of_runs), strict=True):
        found.runs.append(read_run_folder(path, name, traces=traces // len(of_runs)))
    for path in (path for path, kind in kinds.items() if kind == "study"):
        for folder, study in _studies(path):
            found.studies.append(study)
            found.runs += _runs_of(study.results, folder, traces)
    if len(results) == 1:
        raise ForkLeftError(
            f"{results[0]} holds results, which are compared with others; name those of the base first, then these"
        )
    found.comparisons += [compare_results(results[0], other) for other in results[1:]]
    return found


def read_run_folder(folder: Path, name: str, *, traces: int = TRACES, group: str = "") -> Run:
    """A run, finished or not. Raises ForkLeftError if its configuration cannot be read."""
    notes: list[str] = []
    decided = read_run(folder) or {}
    if decided.get("objective") == ADAPTATION:
        raise ForkLeftError(
            f"{folder} is a run of forkleft adapt, which has no teacher and no forks to report on; its curves are in "
            "curves.png, its figures in README.md and metrics.jsonl"
        )
    recipe = folder / "recipe.yaml"
    options = read_yaml(recipe, "recipe") if recipe.is_file() else decided
    logged = _rows(folder / METRICS, notes, _is_logged)
    whole = _shown(folder / "traces.jsonl", notes)
    cut = [row for row in whole if row["cut"]]
    if cut:
        many = f"{len(cut)} responses are" if len(cut) > 1 else "1 response is"
        notes.append(f"{many} longer than the viewer shows, and cut there")
    shown = _shown(folder / "showcase.jsonl", notes)
    return Run(
        name=name,
        folder=folder,
        status=_status(folder, logged, decided.get("max_steps", -1)),
        options=options,
        has_recipe=recipe.is_file(),
        logged=logged,
        traces=spread(whole, traces),
        traced=len(whole),
        showcase=shown,
        comparisons=_beside(folder, notes),
        notes=notes,
        group=group or name,
    )


def _kind(path: Path) -> Literal["run", "results", "study"]:
    if not path.is_dir():
        raise ForkLeftError(f"expected the folder of a run, of results or of a study, found no folder at {path}")
    if any((path / name).is_file() for name in _OF_A_RUN):
        return "run"
    if any((folder / name).is_file() for folder in (path, *_folders(path)) for name in (STUDY, RESULTS)):
        return "study"
    if _has_results(path):
        return "results"
    inner = [str(folder) for folder in _folders(path) if any((folder / name).is_file() for name in _OF_A_RUN)]
    hint = f"; did you mean {', '.join(inner[:3])}?" if inner else "; name the output_dir of `forkleft train`"
    raise ForkLeftError(f"{path} holds no run, no results and no study (no metrics.jsonl, {SUMMARY} or {STUDY}){hint}")


def _folders(path: Path) -> list[Path]:
    return sorted(folder for folder in path.glob("*") if folder.is_dir())


def _has_results(path: Path) -> bool:
    return (path / SUMMARY).is_file() or any(path.glob(f"*/{SUMMARY}")) or bool(unfinished(path))


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, and more of it where that is not enough to tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=1) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def _status(folder: Path, logged: Sequence[Mapping[str, Any]], wanted: int) -> Status:
    if is_locked(folder / LOCK_FILE):
        return "running"
    # In a copy of a folder the files are no longer in the order of their writing, by which an end is known.
    reached = 0 < wanted <= max((row["step"] for row in logged), default=0) and (folder / _CARD).is_file()
    return "finished" if reached or is_finished(folder) else "stopped"


def _rows(
    path: Path, notes: list[str], is_ours: Callable[[Mapping[str, Any]], bool] = lambda row: True
) -> list[dict[str, Any]]:
    """The whole lines of a file of a run, and a note about the others. is_ours: whether a row is of the kind."""
    if not path.is_file():
        return []
    rows = [row for _, row in read_appended(path)]
    whole = [row for row in rows if row is not None and isinstance(row.get("step"), int) and is_ours(row)]
    if len(whole) < len(rows):
        notes.append(f"{path.name}: {_lines(len(rows) - len(whole))} torn or still being written, left out")
    return whole


def _shown(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The rows of a file as the viewer needs them, and a note about those that lack something."""
    rows = [compact(row) for row in _rows(path, notes)]
    whole = [row for row in rows if row is not None]
    if len(whole) < len(rows):
        notes.append(f"{path.name}: {_lines(len(rows) - len(whole))} without what the viewer needs, left out")
    return whole


def _is_logged(row: Mapping[str, Any]) -> bool:
    """Whether a row of metrics has numbers only, apart from the words of a warning."""
    return all(isinstance(value, int | float) or name in _WORDS for name, value in row.items())


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def _beside(folder: Path, notes: list[str]) -> list[Comparison]:
    """The results beside a run, as a demo leaves them: those of the base against each other."""
    base = folder / _RESULTS / _BASE
    if not base.is_dir():
        return []
    found = []
    for other in _folders(folder / _RESULTS):
        if other.name == _BASE:
            continue
        try:
            found.append(compare_results(base, other))
        except ForkLeftError as error:
            notes.append(f"results are not compared: {error}")
    return found


def _studies(path: Path) -> list[tuple[Path, Study]]:
    """The studies of a folder, each with its own folder."""
    # Only here: what a study is made of needs torch and more, which the report of a run does without.
    from forkleft.report.studies import study_folders
    from forkleft.study.analysis import analyse
    from forkleft.study.collect import collect
    from forkleft.study.results import load_results

    found = []
    for folder in study_folders(path):
        results = collect(folder) if (folder / STUDY).is_file() else load_results(folder / RESULTS)
        found.append((folder, Study(results, analyse(results))))
    return found


def _runs_of(results: "StudyResults", folder: Path, traces: int) -> list[Run]:
    """The training runs of a study's cells, where they are on disk; traces and showcase of an arm's first seed only."""
    found: list[Run] = []
    traced: set[str] = set()
    for place in results.places:
        path = folder.parent / CELLS / place.cell / "train"
        if not (path / METRICS).is_file():
            continue
        share = 0 if place.arm in traced else traces // len(results.arms)
        run = read_run_folder(path, f"{place.arm}, seed {place.seed}", traces=share, group=place.arm)
        found.append(replace(run, showcase=()) if place.arm in traced else run)
        traced.add(place.arm)
    return found
