"""`forkleft paper`: the paper's figures, recomputed."""

import argparse

from forkleft.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    paper = add_command(commands, "paper", run, "the paper's figures recomputed from its counts, and their noise")
    paper.add_argument(
        "--table", action="append", metavar="NAME", help="every figure of main, order-view, … (repeatable; default all)"
    )
    shape = paper.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="as JSON")
    shape.add_argument("--markdown", action="store_true", help="as Markdown")


def run(options: argparse.Namespace) -> None:
    """`forkleft paper`."""
    from forkleft.study.paper_report import print_paper

    print_paper(options.table, as_json=options.json, as_markdown=options.markdown)
