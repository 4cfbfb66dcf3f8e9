"""`forkleft lab`: the bundled miniature world."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from forkleft.cli.arguments import Commands, add_command, hide_loading_bars


def add(commands: Commands) -> None:
    """Add the commands and their arguments."""
    lab = commands.add_parser("lab", help="the bundled miniature world", description="The bundled miniature world.")
    lab_commands = lab.add_subparsers(title="commands", metavar="COMMAND", required=True)

    sampling = add_command(lab_commands, "sample", sample, "print questions of the lab")
    sampling.add_argument("--steps", type=int, default=4, help="steps of the chain, 2 to 6 (default 4)")
    sampling.add_argument("--count", type=int, default=3, help="how many questions (default 3)")
    sampling.add_argument("--seed", type=int, default=0, help="another seed gives other questions (default 0)")
    sampling.add_argument("--split", choices=("train", "heldout"), default="train", help="default train")
    sampling.add_argument("--form", choices=("chain", "choice"), default="chain", help="choice: with four options")
    sampling.add_argument(
        "--shares", type=_shares, default=(1.0, 1.0, 1.0), metavar="P,M,T", help="weights of + - * (default 1,1,1)"
    )
    sampling.add_argument("--json", action="store_true", help="one JSON object a line")

    words = add_command(lab_commands, "words", word_problems, "print word problems for small language models, as JSON")
    words.add_argument("--steps", type=int, default=1, help="1 or 2 (default 1)")
    words.add_argument("--count", type=int, default=3, help="how many (default 3)")
    words.add_argument("--seed", type=int, default=0, help="another seed gives other problems (default 0)")
    words.add_argument("--split", choices=("train", "heldout"), default="train", help="default train")

    measuring = add_command(lab_commands, "accuracy", accuracy, "measure the lab's models on held-out questions")
    measuring.add_argument("--model", action="append", metavar="NAME", help="a lab model (repeatable; default all)")
    measuring.add_argument(
        "--set", action="append", metavar="NAME", help="a held-out set, e.g. chain-4 (repeatable; default all)"
    )
    measuring.add_argument("--json", action="store_true", help="one JSON object a line")
    measuring.add_argument("--records", type=Path, metavar="FILE", help="append one JSON line per model and question")

    routing = add_command(lab_commands, "routes", routes, "on which route held-out questions fall, by writing order")
    routing.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    routing.add_argument("--student", action="append", metavar="NAME", help="a lab student (repeatable; default all)")
    routing.add_argument("--set", metavar="NAME", default="chain-4", help="a held-out chain set (default chain-4)")
    routing.add_argument("--json", action="store_true", help="one JSON object a line")


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers such as 1,1,0.1, found {text!r}") from None


def sample(options: argparse.Namespace) -> None:
    """`forkleft lab sample`."""
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


def word_problems(options: argparse.Namespace) -> None:
    """`forkleft lab words`."""
    from forkleft.lab import words

    for row in words.word_problems(options.count, options.steps, split=options.split, seed=options.seed):
        print(json.dumps(row))


def accuracy(options: argparse.Namespace) -> None:
    """`forkleft lab accuracy`."""
    from forkleft.lab.accuracy import print_accuracy
    from forkleft.lab.models import MODELS
    from forkleft.lab.questions import HELD_OUT_SETS

    hide_loading_bars()
    print_accuracy(options.model or MODELS, options.set or HELD_OUT_SETS, as_json=options.json, records=options.records)


def routes(options: argparse.Namespace) -> None:
    """`forkleft lab routes`."""
    from forkleft.lab.models import STUDENTS
    from forkleft.lab.routes import print_routes

    hide_loading_bars()
    print_routes(options.teacher, options.student or STUDENTS, options.set, as_json=options.json)
