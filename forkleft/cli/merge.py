"""`forkleft merge`: adapters and their base as one model."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import DTYPES, Commands, add_command, hide_loading_bars


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    merge = add_command(commands, "merge", run, "make a whole model of adapters and the base they were trained on")
    merge.add_argument("--model", required=True, metavar="FOLDER", help="of the adapters, or a repository of the hub")
    merge.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder for the whole model")
    merge.add_argument("--dtype", choices=DTYPES, default="float32", help="of the written weights (default float32)")


def run(options: argparse.Namespace) -> None:
    """`forkleft merge`."""
    import torch

    from forkleft.students import merge

    hide_loading_bars()
    merge(options.model, options.output, dtype=getattr(torch, options.dtype))
    print(f"{options.output}: a whole model, the adapters of {options.model} added into the weights of their base")
