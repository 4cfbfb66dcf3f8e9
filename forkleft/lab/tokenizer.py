"""The lab's tokenizer: each character is a token, beside the special tokens of chat models and diffusion models.

Built in code, saved beside every lab model as ordinary Transformers tokenizer files.
"""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, MASK, UNKNOWN = "<|pad|>", "<|mask|>", "<|unk|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
# As in Qwen: the first ends a turn, the second ends a text; either stops generation.
END_OF_TURN, END_OF_TEXT = "<|im_end|>", "<|endoftext|>"

_SPECIAL = [PAD, MASK, UNKNOWN, SYSTEM, USER, ASSISTANT, END_OF_TURN, END_OF_TEXT]
_CHARACTERS = "\n" + " " + string.digits + string.ascii_letters + string.punctuation

# A turn of the model ends with a stop token; the other turns end where the next role begins.
_CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{%- if message['role'] == 'assistant' -%}{{ '<|im_end|>' }}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}"
)

# How to cut an answer out of the text, for servers, which would otherwise treat these models as Qwen's chat models.
_RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": ASSISTANT,
    "fields": {"content": {"close": [END_OF_TURN, END_OF_TEXT], "content": "text"}},
}


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A fast tokenizer over printable ASCII; any other character becomes the unknown token."""
    vocabulary = {token: i for i, token in enumerate([*_SPECIAL, *_CHARACTERS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(_SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        mask_token=MASK,
        unk_token=UNKNOWN,
        eos_token=END_OF_TURN,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT, END_OF_TEXT],
        chat_template=_CHAT_TEMPLATE,
        response_template=_RESPONSE_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
        model_max_length=512,
    )
