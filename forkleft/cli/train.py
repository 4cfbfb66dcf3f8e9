"""`forkleft train`: train a student as a recipe says."""

import argparse

from forkleft.cli.arguments import Commands, add_command
from forkleft.cli.recipe import recipe_arguments, recipe_options


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    train = add_command(commands, "train", run, "train a student as a recipe says", takes_options=True)
    recipe_arguments(train)
    help_text = "say what would run, and whether it can, without loading the models"
    train.add_argument("--check", action="store_true", help=help_text)


def run(options: argparse.Namespace) -> None:
    """`forkleft train`."""
    if said := recipe_options(options):
        from forkleft.cli import runs
        from forkleft.train import recipes

        if options.check:
            planned, remarks = recipes.planned_here(said)
            runs.check(*recipes.recipe_of(planned), remarks)
            return
        trainer = runs.train(*recipes.recipe_of(said), said)
        if trainer.is_world_process_zero():
            runs.end(trainer.folder.path)
