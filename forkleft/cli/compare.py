"""`forkleft compare`: two results, item by item."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    compare = add_command(commands, "compare", run, "compare two results, item by item")
    compare.add_argument("a", type=Path, metavar="A", help="a folder of results: the base, or the teacher")
    compare.add_argument("b", type=Path, metavar="B", help="another: what it became, or the student")
    compare.add_argument(
        "--routes", action="store_true", help="who is right: both, teacher A only, student B only, none"
    )
    compare.add_argument(
        "--digits", type=int, default=1, metavar="N", help="behind the point of a percentage (default 1)"
    )
    shape = compare.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="as JSON")
    shape.add_argument("--markdown", action="store_true", help="as Markdown")


def run(options: argparse.Namespace) -> None:
    """`forkleft compare`."""
    from forkleft.evaluate.compare import compare

    shape = {"digits": options.digits, "as_json": options.json, "as_markdown": options.markdown}
    compare(options.a, options.b, routes=options.routes, **shape)
