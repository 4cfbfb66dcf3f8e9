"""The folder of a cell: what is in it already, what is missing, and the commands that make it.

ROOT/teacher_answers.jsonl          the teachers' answers, for all cells
ROOT/cells/DIGEST/cell.json         what it is
                  recipe.yaml       the recipe of its training, and chat_template.jinja where one is given
                  train/            the run
                  eval/NAME/        results, a folder for each way to measure
                  log.txt           what its commands printed
                  times.json        how long they took
                  failed.json       the error of the last try, if it failed
                  .lock             held by the process that works on it, and by its commands
"""

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from forkleft.errors import ForkLeftError
from forkleft.evaluate.results import SUMMARY
from forkleft.files import is_locked, lock, remove_unfinished, write_json, write_text
from forkleft.study import timing
from forkleft.study.grid import Cell, Evaluation
from forkleft.study.names import CELLS
from forkleft.train import checkpoints
from forkleft.train.recipes import recipe_page
from forkleft.trust import trusting_words

ANSWERS = "teacher_answers.jsonl"
ROUTES = "routes.jsonl"
_FAILED, _ANSWERED, _LOCK = "failed.json", "answered", ".lock"
# Options that an untrained student may need to be loaded; a trained one has them in its folder.
_LOADING = ("family", "block_size", "mask_token")
_TEMPLATE = "chat_template.jinja"
# The file that `forkleft train` writes last.
_LAST = "README.md"


@dataclass(frozen=True)
class Task:
    """A command of a cell.

    name: `answers`, `train`, or `eval/` and the folder. words: what follows `forkleft`. units: how much there is to do.
    resumed: whether a part of it is done. alone: whether one process must run it, which spreads a teacher over all
    devices.
    """

    name: str
    words: tuple[str, ...]
    units: int
    resumed: bool = False
    alone: bool = False

    @property
    def command(self) -> str:
        """The command as a user types it."""
        return shlex.join(["forkleft", *self.words])


@dataclass(frozen=True)
class Failure:
    """Why a cell is missing, and the command to try it again by hand."""

    error: str
    command: str


class CellFolder:
    """A cell on disk; the module's docstring lists its files."""

    def __init__(self, root: Path, cell: Cell) -> None:
        self.root, self.cell = root, cell
        self.path = root / CELLS / cell.digest
        self.train = self.path / "train"

    @property
    def log(self) -> Path:
        """The file with what its commands printed."""
        return self.path / "log.txt"

    def evaluation(self, evaluation: Evaluation) -> Path:
        """The folder of an evaluation's results, with a folder for each benchmark in it."""
        return self.path / "eval" / evaluation.folder

    def prepare(self) -> None:
        """Write the description of the cell and its recipe. Raises ForkLeftError if they cannot be written."""
        with writing(self.path):
            write_json(self.path / "cell.json", self.cell.as_json(), ensure_ascii=False)
            if self.cell.kind in ("train", "answers"):
                write_text(self.path / "recipe.yaml", recipe_page(self.recipe()))
            if "chat_template" in self.cell.options:
                write_text(self.path / _TEMPLATE, self.cell.options["chat_template"])

    def recipe(self) -> dict[str, Any]:
        """The options of its training, with its paths on disk."""
        said = self.cell.options | {"output_dir": str(self.train), "answer_cache": str(self.root / ANSWERS)}
        if self.cell.routes_of is not None:
            routes = self.root / CELLS / self.cell.routes_of / "train" / ROUTES
            said |= {"train_ids": str(routes), "train_route": self.cell.route}
        return said

    # What is done.

    def is_made(self) -> bool:
        """Whether there is a model to evaluate: trained to the end, or one that is not trained at all."""
        if self.cell.kind == "answers":
            return (self.path / _ANSWERED).exists()
        return self.cell.kind != "train" or (self.train / _LAST).is_file()

    def missing(self) -> list[Evaluation]:
        """The evaluations that are not finished, each with the benchmarks that it lacks."""
        return [
            replace(evaluation, benchmarks=lacking)
            for evaluation in self.cell.evaluations
            if (lacking := tuple(name for name in evaluation.benchmarks if not self.has(evaluation, name)))
        ]

    def has(self, evaluation: Evaluation, benchmark: str) -> bool:
        """Whether the results of a benchmark are there."""
        return (self.evaluation(evaluation) / benchmark / SUMMARY).is_file()

    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.is_made() and not self.missing()

    # What is left to do.

    def tasks(self) -> list[Task]:
        """The commands that are left, in their order. A training without a whole checkpoint begins anew."""
        evaluations = [self._evaluation_task(evaluation) for evaluation in self.missing()]
        if self.is_made():
            return evaluations
        words: tuple[str, ...] = (
            "answer" if self.cell.kind == "answers" else "train",
            "--config",
            str(self.path / "recipe.yaml"),
            # Whoever runs the study has allowed it.
            *trusting_words(self.cell.options),
        )
        if self.cell.kind == "answers":
            alone = self.cell.options.get("teacher_device_map") is not None
            return [Task("answers", words, timing.answers(self.cell.options), alone=alone)]
        resumed = _resumable(self.train)
        words += ("--resume_from_checkpoint", "true") if resumed else ()
        return [Task("train", words, timing.visits(self.cell.options), resumed), *evaluations]

    def begin(self, task: Task) -> None:
        """Prepare for a task: remove the folder of a training that cannot be resumed."""
        if task.name == "train" and not task.resumed and self.train.exists():
            shutil.rmtree(self.train)

    def _evaluation_task(self, evaluation: Evaluation) -> Task:
        options, folder = self.cell.options, self.evaluation(evaluation)
        words = ["eval", "--model", str(self._model(evaluation)), "--benchmark", *evaluation.benchmark_words]
        words += ["--output", str(folder)]
        device_map = options.get("teacher_device_map") if self.cell.kind == "teacher" else None
        if self.cell.kind == "teacher":
            words += ["--ar", *_flags({"device_map": device_map})]
        if self.cell.kind == "base":
            words += _flags({name: options.get(name) for name in _LOADING})
            words += ["--chat-template", str(self.path / _TEMPLATE)] if "chat_template" in options else []
        if options.get("trust_remote_code"):
            words.append("--trust-remote-code")
        if evaluation.own_verifier:
            words.append("--trust-verifier")
        words += _flags(evaluation.settings | {"limit": evaluation.limit})
        name, units = f"eval/{evaluation.folder}", timing.items(evaluation)
        return Task(name, tuple(words), units, folder.exists(), alone=device_map is not None)

    def _model(self, evaluation: Evaluation) -> Path | str:
        if self.cell.kind != "train":
            return self.cell.options["teacher" if self.cell.kind == "teacher" else "student"]
        return self.train if evaluation.step is None else self.train / f"checkpoint-{evaluation.step}"

    # How it went.

    def succeed(self, task: Task, seconds: float) -> None:
        """Write down that a task ended well."""
        times = self.path / timing.TIMES
        with writing(self.path):
            if task.name == "answers":
                write_text(self.path / _ANSWERED, "")
            if not task.resumed:
                write_json(times, timing.read_times(times) | {task.name: (round(seconds, 1), task.units)}, indent=None)
            (self.path / _FAILED).unlink(missing_ok=True)

    def fail(self, failure: Failure) -> None:
        """Write down why the cell is missing."""
        with writing(self.path):
            write_json(self.path / _FAILED, asdict(failure))

    def forget_failure(self) -> None:
        """Remove the error of the last try: the cell is finished. A command may be killed after its last file."""
        with suppress(OSError):
            (self.path / _FAILED).unlink(missing_ok=True)

    def failure(self) -> Failure | None:
        """Why the cell is missing, if a try failed."""
        try:
            return Failure(**json.loads((self.path / _FAILED).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def lock(self) -> TextIO | None:
        """Lock the cell, as long as the file is open here or in one of its commands; None if another process has it."""
        with writing(self.path):
            file = (self.path / _LOCK).open("a")
        if lock(file, wait=False):
            remove_unfinished(self.path)
            return file
        file.close()
        return None

    def is_running(self) -> bool:
        """Whether some process has the lock."""
        return is_locked(self.path / _LOCK)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Make a folder to write to. An OSError, also of a write within, becomes a ForkLeftError that says what to do."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise ForkLeftError(
            f"cannot write to {folder}: {error.strerror}; make room or mend it, and start the same command again: what "
            "is finished stays"
        ) from error


def _resumable(run: Path) -> bool:
    try:
        # Digests are not checked here: the training does that itself.
        checkpoints.newest_whole(run, digests=False)
    except ForkLeftError:
        return False
    return True


def _flags(settings: dict[str, Any]) -> list[str]:
    return [
        word
        for name, value in settings.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
