"""The `forkleft` command. Each sub-command is a thin function; what is heavy is imported when it runs."""

import argparse
import difflib
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from forkleft import __version__
from forkleft.errors import ForkLeftError

_DTYPES = ("float32", "bfloat16", "float16", "float64")
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
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 130 if it was interrupted."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.takes_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    # What loading found out: which tokens the models share, which fields of a configuration nobody reads.
    logging.basicConfig(format="%(message)s")
    logging.getLogger("forkleft").setLevel(logging.INFO)
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

    train = _command(commands, "train", _train, "train a student as a recipe says", takes_options=True)
    answer = _command(
        commands, "answer", _answer, "ask the teacher of a recipe ahead of the training", takes_options=True
    )
    for command in (train, answer):
        command.usage = f"{command.prog} --config FILE [--OPTION VALUE ...]"
        command.epilog = "Every option of the recipe can be given behind it and then wins: --learning_rate 1e-6."
        command.add_argument("--config", type=Path, metavar="FILE", help="a recipe, such as recipes/lab.yaml")
        command.add_argument("--options", action="store_true", help="list all options, and what they do")

    generate = _command(commands, "generate", _generate, "let a student write, and watch the text denoise")
    _model_arguments(generate)
    asked = generate.add_mutually_exclusive_group(required=True)
    asked.add_argument("--prompt", metavar="TEXT", help="the question")
    asked.add_argument("--file", type=Path, metavar="FILE", help="one prompt a line, or .jsonl; - is standard input")
    generate.add_argument("--plain", action="store_true", help="take prompts as they are, without the chat template")
    generate.add_argument("--json", action="store_true", help="one JSON object a line: text, tokens, passes, entropies")
    generate.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="response budget (default 256)")
    orders = ("confidence", "high_entropy", "low_entropy", "left_to_right", "random")
    generate.add_argument("--order", choices=orders, default="confidence", help="default confidence, the native one")
    generate.add_argument("--passes", type=int, metavar="N", help="passes a block (default: one token a pass)")
    generate.add_argument(
        "--threshold", type=float, metavar="P", help="also commit all positions above this confidence"
    )
    generate.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    generate.add_argument(
        "--top-p", type=float, default=1.0, metavar="P", help="sample from this much mass (default 1)"
    )
    generate.add_argument("--seed", type=int, default=0, help="for sampling (default 0)")
    generate.add_argument("--batch-size", type=int, default=32, metavar="N", help="responses at a time (default 32)")

    doctor = _command(commands, "doctor", _doctor, "check the maths on your device, in your precision, with your model")
    _model_arguments(doctor, required=False)

    convert = _command(commands, "convert", _convert, "turn an autoregressive checkpoint into a student")
    convert.add_argument("--model", required=True, metavar="FOLDER", help="a folder or a repository of the hub")
    convert.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder for the student")
    convert.add_argument("--family", required=True, metavar="NAME", help="what it is to become (docs/models.md)")
    told = "a reserved token or its id, or a new token (default: the family's)"
    convert.add_argument("--mask-token", type=_token, metavar="TOKEN", help=told)
    convert.add_argument("--dtype", choices=_DTYPES, help="of the written weights (default: as they are)")
    convert.add_argument("--block-size", type=int, metavar="N", help="tokens a block (default: the family's)")
    convert.add_argument("--gguf-file", metavar="FILE", help="the GGUF file in the folder or repository")

    _command(
        commands, "lm-eval", _lm_eval, "run lm-evaluation-harness on a student", takes_options=True, add_help=False
    )

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
    commands: argparse._SubParsersAction,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    *,
    takes_options: bool = False,
    add_help: bool = True,
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", add_help=add_help
    )
    # Also behind the command, where people put it; SUPPRESS keeps the one in front of it.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run, takes_options=takes_options)
    return parser


def _model_arguments(command: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Which student, and where: the same for every command that loads one."""
    other = "" if required else " (default: a small stand-in)"
    told = f"a folder, a repository of the hub, lab:NAME{other}"
    command.add_argument("--model", required=required, metavar="MODEL", help=told)
    command.add_argument("--family", metavar="NAME", help="where the checkpoint does not tell (docs/models.md)")
    command.add_argument("--block-size", type=int, metavar="N", help="where the family's usual one is not wanted")
    command.add_argument("--mask-token", type=_token, metavar="TOKEN", help="or its id, where the checkpoint says none")
    command.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … (default: a GPU if there is one)")
    command.add_argument(
        "--dtype",
        choices=_DTYPES,
        help="default: bfloat16 on a GPU, else float32",
    )
    command.add_argument("--trust-remote-code", action="store_true", help="let a tokenizer run its own code")


def _place(options: argparse.Namespace) -> tuple[str, Any]:
    """The device and the precision that were asked for, or that fit."""
    import torch

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ForkLeftError(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error
    return device, getattr(torch, options.dtype or ("bfloat16" if device.startswith("cuda") else "float32"))


def _load_student(options: argparse.Namespace) -> Any:
    from forkleft.runs import checkpoint
    from forkleft.students import load_student

    device, dtype = _place(options)
    return load_student(
        checkpoint(options.model),
        family=options.family,
        block_size=options.block_size,
        mask_token=options.mask_token,
        dtype=dtype,
        device=device,
        trust_remote_code=options.trust_remote_code,
    )


def _token(text: str) -> str | int:
    """A token, or its id."""
    return int(text) if text.isdecimal() else text


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


def _train(options: argparse.Namespace) -> None:
    _run_recipe(options, "train")


def _answer(options: argparse.Namespace) -> None:
    _run_recipe(options, "answer")


def _run_recipe(options: argparse.Namespace, task: str) -> None:
    from forkleft import recipes

    if options.options:
        _list_options()
        return
    if options.config is None:
        raise ForkLeftError(
            "expected a recipe: --config recipes/lab.yaml, for instance; --options lists what is in one"
        )
    recipe, config = recipes.read_recipe(options.config, options.rest)
    from forkleft import runs

    _hide_loading_bars()
    getattr(runs, task)(recipe, config)


def _list_options() -> None:
    from rich.console import Console

    from forkleft.recipes import default_of, options

    console = Console()
    for name, option in options().items():
        console.print(f"[bold]{name}[/]  [dim]default {default_of(option)!r}[/]", highlight=False)
        if text := option.metadata.get("help"):
            console.print(f"    {' '.join(text.split())}", highlight=False, markup=False)


def _generate(options: argparse.Namespace) -> None:
    from forkleft.writing import read_prompts, write_responses

    _hide_loading_bars()
    if options.file is not None:
        conversations = read_prompts(options.file)
    else:
        conversations = [[{"role": "user", "content": options.prompt}]]
    write_responses(
        _load_student(options),
        conversations,
        plain=options.plain,
        as_json=options.json,
        max_new_tokens=options.max_new_tokens,
        order=options.order,
        passes=options.passes,
        threshold=options.threshold,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        batch_size=options.batch_size,
    )


def _doctor(options: argparse.Namespace) -> None:
    from forkleft import doctor

    _hide_loading_bars()
    device, dtype = _place(options)
    student = doctor.stand_in(dtype, device) if options.model is None else _load_student(options)
    if not doctor.doctor(student):
        sys.exit(1)


def _lm_eval(options: argparse.Namespace) -> None:
    from forkleft.evaluate import harness
    from forkleft.runs import checkpoint

    # Its own --help, too, is that of lm_eval.
    if code := harness.main(options.rest, checkpoint):
        sys.exit(code)


def _convert(options: argparse.Namespace) -> None:
    import torch

    from forkleft.students import convert

    _hide_loading_bars()
    convert(
        options.model,
        options.output,
        family=options.family,
        mask_token=options.mask_token,
        block_size=options.block_size,
        gguf_file=options.gguf_file,
        dtype=None if options.dtype is None else getattr(torch, options.dtype),
    )
    print(f"{options.output}: a student of family {options.family}, to be trained before it can write")


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
