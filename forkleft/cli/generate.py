"""`forkleft generate`: let a student write."""

import argparse
from pathlib import Path

from forkleft.cli.arguments import (
    ORDERS,
    Commands,
    add_command,
    hide_loading_bars,
    model_arguments,
    sampler_arguments,
    student_of,
)


def add(commands: Commands) -> None:
    """Add the command and its arguments."""
    generate = add_command(commands, "generate", run, "let a student write, and watch the text denoise")
    model_arguments(generate)
    asked = generate.add_mutually_exclusive_group(required=True)
    asked.add_argument("--prompt", metavar="TEXT", help="the question")
    asked.add_argument("--file", type=Path, metavar="FILE", help="one prompt a line, or .jsonl; - is standard input")
    generate.add_argument("--plain", action="store_true", help="take prompts as they are, without the chat template")
    generate.add_argument("--json", action="store_true", help="one JSON object a line: text, tokens, passes, entropies")
    generate.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="response budget (default 256)")
    help_text = "for watching: show every pass so long (default 0.2, if no number follows)"
    generate.add_argument("--slow", type=float, nargs="?", default=0.0, const=0.2, metavar="SECONDS", help=help_text)
    generate.add_argument("--order", choices=ORDERS, help="default confidence, or the family's native one")
    sampler_arguments(generate)


def run(options: argparse.Namespace) -> None:
    """`forkleft generate`."""
    from forkleft.cli.writing import check_pause, read_prompts, user_turn, write_responses
    from forkleft.rollout import decoding_of

    hide_loading_bars()
    conversations = [user_turn(options.prompt)] if options.file is None else read_prompts(options.file)
    check_pause(options.slow, conversations, as_json=options.json)
    student = student_of(options)
    said = {name: getattr(options, name) for name in ("order", "passes", "threshold")}
    write_responses(
        student,
        conversations,
        plain=options.plain,
        as_json=options.json,
        decoding=decoding_of(student.family, options.decoding, **said),
        pause=options.slow,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        batch_size=options.batch_size,
    )
