"""The demo behind `forkleft demo` and `make demo`: distil the lab's student, and measure what it learned.

It is `forkleft train` with the lab's recipe, `forkleft eval` before and after, and `forkleft compare`. All settings of
the training are in the recipe (`recipes/lab.yaml`, in the package `lab/recipe.yaml`). Several processes share the work,
if they were started together (`forkleft/processes.py`, `torchrun`).
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from rich.console import Console

from forkleft.cli import runs
from forkleft.errors import ForkLeftError
from forkleft.evaluate.compare import compare
from forkleft.evaluate.evaluation import load_evaluated, result_line, run_evaluation
from forkleft.evaluate.results import read_results
from forkleft.files import check_new
from forkleft.lab import models
from forkleft.lab.benchmarks import lab_set
from forkleft.students.bundled import local_path
from forkleft.train.config import ForkLeftConfig
from forkleft.train.folders import in_main_process
from forkleft.train.recipes import read_options, recipe_of

RECIPE = Path(models.__file__).with_name("recipe.yaml")
SETS = ("chain-3", "chain-4", "chain-5")


def demo(
    output: Path | None = None, *, student: str | None = None, teacher: str | None = None, updates: int | None = None
) -> None:
    """Distil a lab student with a lab teacher, evaluate before and after, print the table, and leave the run's folder.

    student, teacher: names of the lab's models. Arguments that are not given are taken from the recipe. Raises
    ForkLeftError if the folder exists already or cannot be made, or there is nothing to do.
    """
    given = {"student": student and f"lab:{student}", "teacher": teacher and f"lab:{teacher}", "max_steps": updates}
    said = read_options(RECIPE) | {name: value for name, value in given.items() if value is not None}
    # Always on the CPU: a GPU computes other last digits.
    state = PartialState(cpu=True)
    folder = in_main_process(partial(_new_folder, output, said))
    said |= {"output_dir": str(folder), "use_cpu": True}
    recipe, config = recipe_of(said)
    console = Console(quiet=not state.is_main_process)
    console.print(_introduction(said, config), highlight=False)
    results = folder / "results"
    _headed("Before training", console)
    _evaluate(recipe.student, results / "base", console)
    _headed("Training", console)
    runs.train(recipe, config, said)
    _headed("After training", console)
    _evaluate(str(folder), results / "trained", console)
    if state.is_main_process:
        _headed("Before (A) and after (B)", console)
        compare(results / "base", results / "trained", console=console)
        runs.end(folder)


def _cards(said: Mapping[str, Any]) -> tuple[models.Card, models.Card]:
    """Those of student and teacher. Raises ForkLeftError if they are none."""
    student, teacher = (models.read_card(local_path(said[name])) for name in ("student", "teacher"))
    if student.family is None or teacher.family is not None:
        raise ForkLeftError(
            f"{student.name} cannot learn from {teacher.name}: expected a student and a teacher of the lab"
        )
    return student, teacher


def _introduction(said: Mapping[str, Any], config: ForkLeftConfig) -> str:
    """A text that says who learns from whom."""
    student, teacher = _cards(said)
    return (
        f"[bold]{student.name}[/], a diffusion model of {student.parameters:,} parameters that hardly\n"
        f"ever saw `*`, learns from [bold]{teacher.name}[/], an autoregressive one of\n"
        f"{teacher.parameters:,}: {config.max_steps} updates of {config.questions_per_update} questions."
    )


def _headed(title: str, console: Console) -> None:
    console.print(f"\n{title}", style="bold", highlight=False)


def _evaluate(model: str, output: Path, console: Console) -> None:
    # A model that the others have just trained must be there, and after this its results.
    state = PartialState()
    state.wait_for_everyone()
    evaluated = load_evaluated(model, device="cpu")
    told = run_evaluation(evaluated, [lab_set(name) for name in SETS], output, name=model, console=console)
    state.wait_for_everyone()
    # The process that ends a set as the last has its figures, and may not be the one that speaks.
    for name, found in read_results(output).items():
        if name not in told:
            console.print(result_line(name, found.summary), highlight=False, markup=False)


def _new_folder(output: Path | None, said: Mapping[str, Any]) -> Path:
    """The folder of the run. Raises ForkLeftError if it exists already or cannot be made, or there is nothing to do."""
    if said["max_steps"] < 1:
        raise ForkLeftError(f"expected at least 1 update, found {said['max_steps']}")
    _cards(said)
    folder = _free_folder() if output is None else output
    check_new(folder)
    return folder


def _free_folder() -> Path:
    """runs/demo, or the next of runs/demo-2, runs/demo-3 … that is free."""
    folder, number = Path("runs/demo"), 1
    while folder.exists():
        number += 1
        folder = Path(f"runs/demo-{number}")
    return folder
