"""What `forkleft generate` does: prompts from the command line or a file, responses to the terminal or as JSON."""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from forkleft.errors import ForkLeftError
from forkleft.files import read_jsonl
from forkleft.prompts import Message, prompt_ids, read_conversation
from forkleft.report.live import LiveText, without_controls
from forkleft.rollout import Trajectory, decode
from forkleft.students import Student
from forkleft.students.families import Decoding


def read_prompts(path: Path) -> list[list[Message]]:
    """Conversations of a file: `.jsonl` rows with `messages`, `question` or `prompt`; else one prompt a line.

    `-` is standard input. Raises ForkLeftError if there is none.
    """
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        found = [_conversation(where, row) for where, row in read_jsonl(path)]
    else:
        try:
            text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ForkLeftError(f"cannot read prompts from {path}: {reason}") from error
        found = [user_turn(line) for line in text.splitlines() if line.strip()]
    if not found:
        raise ForkLeftError(f"{path} holds no prompt; expected one a line")
    return found


def write_responses(
    student: Student,
    conversations: Sequence[Sequence[Message]],
    *,
    plain: bool,
    as_json: bool,
    decoding: Decoding,
    pause: float = 0.0,
    **settings: Any,
) -> None:
    """Write a response to each conversation and print it. settings: the other arguments of `write`.

    plain: take the prompt as it is, without the chat template. pause: show each pass for at least so many seconds, if
    the response is shown while it is written (a single prompt, in a terminal).
    """
    if plain:
        if any(len(conversation) > 1 for conversation in conversations):
            raise ForkLeftError("a conversation of several turns needs the chat template; leave out --plain")
        prompts = [student.text_tokenizer.encode(conversation[0]["content"]) for conversation in conversations]
    else:
        prompts = [prompt_ids(student.text_tokenizer, conversation) for conversation in conversations]
    console = Console()
    started = time.perf_counter()
    if _is_shown(console, conversations, as_json):
        with LiveText(console, student, pause=pause) as live:
            written = decode(student, prompts, decoding, watch=live.show, **settings)
            live.finish(written[0].tokens, written[0].entropy)
        _tell_empty(student, written)
    else:
        written = []
        # Batch by batch, so that finished responses are printed while the rest is written.
        for start in range(0, len(prompts), settings["batch_size"]):
            part = slice(start, start + settings["batch_size"])
            written += decode(student, prompts[part], decoding, **settings)
            _print(conversations[part], written[part], as_json, separated=len(prompts) > 1)
            if not as_json:
                _tell_empty(student, written[part])
    if console.is_terminal and not as_json:
        tokens = sum(len(trajectory.tokens) for trajectory in written)
        forwards = sum(trajectory.forwards for trajectory in written)
        summary = f"{tokens} tokens in {forwards} forwards ({tokens / forwards:.1f} a forward)"
        if not pause:
            summary += f", {time.perf_counter() - started:.1f} s"
        console.print(summary, style="dim", highlight=False)


def check_pause(pause: float, conversations: Sequence[Sequence[Message]], *, as_json: bool) -> None:
    """Raise ForkLeftError for an impossible pause, and for a pause if no passes are shown."""
    if not 0 <= pause < math.inf:
        raise ForkLeftError(f"--slow: expected seconds, 0.2 for instance, found {pause}")
    if pause and not _is_shown(Console(), conversations, as_json):
        raise ForkLeftError("--slow is for watching: one prompt, in a terminal, without --json")


def _is_shown(console: Console, conversations: Sequence[Sequence[Message]], as_json: bool) -> bool:
    """Whether a response is shown while it is written."""
    return console.is_terminal and len(conversations) == 1 and not as_json


def _print(
    conversations: Sequence[Sequence[Message]], written: Sequence[Trajectory], as_json: bool, *, separated: bool
) -> None:
    for conversation, trajectory in zip(conversations, written, strict=True):
        if as_json:
            print(json.dumps({"messages": list(conversation)} | asdict(trajectory), ensure_ascii=False), flush=True)
        else:
            text = trajectory.text or ""
            if sys.stdout.isatty():
                text = without_controls(text)
            # Responses may have several lines; an empty line shows where one ends.
            print(f"{text}\n" if separated else text, flush=True)


def _tell_empty(student: Student, written: Sequence[Trajectory]) -> None:
    """Say of each response that consists of a stop token alone, and would show nothing, that it is empty."""
    for trajectory in written:
        if trajectory.stopped and len(trajectory.tokens) == 1:
            stop = student.text_tokenizer.convert_ids_to_tokens(trajectory.tokens[0])
            print(f"forkleft: the response is empty: it began with its stop token {stop!r}", file=sys.stderr)


def _conversation(where: str, row: dict[str, Any]) -> list[Message]:
    if row.get("messages") is not None:
        return read_conversation(row["messages"], where)
    prompt = row.get("question", row.get("prompt"))
    if not isinstance(prompt, str):
        raise ForkLeftError(f"{where}: expected messages, question or prompt, found {', '.join(row)}; rename the field")
    return user_turn(prompt, where)


def user_turn(text: str, where: str = "--prompt") -> list[Message]:
    """A prompt as a conversation. Raises ForkLeftError, saying where it came from, if it is empty."""
    if not text.strip():
        raise ForkLeftError(f"{where}: the prompt is empty; expected a question")
    return [{"role": "user", "content": text}]
