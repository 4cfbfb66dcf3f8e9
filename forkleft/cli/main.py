"""The `forkleft` command. Each sub-command has a file of its own, with its arguments and what it does with them."""

import argparse
import errno
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from forkleft import __version__
from forkleft.cli import (
    adapt,
    answer,
    compare,
    convert,
    demo,
    doctor,
    evaluate,
    generate,
    lab,
    lm_eval,
    merge,
    paper,
    plan,
    play,
    probe,
    report,
    study,
    train,
)
from forkleft.errors import ForkLeftError, StoppedError, ToldError, did_you_mean
from forkleft.signals import EndedBySignal, at_first_signal, exit_code, leave

# In the order in which --help names them. Heavy modules are imported only when a command runs.
_COMMANDS = (
    demo,
    train,
    adapt,
    answer,
    plan,
    generate,
    play,
    doctor,
    convert,
    merge,
    evaluate,
    compare,
    report,
    probe,
    paper,
    lm_eval,
    study,
    lab,
)
_USER_MISTAKE = 2
# Of a disk that is full, over its quota, read-only or broken: no mistake of ours.
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class _Parser(argparse.ArgumentParser):
    """Answers bad arguments with one line instead of the whole usage, and names the nearest command."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(_USER_MISTAKE, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            hint = did_you_mean(str(value), [str(choice) for choice in action.choices])
            raise argparse.ArgumentError(action, f"unknown {value!r}, choose from {', '.join(action.choices)}{hint}")


class _StandardError(logging.StreamHandler):
    """Writes to the current `sys.stderr`: a moving progress bar replaces it, to make room for lines."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0, 2 for a user's mistake, 130 after SIGINT, 143 after SIGTERM."""
    parser = _parser()
    options, rest = parser.parse_known_args(arguments)
    if rest and not options.takes_options:
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}{_nearest(options.parser, rest)}")
    options.rest = rest
    # Shows what loading reports: which tokens the models share, which fields of a configuration are not used.
    logging.basicConfig(format="%(message)s", handlers=[_StandardError()])
    logging.getLogger("forkleft").setLevel(logging.INFO)
    try:
        with at_first_signal(leave):
            options.run(options)
    except StoppedError as error:
        # All processes of a run stop together, and one line is enough.
        if int(os.environ.get("RANK", 0)) == 0:
            print(f"forkleft: {error}", file=sys.stderr)
        return exit_code(error.number)
    except ForkLeftError as error:
        if options.debug:
            raise
        if not isinstance(error, ToldError):
            print(f"forkleft: {error}", file=sys.stderr)
        return _USER_MISTAKE
    except KeyboardInterrupt as error:
        number = error.number if isinstance(error, EndedBySignal) else signal.SIGINT
        print(f"forkleft: ended by {signal.Signals(number).name}", file=sys.stderr)
        return exit_code(number)
    except BrokenPipeError:
        # The reader of a pipe has ended (`| head`). Without this, closing standard output would raise once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if options.debug or error.errno not in _OF_THE_DISK:
            raise
        hint = "make room or mend it, and start the same command again: what is whole stays"
        print(f"forkleft: cannot read or write {error.filename or 'a file'}: {error.strerror}; {hint}", file=sys.stderr)
        return _USER_MISTAKE
    return 0


def _nearest(parser: argparse.ArgumentParser, words: Sequence[str]) -> str:
    """`; did you mean --OPTION?` for the first option among words that a command does not know, if one is near."""
    option = next((word.partition("=")[0] for word in words if word.startswith("-")), "")
    return did_you_mean(option, parser._option_string_actions)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="forkleft",
        description="Teach a diffusion language model to reason like an autoregressive one.",
        epilog="forkleft COMMAND --help explains a command.",
    )
    parser.add_argument("--version", action="version", version=f"forkleft {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        command.add(commands)
    return parser
