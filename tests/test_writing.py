import io
import json

import pytest
from tiny import FAMILIES, tiny_student, tiny_tokenizer

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.writing import read_prompts, write_responses


def test_prompts_come_from_lines_and_from_rows(tmp_path, monkeypatch):
    (tmp_path / "lines.txt").write_text("one\n\ntwo\n")
    expected = [[{"role": "user", "content": text}] for text in ("one", "two")]
    assert read_prompts(tmp_path / "lines.txt") == expected
    rows = [{"question": "one"}, {"prompt": "two"}, {"messages": [{"role": "system", "content": "s"}]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_prompts(tmp_path / "rows.jsonl") == [*expected, rows[2]["messages"]]
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert read_prompts(type(tmp_path)("-")) == expected


def test_files_without_prompts(tmp_path):
    with pytest.raises(ForkLeftError, match="cannot read prompts"):
        read_prompts(tmp_path / "missing.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ForkLeftError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(ForkLeftError, match="line 1: expected messages, question or prompt, found text"):
        read_prompts(tmp_path / "rows.jsonl")


def test_plain_text_and_json(capsys):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    asked = [[{"role": "user", "content": text}] for text in ("a1", "b2c")]
    write_responses(student, asked, plain=False, as_json=False, max_new_tokens=8)
    texts = capsys.readouterr().out.splitlines()
    write_responses(student, asked, plain=True, as_json=True, max_new_tokens=8)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # The tiny template adds nothing, so that both ways say the same.
    assert [row["text"] for row in rows] == texts
    assert {"messages", "tokens", "commit_pass", "entropy", "confidence", "stopped", "forwards"} <= rows[0].keys()


def test_the_command(capsys):
    words = ["generate", "--model", "lab:student-block", "--max-new-tokens", "32", "--device", "cpu"]
    assert main([*words, "--prompt", "a=7;b=a+5;c=b-a;c?"]) == 0
    assert capsys.readouterr().out == "b=7+5=2;c=2-7=5;#5\n"
    assert main([*words, "--prompt", "a", "--order", "best"]) == 2
    assert "unknown order 'best'" in capsys.readouterr().err
