"""The `forkleft` command. Each sub-command is a thin function; what is heavy is imported when it runs."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from forkleft import __version__
from forkleft.errors import ForkLeftError

_USER_MISTAKE = 2
_INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    """Answers bad arguments with one line instead of the whole usage, and names the nearest command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.exit(_USER_MISTAKE, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            near = difflib.get_close_matches(str(value), [str(choice) for choice in action.choices], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise argparse.ArgumentError(action, f"unknown {value!r}, choose from {', '.join(action.choices)}{hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, or 2 for a user's mistake."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except ForkLeftError as error:
        if options.debug:
            raise
        print(f"forkleft: {error}", file=sys.stderr)
        return _USER_MISTAKE
    except KeyboardInterrupt:
        print("forkleft: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (`| head`). Python would complain once more while closing standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="forkleft",
        description="Teach a diffusion language model to reason like an autoregressive one.",
        epilog="forkleft COMMAND --help explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forkleft {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = _command(commands, "demo", _demo, "distil the bundled lab's student in minutes, and measure the gain")
    demo.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the run (default runs/demo)")
    demo.add_argument("--student", metavar="NAME", default="student-block", help="default student-block")
    demo.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    demo.add_argument("--updates", type=int, metavar="N", help="updates to train for (default 40)")

    lab = commands.add_parser("lab", help="the bundled miniature world", description="The bundled miniature world.")
    lab_commands = lab.add_subparsers(title="commands", metavar="COMMAND", required=True)

    sample = _command(lab_commands, "sample", _lab_sample, "print questions of the lab")
    sample.add_argument("--steps", type=int, default=4, help="steps of the chain, 2 to 6 (default 4)")
    sample.add_argument("--count", type=int, default=3, help="how many questions (default 3)")
    sample.add_argument("--seed", type=int, default=0, help="another seed gives other questions (default 0)")
    sample.add_argument("--split", choices=("train", "heldout"), default="train", help="default train")
    sample.add_argument("--form", choices=("chain", "choice"), default="chain", help="choice: with four options")
    sample.add_argument(
        "--shares", type=_shares, default=(1.0, 1.0, 1.0), metavar="P,M,T", help="weights of + - * (default 1,1,1)"
    )
    sample.add_argument("--json", action="store_true", help="one JSON object a line")

    accuracy = _command(lab_commands, "accuracy", _lab_accuracy, "measure the lab's models on held-out questions")
    accuracy.add_argument("--model", action="append", metavar="NAME", help="a lab model (repeatable; default all)")
    accuracy.add_argument(
        "--set", action="append", metavar="NAME", help="a held-out set, e.g. chain-4 (repeatable; default all)"
    )
    accuracy.add_argument("--json", action="store_true", help="one JSON object a line")
    accuracy.add_argument("--records", type=Path, metavar="FILE", help="append one JSON line per model and question")

    routes = _command(lab_commands, "routes", _lab_routes, "on which route held-out questions fall, by writing order")
    routes.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    routes.add_argument("--student", action="append", metavar="NAME", help="a lab student (repeatable; default all)")
    routes.add_argument("--set", metavar="NAME", default="chain-4", help="a held-out chain set (default chain-4)")
    routes.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _command(
    commands: argparse._SubParsersAction, name: str, run: Callable[[argparse.Namespace], None], summary: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    # Also behind the command, where people put it; SUPPRESS keeps the one in front of it.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)
    return parser


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers such as 1,1,0.1, found {text!r}") from None


def _hide_loading_bars() -> None:
    """Transformers draws a progress bar for every model it loads; ours load in an instant."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def _demo(options: argparse.Namespace) -> None:
    from forkleft.lab.demo import UPDATES, demo

    _hide_loading_bars()
    updates = UPDATES if options.updates is None else options.updates
    demo(options.output, student=options.student, teacher=options.teacher, updates=updates)


def _lab_sample(options: argparse.Namespace) -> None:
    from forkleft.lab.questions import questions

    for item in questions(
        options.count,
        options.steps,
        split=options.split,
        seed=options.seed,
        shares=options.shares,
        form=options.form,
    ):
        if options.json:
            print(json.dumps(asdict(item)))
            continue
        lines = [("question", item.question), ("solution", item.solution), ("answer", item.answer)]
        if item.choices is not None:
            lines.insert(1, ("choices", "  ".join(line for line in item.prompt.splitlines()[1:])))
        print(item.id)
        for name, text in lines:
            print(f"  {name:<9} {text}")


def _lab_accuracy(options: argparse.Namespace) -> None:
    from forkleft.lab.accuracy import print_accuracy
    from forkleft.lab.models import MODELS
    from forkleft.lab.questions import HELD_OUT_SETS

    _hide_loading_bars()
    print_accuracy(options.model or MODELS, options.set or HELD_OUT_SETS, as_json=options.json, records=options.records)


def _lab_routes(options: argparse.Namespace) -> None:
    from forkleft.lab.models import STUDENTS
    from forkleft.lab.routes import print_routes

    _hide_loading_bars()
    print_routes(options.teacher, options.student or STUDENTS, options.set, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
