"""Prompts: the same messages, rendered by each model's own chat template; and where a model is read after one."""

from collections.abc import Sequence
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
    path = next((place for place in places if place.is_file()), places[0])
    try:
        template = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        tried = " or ".join(map(str, dict.fromkeys(places)))
        reason = error.strerror if isinstance(error, OSError) else error
        raise ForkLeftError(
            f"cannot read the chat template {tried}: {reason}; expected a Jinja file, or the template itself"
        ) from error
    if not template.strip():
        raise ForkLeftError(f"the chat template {path} is empty; expected Jinja that renders messages")
    return template


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation up to where the assistant answers, thinking off.

    Raises ForkLeftError if the tokenizer has no chat template, or its template refuses the messages.
    """
    if tokenizer.chat_template is None:
        raise ForkLeftError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template; take an instruction-tuned one of the "
            "same family, give it a template (--chat-template, in a recipe chat_template), or let `forkleft generate` "
            "and `forkleft play` take prompts as they are (--plain)"
        )
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
