"""`forkleft answer`: ask the teacher of a recipe ahead of the training."""

import argparse

from forkleft.cli.arguments import Commands, add_command
from forkleft.cli.recipe import recipe_arguments, recipe_options


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    summary = "ask the teacher of a recipe ahead of the training"
    recipe_arguments(add_command(commands, "answer", run, summary, takes_options=True))


def run(options: argparse.Namespace) -> None:
    """`forkleft answer`."""
    if said := recipe_options(options):
        from forkleft.cli import runs
        from forkleft.train import recipes

        # Only an update must be divided evenly among processes; answers need not be.
        said.pop("questions_per_update", None)
        runs.answer(*recipes.recipe_of(said))
