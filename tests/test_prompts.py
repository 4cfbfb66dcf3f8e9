import pytest

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.prompts import prompt_ids

QUESTION = [{"role": "user", "content": "a=7;b=a+5;b?"}]


def test_the_template_asks_for_the_assistant():
    tokenizer = build_tokenizer()
    assert tokenizer.decode(prompt_ids(tokenizer, QUESTION)) == "<|user|>a=7;b=a+5;b?<|assistant|>"


def test_thinking_is_switched_off():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% if enable_thinking is false %}a{% else %}b{% endif %}"
    assert tokenizer.decode(prompt_ids(tokenizer, QUESTION)) == "a"


def test_no_template_and_a_template_that_refuses():
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ForkLeftError, match=r"refuses .*roles must alternate"):
        prompt_ids(tokenizer, QUESTION)
    tokenizer.chat_template = None
    with pytest.raises(ForkLeftError, match="has no chat template"):
        prompt_ids(tokenizer, QUESTION)
