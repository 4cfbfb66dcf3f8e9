"""`forkleft demo`: distil the student of the lab, and measure the gain."""

import argparse
import os
import sys
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars, say_loading
from forkleft.files import check_new
from forkleft.processes import run_together

# The lab's models are so small that two threads hardly share the work, but two processes do. Always two, so that the
# result is the same on all machines but for the rounding of their processors.
_PROCESSES = 2


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    demo = add_command(commands, "demo", run, "distil the bundled lab's student in minutes, and measure the gain")
    demo.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the run (default runs/demo)")
    as_said = "default: as recipes/lab.yaml says"
    demo.add_argument("--student", metavar="NAME", help=f"a student of the lab ({as_said})")
    demo.add_argument("--teacher", metavar="NAME", help=f"a teacher of the lab ({as_said})")
    demo.add_argument("--updates", type=int, metavar="N", help=f"updates to train for ({as_said})")


def run(options: argparse.Namespace) -> None:
    """`forkleft demo`, which starts itself in two processes, or is one of them."""
    if "RANK" not in os.environ:
        # Found before two processes have loaded PyTorch.
        if options.output is not None:
            check_new(options.output)
        said = {name: getattr(options, name) for name in ("output", "student", "teacher", "updates")}
        words = [word for name, value in said.items() if value is not None for word in (f"--{name}", str(value))]
        words += ["--debug"] if options.debug else []
        if code := run_together(["demo", *words], _PROCESSES):
            sys.exit(code)
        return
    say_loading("forkleft demo: a student of the lab learns from a teacher of the lab")
    from forkleft.cli.demonstration import demo

    hide_loading_bars()
    demo(options.output, student=options.student, teacher=options.teacher, updates=options.updates)
