"""The arguments of commands that take a recipe: `forkleft train`, `answer`, `adapt` and `plan`."""

import argparse
import textwrap
from pathlib import Path
from typing import Any

from forkleft.cli.arguments import hide_loading_bars, say_loading, trust_verifier_argument
from forkleft.errors import ForkLeftError
from forkleft.files import missing_yaml
from forkleft.trust import Trust

# Before the description of an option.
_INDENT = " " * 4
_LAB = "recipes/lab.yaml"


def recipe_arguments(command: argparse.ArgumentParser, example: str = _LAB) -> None:
    """Add `--config`, `--options`, `--trust-verifier`, and a usage line that says that options may follow."""
    command.usage = f"{command.prog} --config FILE [--OPTION VALUE ...]"
    command.epilog = "Every option of the recipe can be given behind it and then wins: --learning_rate 1e-6."
    command.add_argument("--config", type=Path, metavar="FILE", help=f"a recipe, such as {example}")
    command.add_argument("--options", action="store_true", help="list all options, and what they do")
    trust_verifier_argument(command, "the recipe")


def recipe_options(options: argparse.Namespace, form: str = "TRAIN", example: str = _LAB) -> dict[str, Any] | None:
    """The options of the recipe and the command line; None if only the list of options was asked for.

    form: the name of the kind of recipe in `forkleft.train.recipes`, which is not imported before it is needed.
    """
    if options.options:
        _list_options(form)
        return None
    # Checked before anything heavy is imported, so that these errors come at once.
    if options.config is None:
        raise ForkLeftError(f"expected a recipe: --config {example}, for instance; --options lists what is in one")
    if not options.config.exists():
        raise missing_yaml(options.config, "recipe")
    say_loading(f"{options.parser.prog}: {options.config}")
    from forkleft.train import recipes

    hide_loading_bars()
    # --trust-remote-code is an option of recipes: said here, it wins over the file's.
    trust = Trust(verifiers=options.trust_verifier)
    return recipes.read_options(options.config, options.rest, getattr(recipes, form), trust)


def _list_options(form: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from forkleft.train import recipes
    from forkleft.train.recipes import default_of, grouped_options, help_of

    console = Console()
    for title, options in grouped_options(getattr(recipes, form)).items():
        console.print(f"\n{title}", style="bold underline", highlight=False)
        for name, option in options.items():
            head = Text.assemble((name, "bold"), "  ", (f"default {default_of(option)!r}", "dim"))
            for line in head.wrap(console, console.width):
                line.rstrip()
                console.print(line)
            for text in textwrap.wrap(help_of(option), console.width - len(_INDENT)):
                console.print(Text(_INDENT + text), soft_wrap=True)
