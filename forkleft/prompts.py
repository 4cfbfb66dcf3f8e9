"""Prompts: the same messages, rendered by each model's own chat template; and where a model is read after one."""

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError

# One turn of a conversation, with `role` and `content`, as everywhere in Transformers.
Message = dict[str, str]


@dataclass(frozen=True)
class Reading:
    """Where a model is read: after its own prompt ids, at positions (from 0) of a continuation. id: for errors."""

    id: str
    prompt: Sequence[int]
    response: Sequence[int]
    positions: Sequence[int]


def read_template(given: str | Path, *folders: Path) -> str:
    """A chat template: `given` itself if it is Jinja (it holds `{{` or `{%`), else the text of the file of that name.

    folders: where a relative name is looked for, in this order (default: only the working folder). Raises
    ForkLeftError if none of them has the file, or if the file is empty.
    """
    if "{{" in str(given) or "{%" in str(given):
        return str(given)
    places = [folder / Path(given).expanduser() for folder in folders or (Path(),)]
    try:
        path = next((place for place in places if place.is_file()), places[0])
        if path.exists() and not path.is_file():
            # /dev/zero would be read without end.
            raise OSError(errno.EINVAL, "Not a regular file")
        template = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # no text, or a name with a null byte in it
        tried = " or ".join(map(str, dict.fromkeys(places)))
        reason = error.strerror if isinstance(error, OSError) else error
        raise ForkLeftError(
            f"cannot read the chat template {tried}: {reason}; expected a Jinja file, or the template itself"
        ) from error
    if not template.strip():
        raise ForkLeftError(f"the chat template {path} is empty; expected Jinja that renders messages")
    return template


def read_conversation(found: Any, where: str) -> list[Message]:
    """Messages that end with a question. Raises ForkLeftError, saying where, if they are none."""
    messages = read_messages(found, where)
    if not messages[-1]["content"].strip():
        raise ForkLeftError(f"{where}: the last message is empty; expected a question")
    return messages


def read_messages(found: Any, where: str, *, open_end: bool = False) -> list[Message]:
    """Messages that somebody else wrote. Raises ForkLeftError, saying where, if they are none.

    open_end: the content of the last one may be null, because there is none.
    """
    if isinstance(found, str) or not isinstance(found, Sequence) or not found:
        raise ForkLeftError(f"{where}: expected messages with role and content, in a list, found {found!r:.80}")
    for number, turn in enumerate(found):
        if not _is_message(turn, may_be_null=open_end and number == len(found) - 1):
            raise ForkLeftError(f"{where}: expected messages with role and content, both text, found {turn!r:.80}")
    return [dict(turn) for turn in found]


def _is_message(given: Any, *, may_be_null: bool) -> bool:
    if not isinstance(given, Mapping) or not {"role", "content"} <= given.keys() or not isinstance(given["role"], str):
        return False
    return isinstance(given["content"], str) or (may_be_null and given["content"] is None)


def check_chat_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ForkLeftError if a tokenizer has no chat template."""
    if tokenizer.chat_template is None:
        raise ForkLeftError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template; take an instruction-tuned one of the "
            "same family, give it a template (--chat-template, in a recipe chat_template), or let `forkleft generate` "
            "and `forkleft play` take prompts as they are (--plain)"
        )


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation up to where the assistant answers, thinking off.

    Raises ForkLeftError if the tokenizer has no chat template, or its template refuses the messages.
    """
    check_chat_template(tokenizer)
    try:
        # Templates without a thinking mode ignore the switch.
        rendered: Any = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True, enable_thinking=False
        )
    except Exception as error:  # a template is a program of its own, and may raise anything
        raise ForkLeftError(
            f"the chat template of {tokenizer.name_or_path!r} refuses {messages!r:.80}: {error}"
        ) from error
    return rendered["input_ids"]
