from pathlib import Path

import pytest

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.prompts import prompt_ids, read_template

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


def test_a_template_is_a_file_or_the_text_itself(tmp_path, monkeypatch):
    assert read_template("{{ messages[0].content }}") == "{{ messages[0].content }}"
    assert read_template("{% if true %}a{% endif %}") == "{% if true %}a{% endif %}"
    for name in ("recipe", "here"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.jinja").write_text(f"{{{{ '{name}' }}}}\n")
    (tmp_path / "here" / "other.jinja").write_text("{{ 'other' }}")
    monkeypatch.chdir(tmp_path / "here")
    assert read_template("own.jinja") == "{{ 'here' }}\n"
    folders = (tmp_path / "recipe", Path())
    assert read_template("own.jinja", *folders) == "{{ 'recipe' }}\n"
    assert read_template(tmp_path / "here" / "own.jinja", *folders) == "{{ 'here' }}\n"
    assert read_template("other.jinja", *folders) == "{{ 'other' }}"
    with pytest.raises(
        ForkLeftError, match=r"cannot read the chat template .*recipe/none.jinja or none.jinja: .*Jinja"
    ):
        read_template("none.jinja", *folders)
    (tmp_path / "here" / "empty.jinja").write_text("\n")
    with pytest.raises(ForkLeftError, match=r"empty.jinja is empty"):
        read_template("empty.jinja")
    with pytest.raises(ForkLeftError, match=r"cannot read the chat template .*null byte"):
        read_template("a\0b")
