"""`forkleft lm-eval`: lm-evaluation-harness with a student."""

import argparse
import sys

from forkleft.cli.arguments import Commands, add_command, template_argument


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    lm_eval = add_command(
        commands,
        "lm-eval",
        run,
        "run lm-evaluation-harness on a student",
        takes_options=True,
        add_help=False,
    )
    template_argument(lm_eval)
    lm_eval.usage = f"{lm_eval.prog} [--chat-template FILE] [OPTION OF lm_eval ...]"
    lm_eval.epilog = "All other options are those of lm_eval:"
    lm_eval.set_defaults(own_help=lm_eval.format_help)


def run(options: argparse.Namespace) -> None:
    """`forkleft lm-eval`."""
    from forkleft.evaluate import harness

    # In these cases lm_eval shows its own help, which does not have our options.
    if not options.rest or {"-h", "--help"} & set(options.rest):
        print(options.own_help(), flush=True)
    if code := harness.main(options.rest, chat_template=options.chat_template):
        sys.exit(code)
