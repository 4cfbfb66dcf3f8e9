"""The `forkleft` command: its arguments. What each sub-command does with them stands in `commands.py`."""

import argparse
import difflib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from forkleft import __version__, commands
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


class _StandardError(logging.StreamHandler):
    """Writes to what standard error is at the moment: a bar that moves puts itself there, and makes room for lines."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 130 if it was interrupted."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.takes_options:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    # What loading found out: which tokens the models share, which fields of a configuration nobody reads.
    logging.basicConfig(format="%(message)s", handlers=[_StandardError()])
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
    top = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = _command(top, "demo", commands.demo, "distil the bundled lab's student in minutes, and measure the gain")
    demo.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the run (default runs/demo)")
    demo.add_argument("--student", metavar="NAME", default="student-block", help="default student-block")
    demo.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    demo.add_argument("--updates", type=int, metavar="N", help="updates to train for (default 50)")

    train = _command(top, "train", commands.train, "train a student as a recipe says", takes_options=True)
    answer = _command(
        top, "answer", commands.answer, "ask the teacher of a recipe ahead of the training", takes_options=True
    )
    for command in (train, answer):
        command.usage = f"{command.prog} --config FILE [--OPTION VALUE ...]"
        command.epilog = "Every option of the recipe can be given behind it and then wins: --learning_rate 1e-6."
        command.add_argument("--config", type=Path, metavar="FILE", help="a recipe, such as recipes/lab.yaml")
        command.add_argument("--options", action="store_true", help="list all options, and what they do")
    told = "say what would run, and whether it can, without loading the models"
    train.add_argument("--check", action="store_true", help=told)

    generate = _command(top, "generate", commands.generate, "let a student write, and watch the text denoise")
    _model_arguments(generate)
    asked = generate.add_mutually_exclusive_group(required=True)
    asked.add_argument("--prompt", metavar="TEXT", help="the question")
    asked.add_argument("--file", type=Path, metavar="FILE", help="one prompt a line, or .jsonl; - is standard input")
    generate.add_argument("--plain", action="store_true", help="take prompts as they are, without the chat template")
    generate.add_argument("--json", action="store_true", help="one JSON object a line: text, tokens, passes, entropies")
    generate.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="response budget (default 256)")
    told = "for watching: show every pass so long (default 0.2, if no number follows)"
    generate.add_argument("--slow", type=float, nargs="?", default=0.0, const=0.2, metavar="SECONDS", help=told)
    orders = ("confidence", "high_entropy", "low_entropy", "left_to_right", "random")
    generate.add_argument("--order", choices=orders, help="default confidence, or the family's native one")
    _sampler_arguments(generate)

    doctor = _command(
        top, "doctor", commands.doctor, "check the maths on your device, in your precision, with your model"
    )
    _model_arguments(doctor, required=False)

    convert = _command(top, "convert", commands.convert, "turn an autoregressive checkpoint into a student")
    convert.add_argument("--model", required=True, metavar="FOLDER", help="a folder or a repository of the hub")
    convert.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder for the student")
    convert.add_argument("--family", required=True, metavar="NAME", help="what it is to become (docs/models.md)")
    told = "a reserved token or its id, or a new token (default: the family's)"
    convert.add_argument("--mask-token", type=_token, metavar="TOKEN", help=told)
    convert.add_argument("--dtype", choices=_DTYPES, help="of the written weights (default: as they are)")
    convert.add_argument("--block-size", type=int, metavar="N", help="tokens a block (default: the family's)")
    convert.add_argument("--gguf-file", metavar="FILE", help="the GGUF file in the folder or repository")

    merge = _command(top, "merge", commands.merge, "make a whole model of adapters and the base they were trained on")
    merge.add_argument("--model", required=True, metavar="FOLDER", help="of the adapters, or a repository of the hub")
    merge.add_argument("--output", required=True, type=Path, metavar="FOLDER", help="a new folder for the whole model")
    merge.add_argument("--dtype", choices=_DTYPES, default="float32", help="of the written weights (default float32)")

    evaluate = _command(top, "eval", commands.evaluate, "measure a model on benchmarks, one record an item")
    evaluate.add_argument("--list", action="store_true", help="list the benchmarks, and whether their data is at hand")
    _model_arguments(evaluate, required=False)
    evaluate.add_argument("--ar", action="store_true", help="the model is autoregressive: a teacher, a reference")
    told = "with --ar, over several devices: auto, balanced … (default: on --device alone)"
    evaluate.add_argument("--device-map", metavar="MAP", help=told)
    evaluate.add_argument("--benchmark", nargs="+", action="extend", metavar="NAME", help="gsm8k, mmlu, lab-chain-4 …")
    evaluate.add_argument(
        "--output", type=Path, metavar="FOLDER", help="for the results; what is there is gone on with"
    )
    told = "the questions: a file, a folder, or owner/name on the hub (default: $FORKLEFT_DATA, then the hub)"
    evaluate.add_argument("--data", metavar="SOURCE", help=told)
    evaluate.add_argument("--subset", metavar="NAME", help="of the data set on the hub")
    evaluate.add_argument("--split", metavar="NAME", help="of the data set on the hub (default test)")
    told = "let the model write, or compare letters in the answer slot (default: the benchmark's)"
    evaluate.add_argument("--protocol", choices=("generated", "slot"), help=told)
    told = "how mathematical answers are judged (default: opdlm, as the paper's were; math: as in training)"
    evaluate.add_argument("--verifier", choices=("opdlm", "math"), help=told)
    evaluate.add_argument("--limit", type=int, metavar="N", help="only the first N items")
    evaluate.add_argument("--samples", type=int, default=1, metavar="K", help="responses an item, for avg@k and pass@k")
    _sampler_arguments(evaluate)
    evaluate.add_argument("--max-new-tokens", type=int, metavar="N", help="response budget (default: the benchmark's)")
    evaluate.add_argument(
        "--geometry",
        choices=("truncated", "canvas"),
        default="truncated",
        help="of the answer slot (default truncated)",
    )

    compare = _command(top, "compare", commands.compare, "compare two results, item by item")
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

    paper = _command(top, "paper", commands.paper, "the paper's figures recomputed from its counts, and their noise")
    paper.add_argument(
        "--table", action="append", metavar="NAME", help="every figure of main, order-view, … (repeatable; default all)"
    )
    shape = paper.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="as JSON")
    shape.add_argument("--markdown", action="store_true", help="as Markdown")

    lm_eval = _command(
        top,
        "lm-eval",
        commands.lm_eval,
        "run lm-evaluation-harness on a student",
        takes_options=True,
        add_help=False,
    )
    _template_argument(lm_eval)
    lm_eval.usage = f"{lm_eval.prog} [--chat-template FILE] [OPTION OF lm_eval ...]"
    lm_eval.epilog = "All other options are those of lm_eval:"
    lm_eval.set_defaults(own_help=lm_eval.format_help)

    _study_arguments(top)

    lab = top.add_parser("lab", help="the bundled miniature world", description="The bundled miniature world.")
    lab_commands = lab.add_subparsers(title="commands", metavar="COMMAND", required=True)

    sample = _command(lab_commands, "sample", commands.lab_sample, "print questions of the lab")
    sample.add_argument("--steps", type=int, default=4, help="steps of the chain, 2 to 6 (default 4)")
    sample.add_argument("--count", type=int, default=3, help="how many questions (default 3)")
    sample.add_argument("--seed", type=int, default=0, help="another seed gives other questions (default 0)")
    sample.add_argument("--split", choices=("train", "heldout"), default="train", help="default train")
    sample.add_argument("--form", choices=("chain", "choice"), default="chain", help="choice: with four options")
    sample.add_argument(
        "--shares", type=_shares, default=(1.0, 1.0, 1.0), metavar="P,M,T", help="weights of + - * (default 1,1,1)"
    )
    sample.add_argument("--json", action="store_true", help="one JSON object a line")

    accuracy = _command(
        lab_commands, "accuracy", commands.lab_accuracy, "measure the lab's models on held-out questions"
    )
    accuracy.add_argument("--model", action="append", metavar="NAME", help="a lab model (repeatable; default all)")
    accuracy.add_argument(
        "--set", action="append", metavar="NAME", help="a held-out set, e.g. chain-4 (repeatable; default all)"
    )
    accuracy.add_argument("--json", action="store_true", help="one JSON object a line")
    accuracy.add_argument("--records", type=Path, metavar="FILE", help="append one JSON line per model and question")

    routes = _command(
        lab_commands, "routes", commands.lab_routes, "on which route held-out questions fall, by writing order"
    )
    routes.add_argument("--teacher", metavar="NAME", default="teacher-strong", help="default teacher-strong")
    routes.add_argument("--student", action="append", metavar="NAME", help="a lab student (repeatable; default all)")
    routes.add_argument("--set", metavar="NAME", default="chain-4", help="a held-out chain set (default chain-4)")
    routes.add_argument("--json", action="store_true", help="one JSON object a line")
    return parser


def _study_arguments(top: argparse._SubParsersAction) -> None:
    study = top.add_parser("study", help="grids of runs, and what they show", description="Grids of runs.")
    study_commands = study.add_subparsers(title="commands", metavar="COMMAND", required=True)

    run = _command(study_commands, "run", commands.study_run, "run what is missing of a study, and show it")
    run.add_argument("file", type=Path, metavar="FILE", help="a study, such as recipes/studies/order-view.yaml")
    run.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="for cells, which studies share, and tables"
    )
    run.add_argument("--jobs", type=int, metavar="N", help="cells at a time (default: the cores; 1 with a GPU)")
    run.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help="run only these seeds of the study")
    run.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of all arms, or ARM.OPTION=VALUE of one (repeatable)",
    )
    run.add_argument("--base", type=Path, metavar="FILE", help="another base recipe")
    run.add_argument("--benchmark", nargs="+", metavar="NAME", help="other benchmarks")
    run.add_argument("--limit", type=int, metavar="N", help="only the first N items of each benchmark")
    run.add_argument("--decoding", choices=("static", "native"), help="decode so, as forkleft eval does")
    run.add_argument("--dry-run", action="store_true", help="print the cells and how long they would take")
    run.add_argument("--print-commands", action="store_true", help="print the commands of the cells instead")
    launcher = "torchrun --nproc-per-node 8"
    run.add_argument("--launcher", default=launcher, metavar="WORDS", help=f"in front of those (default: {launcher})")

    show = _command(study_commands, "show", commands.study_show, "tables and figures of studies")
    show.add_argument("folder", type=Path, nargs="+", metavar="DIR", help="the folder of a study, or of several")
    shape = show.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="all figures as JSON")
    shape.add_argument("--markdown", action="store_true", help="the tables as Markdown")


def _command(
    parsers: argparse._SubParsersAction,
    name: str,
    run: Callable[[argparse.Namespace], None],
    summary: str,
    *,
    takes_options: bool = False,
    add_help: bool = True,
) -> argparse.ArgumentParser:
    parser = parsers.add_parser(
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
    _template_argument(command)
    command.add_argument("--device", metavar="DEVICE", help="cpu, cuda, cuda:1 … (default: a GPU if there is one)")
    command.add_argument(
        "--dtype",
        choices=_DTYPES,
        help="default: bfloat16 on a GPU, else float32",
    )
    command.add_argument("--trust-remote-code", action="store_true", help="let a tokenizer run its own code")


def _template_argument(command: argparse.ArgumentParser) -> None:
    told = "a Jinja file, or Jinja: where the tokenizer has no chat template, or instead of its own"
    command.add_argument("--chat-template", metavar="FILE", help=told)


def _sampler_arguments(command: argparse.ArgumentParser) -> None:
    """How a student writes."""
    told = "static (default): a fixed number of tokens a pass; native: the family's own settings (docs/models.md)"
    command.add_argument("--decoding", choices=("static", "native"), default="static", help=told)
    command.add_argument("--passes", type=int, metavar="N", help="passes a block (default: one token a pass)")
    command.add_argument("--threshold", type=float, metavar="P", help="also commit all positions above this confidence")
    command.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token")
    command.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample from so much mass (default 1)")
    command.add_argument("--seed", type=int, default=0, help="for sampling (default 0)")
    command.add_argument("--batch-size", type=int, default=32, metavar="N", help="responses at a time (default 32)")


def _token(text: str) -> str | int:
    """A token, or its id."""
    return int(text) if text.isdecimal() else text


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected three numbers such as 1,1,0.1, found {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
