"""`forkleft convert`: an autoregressive checkpoint as a student."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import DTYPES, Commands, add_command, hide_loading_bars, token


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    convert = add_command(commands, "convert", run, "turn an autoregressive checkpoint into a student")
    convert.add_argument("--model", required=True, metavar="FOLDER", help="a folder or a repository of the hub")
    convert.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder for the student")
    convert.add_argument("--family", required=True, metavar="NAME", help="what it is to become (docs/models.md)")
    help_text = "a reserved token or its id, or a new token (default: the family's)"
    convert.add_argument("--mask-token", type=token, metavar="TOKEN", help=help_text)
    convert.add_argument("--dtype", choices=DTYPES, help="of the written weights (default: as they are)")
    convert.add_argument("--block-size", type=int, metavar="N", help="tokens a block (default: the family's)")
    convert.add_argument("--gguf-file", metavar="FILE", help="the GGUF file in the folder or repository")


def run(options: argparse.Namespace) -> None:
    """`forkleft convert`."""
    import torch

    from forkleft.students import convert

    hide_loading_bars()
    convert(
        options.model,
        options.output,
        family=options.family,
        mask_token=options.mask_token,
        block_size=options.block_size,
        gguf_file=options.gguf_file,
        dtype=None if options.dtype is None else getattr(torch, options.dtype),
    )
    print(
        f"{options.output}: a student of family {options.family}; it cannot write yet: let it learn to denoise "
        f"(forkleft adapt --student {options.output} …)"
    )
