"""From a study to its cells: what must be run, each with a digest of its whole configuration.

A cell is a training with its evaluations, or something that trainings need: the untrained student and the teacher,
which are evaluated only, and the teacher's answers. Cells with the same digest are the same cell, also in different
studies, and are made once. Options with their default value, paths on disk and evaluations are not part of a digest.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from forkleft.digests import file_digest, json_digest, text_digest
from forkleft.errors import ForkLeftError
from forkleft.students.bundled import local_path
from forkleft.study.spec import Study, curve_steps
from forkleft.train.recipes import not_default, recipe_of

CellKind = Literal["answers", "base", "teacher", "train"]
# The options that make an untrained student or a teacher, and all that a teacher's answers depend on.
_STUDENT = ("student", "family", "block_size", "mask_token", "chat_template", "trust_remote_code")
_TEACHER = ("teacher", "trust_remote_code")
_ANSWERS = (
    *_STUDENT,
    *("teacher", "teacher_gguf_file", "teacher_dtype", "teacher_device_map", "teacher_batch_size", "teacher_url"),
    *("answers_url", "answers_model", "answers_timeout", "answers_attempts", "answers_concurrency"),
    *("train_data", "train_subset", "train_split", "train_questions", "columns"),
    *("teacher_max_new_tokens", "max_new_tokens", "prompt_template", "reference_template", "verifier", "letters"),
    *("long_prompts", "use_cpu"),
)
# Options that may name a file or folder on this disk; its content is part of the digest.
_FILES = ("student", "teacher", "train_data", "eval_data")
# The files that make a model.
_MODEL_FILES = (
    "*.safetensors",
    "*.bin",
    "*.gguf",
    "*config.json",
    "tokenizer.json",
    "*.jinja",
    "forkleft_student.json",
)
_LAB_DATA = "lab:"
_DIGEST = 16


@dataclass(frozen=True)
class Evaluation:
    """How a cell's model is measured.

    step: the update whose checkpoint it is; None: the final model. described, own_verifier: see `Study`.
    """

    decoding: str
    settings: dict[str, Any]
    benchmarks: tuple[str, ...]
    limit: int | None = None
    step: int | None = None
    described: dict[str, tuple[str, int]] = field(default_factory=dict)
    own_verifier: bool = False

    @property
    def folder(self) -> str:
        """The name of its folder: all that the results depend on, except the model and the benchmarks."""
        said = self.settings | ({} if self.limit is None else {"limit": self.limit})
        parts = [] if self.step is None else [f"step-{self.step}"]
        return "_".join([*parts, *(f"{name}-{value}" for name, value in sorted(said.items()))]) or "static"

    @property
    def benchmark_words(self) -> list[str]:
        """Its benchmarks as `--benchmark` takes them: names, or the files that describe them."""
        words = [self.described[name][0] if name in self.described else name for name in self.benchmarks]
        return list(dict.fromkeys(words))


@dataclass(frozen=True)
class Cell:
    """Something to be made. label: its name for people; needs: digests of the cells that must be made before.

    routes_of, route: this training has the questions that another training (a digest) had on a route.
    """

    kind: CellKind
    digest: str
    label: str
    options: dict[str, Any]
    evaluations: tuple[Evaluation, ...] = ()
    needs: tuple[str, ...] = ()
    routes_of: str | None = None
    route: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The cell for a file. An evaluation without benchmarks or verifiers of the user's does not mention them."""
        cell = asdict(self)
        for evaluation in cell["evaluations"]:
            for name in ("described", "own_verifier"):
                if not evaluation[name]:
                    del evaluation[name]
        return cell


@dataclass(frozen=True)
class Place:
    """The cells of an arm and a seed: the training, and the student and teacher that it began with."""

    arm: str
    seed: int
    cell: str
    base: str
    teacher: str


@dataclass(frozen=True)
class Grid:
    """The cells of a study by their digest, in the order in which they should be run, and their places in the study."""

    study: Study
    cells: dict[str, Cell] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)

    def of_seeds(self, seeds: Iterable[int]) -> dict[str, Cell]:
        """The cells that some of the seeds need."""
        chosen, wanted = set(seeds), set()
        for place in self.places:
            if place.seed in chosen:
                wanted |= {place.cell, place.base, place.teacher, *self.cells[place.cell].needs}
        return {digest: cell for digest, cell in self.cells.items() if digest in wanted}


def make_grid(study: Study) -> Grid:
    """All cells of a study, seed by seed. Raises ForkLeftError for an impossible option and for two identical cells."""
    grid = Grid(study)
    trained: dict[str, str] = {}
    for seed in study.seeds:
        here: dict[str, str] = {}
        # An arm comes before those that take their questions from it.
        for name in sorted(study.arms, key=lambda arm: study.arms[arm].questions_from is not None):
            options = study.options(name, seed)
            answers = _add(grid, _answers(options))
            base, teacher = _add(grid, _base(study, options)), _add(grid, _teacher(study, options))
            source = study.arms[name].questions_from
            routes_of = None if source is None else here[source.arm]
            cell = _training(study, name, options, answers, routes_of, None if source is None else source.route)
            if cell.digest in trained:
                raise ForkLeftError(
                    f"{study.name}: {cell.label} and {trained[cell.digest]} are the same configuration, so that there "
                    "is nothing to compare; mend the arms, or what is set for all of them"
                )
            trained[cell.digest] = cell.label
            here[name] = _add(grid, cell)
            grid.places.append(Place(name, seed, cell.digest, base, teacher))
    order = {name: number for number, name in enumerate(study.arms)}
    grid.places.sort(key=lambda place: (study.seeds.index(place.seed), order[place.arm]))
    return grid


def _add(grid: Grid, cell: Cell) -> str:
    """Add a cell, unless another arm or seed has added it already."""
    grid.cells.setdefault(cell.digest, cell)
    return cell.digest


def _answers(options: Mapping[str, Any]) -> Cell:
    chosen = {name: value for name, value in options.items() if name in _ANSWERS}
    if str(options["train_data"]).startswith(_LAB_DATA):
        # The lab makes other questions for every seed.
        chosen["seed"] = options["seed"]
    label = f"answers of {options['teacher']}" + (f", seed {chosen['seed']}" if "seed" in chosen else "")
    return Cell("answers", _digest("answers", chosen), label, chosen)


def _base(study: Study, options: Mapping[str, Any]) -> Cell:
    chosen = {name: value for name, value in options.items() if name in _STUDENT}
    found = tuple(_evaluation(study, name, settings) for name, settings in study.decoding.items())
    return Cell("base", _digest("base", chosen), f"base {options['student']}", chosen, found)


def _teacher(study: Study, options: Mapping[str, Any]) -> Cell:
    chosen = {name: value for name, value in options.items() if name in _TEACHER}
    digest = _digest("teacher", chosen)
    if "teacher_device_map" in options:
        # Added after the digest: on other devices it is still the same teacher.
        chosen["teacher_device_map"] = options["teacher_device_map"]
    # It writes from left to right, greedily, whatever the student's decoding.
    found = (_evaluation(study, "greedy", {}),)
    return Cell("teacher", digest, f"teacher {options['teacher']}", chosen, found)


def _training(
    study: Study,
    arm: str,
    options: Mapping[str, Any],
    answers: str,
    routes_of: str | None,
    route: str | None,
) -> Cell:
    label = f"{arm}, seed {options['seed']}"
    try:
        _, config = recipe_of({**options, "output_dir": "unused", "bf16": False, "use_cpu": True})
    except ForkLeftError as error:
        raise ForkLeftError(f"{study.name}, {label}: {error}") from error
    if study.curve and config.max_steps < 1:
        raise ForkLeftError(f"{study.name}, {label}: a curve needs to know the updates of the runs; set max_steps")
    steps = curve_steps(study, config.max_steps)
    # Before the first update the model is the base, after the last one the final model.
    between = [step for step in steps if 0 < step < config.max_steps]
    options = dict(options) | ({"save_at": between} if between else {})
    found = [
        _evaluation(study, name, settings, step)
        for step in (None, *between)
        for name, settings in study.decoding.items()
    ]
    digested = options if routes_of is None else options | {"questions_from": [routes_of, route]}
    needs = (answers,) if routes_of is None else (answers, routes_of)
    return Cell("train", _digest("train", digested), label, options, tuple(found), needs, routes_of, route)


def _evaluation(study: Study, decoding: str, settings: dict[str, Any], step: int | None = None) -> Evaluation:
    return Evaluation(decoding, settings, study.benchmarks, study.limit, step, study.described, study.own_verifier)


def _digest(kind: CellKind, options: Mapping[str, Any]) -> str:
    extra = {"questions_from": options["questions_from"]} if "questions_from" in options else {}
    said = not_default({name: value for name, value in options.items() if name not in extra})
    contents = {name: _content(str(said[name])) for name in _FILES if name in said}
    return json_digest({"kind": kind, "options": said, "contents": contents} | extra)[:_DIGEST]


@cache
def _content(name: str) -> str | None:
    """A digest of the file or folder that a name stands for, so that a changed model is another; None if not here."""
    path = Path(name).expanduser()
    if name.startswith(_LAB_DATA):
        try:
            path = local_path(name)
        except ForkLeftError:
            # Questions of the lab, or a model that it does not have: the run will say so.
            return None
    if path.is_file():
        return file_digest(path)
    files = sorted({file for pattern in _MODEL_FILES for file in path.glob(pattern)}) if path.is_dir() else []
    if not files:
        return None
    return text_digest("".join(f"{file.name} {file_digest(file)}\n" for file in files))
