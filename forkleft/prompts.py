"""Prompts: the same messages, rendered by each model's own chat template."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError

# One turn of a conversation, with `role` and `content`, as everywhere in Transformers.
Message = dict[str, str]


def prompt_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """The ids of a conversation up to where the assistant answers, thinking off.

    Raises ForkLeftError if the tokenizer has no chat template, or its template refuses the messages.
    """
    if tokenizer.chat_template is None:
        raise ForkLeftError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template; take an instruction-tuned one of the "
            "same family, give it a template (chat_template in a recipe), or take prompts as they are (--plain)"
        )
    try:
        # Templates that know no thinking ignore the switch.
        rendered = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, return_dict=True, enable_thinking=False
        )
    except Exception as error:  # a template is a program of its own, and raises what it likes
        raise ForkLeftError(
            f"the chat template of {tokenizer.name_or_path!r} refuses {messages!r:.80}: {error}"
        ) from error
    return rendered["input_ids"]
