"""`forkleft adapt`: let a student learn to denoise, as a recipe says."""

import argparse
from typing import TYPE_CHECKING, Any

from forkleft.cli.arguments import Commands, add_command
from forkleft.cli.recipe import recipe_arguments, recipe_options

if TYPE_CHECKING:
    from forkleft.students import Student
    from forkleft.train.adapt_config import AdaptConfig
    from forkleft.train.folders import RunFolder
    from forkleft.train.preflight import AdaptData
    from forkleft.train.recipes import AdaptRecipe

_EXAMPLE = "recipes/your-own-model/smollm2-adapt.yaml"


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    summary = "let a student learn to denoise: what a converted one needs before it is trained"
    adapt = add_command(commands, "adapt", run, summary, takes_options=True)
    recipe_arguments(adapt, _EXAMPLE)
    help_text = "say what would run, and whether it can, without loading the model"
    adapt.add_argument("--check", action="store_true", help=help_text)


def run(options: argparse.Namespace) -> None:
    """`forkleft adapt`."""
    if not (said := recipe_options(options, "ADAPT", _EXAMPLE)):
        return
    from forkleft.cli import runs
    from forkleft.report.curves import draw_curves
    from forkleft.train import recipes
    from forkleft.train.adapt import AdaptTrainer
    from forkleft.train.folders import RunFolder
    from forkleft.train.preflight import adapt_plan

    remarks: list[str] = []
    if options.check:
        said, remarks = recipes.planned_here(said)
    recipe, config = recipes.recipe_of(said, recipes.ADAPT)
    folder = RunFolder(config.output_path)
    if options.check:
        student, data = _prepare(recipe, config, folder)
        runs.print_plan(adapt_plan(recipe, config, folder, student, data), remarks)
        return
    # Held from the start, so that a second run is refused before it loads its model.
    with folder.held():
        _, data = _prepare(recipe, config, folder)
        settings: dict[str, Any] = {}
        if recipe.lora_rank is not None:
            settings["peft_config"] = runs.adapters_of(recipe, recipe.lora_rank)
        trainer = AdaptTrainer(
            runs.student_of(recipe),
            config,
            data.train,
            data.held_out,
            merge_adapters=recipe.merge_adapters,
            callbacks=[runs.KeptRecipe(recipes.recipe_page(said, recipes.ADAPT), folder.path)],
            folder=folder,
            stop_on_signals=True,
            **settings,
        )
        with runs.saying_how_to_resume("adapt", folder.path, said):
            trainer.train(resume_from_checkpoint=config.resume_from_checkpoint)
        if trainer.is_world_process_zero():
            draw_curves(trainer.metrics_file.path, folder.path / "curves.png")
            print(runs.end_message(folder.path))


def _prepare(recipe: "AdaptRecipe", config: "AdaptConfig", folder: "RunFolder") -> "tuple[Student, AdaptData]":
    """Check all that can be checked without the weights, and read the data. Raises ForkLeftError."""
    from functools import partial

    from forkleft.cli import runs
    from forkleft.cli.sources import RowStream
    from forkleft.train.adapt import data_digests, held_out_samples, sample_batches
    from forkleft.train.adapt_data import SampleStream, prepare_samples
    from forkleft.train.folders import in_main_process
    from forkleft.train.preflight import AdaptData, check_folder, check_options, check_updates
    from forkleft.train.resume import decisive_data

    check_options(recipe, config)
    in_main_process(partial(check_folder, config, folder))
    student = runs.student_of(recipe, weights=False)
    if recipe.lora_rank is not None:
        runs.check_adapters(runs.adapters_of(recipe, recipe.lora_rank), student, merge=recipe.merge_adapters)
    held_out = None
    if recipe.eval_data is not None:
        rows = runs.eval_rows(recipe, recipe.eval_data, config, remote=recipe.stream)
        with runs.said_in("eval_data"):
            held_out = held_out_samples(student, rows, config)
    if recipe.stream:
        source = RowStream(*runs.train_source(recipe, config))
        with runs.said_in("train_data"):
            stream = SampleStream(student, source, config)
        check_updates(config, None)
        data = AdaptData(stream, held_out)
    else:
        rows = runs.train_rows(recipe, config)
        with runs.said_in("train_data"):
            samples = prepare_samples(student, rows, config)
        check_updates(config, sample_batches(student, samples, config))
        data = AdaptData(samples, held_out)
    known = decisive_data(student, **data_digests(data.train))
    in_main_process(partial(check_folder, config, folder, known))
    return student, data
