"""`forkleft demo`: distil the student of the lab, and measure the gain."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    demo = add_command(commands, "demo", run, "distil the bundled lab's student in minutes, and measure the gain")
    demo.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the run (default runs/demo)")
    demo.add_argument("--student", metavar="NAME", default="student-block", help="default student-block")
    demo.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    demo.add_argument("--updates", type=int, metavar="N", help="updates to train for (default 50)")


def run(options: argparse.Namespace) -> None:
    """`forkleft demo`."""
    from forkleft.cli.demonstration import UPDATES, demo

    hide_loading_bars()
    updates = UPDATES if options.updates is None else options.updates
    demo(options.output, student=options.student, teacher=options.teacher, updates=updates)
