"""`forkleft report`: runs, results and studies as one page to look at."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    report = add_command(commands, "report", run, "one page to look at: gains, curves, and the fork viewer")
    help_text = "the folder of a run, of a demo, or of a study; several are compared; or folders of results, base first"
    report.add_argument("folder", type=Path, nargs="+", metavar="RUN", help=help_text)
    help_text = "the page to write (default: report.html, in the folder if there is one)"
    report.add_argument("--output", type=Path, metavar="FILE", help=help_text)
    help_text = "show at most N traces, evenly spaced (default 200)"
    report.add_argument("--traces", type=int, default=200, metavar="N", help=help_text)


def run(options: argparse.Namespace) -> None:
    """`forkleft report`."""
    from forkleft.report.page import write_report

    print(f"report: {write_report(options.folder, options.output, traces=options.traces)}")
