import io
import json
import re
import sys
from functools import partial

import pytest
from checkpoints_on_disk import write_checkpoint, write_weights
from rich.console import Console
from tiny import FAMILIES, tiny_student, tiny_tokenizer

from forkleft.cli import main
from forkleft.cli.writing import read_prompts, write_responses
from forkleft.errors import ForkLeftError
from forkleft.rollout import Trajectory
from forkleft.students.families import Decoding

STATIC = {"decoding": Decoding()}


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
    with pytest.raises(ForkLeftError, match=r"cannot read prompts from .*missing.txt: No such file or directory$"):
        read_prompts(tmp_path / "missing.txt")
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ForkLeftError, match="holds no prompt"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "rows.jsonl").write_text('{"text": "one"}\n')
    with pytest.raises(ForkLeftError, match="line 1: expected messages, question or prompt, found text"):
        read_prompts(tmp_path / "rows.jsonl")


def test_an_empty_prompt_is_refused(tmp_path, capsys):
    # Before the model is loaded: there is none.
    assert main(["generate", "--model", "nowhere", "--prompt", " "]) == 2
    assert "--prompt: the prompt is empty; expected a question" in capsys.readouterr().err
    for row in ({"question": ""}, {"messages": [{"role": "user", "content": "\n"}]}):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
        with pytest.raises(ForkLeftError, match=r"line 1: the .* is empty; expected a question"):
            read_prompts(tmp_path / "rows.jsonl")


def test_plain_text_and_json(capsys):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    asked = [[{"role": "user", "content": text}] for text in ("a1", "b2c")]
    write_responses(student, asked, plain=False, as_json=False, **STATIC, max_new_tokens=8, batch_size=1)
    texts = capsys.readouterr().out.split("\n\n")[:-1]
    write_responses(student, asked, plain=True, as_json=True, **STATIC, max_new_tokens=8, batch_size=32)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    # The tiny template adds nothing, so that both ways say the same.
    assert [row["text"] for row in rows] == texts
    assert {"messages", "tokens", "commit_pass", "entropy", "confidence", "stopped", "forwards"} <= rows[0].keys()


def test_a_response_that_begins_with_its_end_is_told(capsys, monkeypatch):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    stop = student.vocabulary.stop_ids[0]
    empty = Trajectory([stop], "", [1], [0.0], [1.0], stopped=True, forwards=1)
    monkeypatch.setattr(
        "forkleft.cli.writing.decode", lambda student, prompts, *rest, **settings: [empty] * len(prompts)
    )
    asked = [[{"role": "user", "content": "a1"}]]
    write_responses(student, asked, plain=False, as_json=False, **STATIC, max_new_tokens=8, batch_size=1)
    told = capsys.readouterr()
    name = student.tokenizer.convert_ids_to_tokens(stop)
    assert told.out == "\n"
    assert told.err == f"forkleft: the response is empty: it began with its stop token {name!r}\n"
    write_responses(student, asked, plain=False, as_json=True, **STATIC, max_new_tokens=8, batch_size=1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("messages", [[], "one", [{"role": "user"}], [3]])
def test_conversations_that_are_none(tmp_path, messages):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    with pytest.raises(ForkLeftError, match="line 1: expected messages with role and content"):
        read_prompts(tmp_path / "rows.jsonl")


def test_several_turns_need_the_template():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    turns = [{"role": "user", "content": "a"}] * 2
    with pytest.raises(ForkLeftError, match="leave out --plain"):
        write_responses(student, [turns], plain=True, as_json=False, **STATIC, max_new_tokens=8, batch_size=1)


def test_a_terminal_shows_one_response_live(monkeypatch, capsys):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    monkeypatch.setattr("forkleft.cli.writing.Console", partial(Console, force_terminal=True, width=80, height=24))
    asked = [[{"role": "user", "content": "a1"}]]
    write_responses(student, asked, plain=False, as_json=False, **STATIC, max_new_tokens=8, batch_size=1)
    told = capsys.readouterr().out
    assert "pass 1" in told and "nats of entropy at commit" in told and "forwards" in told


def test_slowly_for_people_to_watch(monkeypatch, capsys):
    words = ["generate", "--model", "lab:student-block", "--max-new-tokens", "32", "--device", "cpu", "--slow"]
    asked = ["--prompt", "a=7;b=a+5;c=b-a;c?"]
    assert main([*words, *asked]) == 2
    assert "--slow is for watching: one prompt, in a terminal, without --json" in capsys.readouterr().err
    monkeypatch.setattr("forkleft.cli.writing.Console", partial(Console, force_terminal=True, width=80, height=24))
    slept = []
    monkeypatch.setattr("forkleft.report.live.time.sleep", slept.append)
    assert main([*words, "0.3", *asked]) == 0
    told = capsys.readouterr().out
    # A pause of the program is no time of the model.
    assert "forwards" in told and not re.search(r"\d s\b", told)
    assert len(slept) == 33 and all(0 <= seconds <= 0.3 for seconds in slept)
    for more, message in (
        (["--json"], "--slow is for watching"),
        (["--slow", "-1"], "--slow: expected seconds, 0.2 for instance, found -1.0"),
        (["--slow", "nan"], "found nan"),
    ):
        assert main([*words, *asked, *more]) == 2
        assert message in capsys.readouterr().err


def test_the_command(capsys):
    words = [
        "generate",
        "--model",
        "lab:student-block",
        "--max-new-tokens",
        "32",
        "--device",
        "cpu",
        "--dtype",
        "float64",
    ]
    assert main([*words, "--prompt", "a=7;b=a+5;c=b-a;c?"]) == 0
    assert capsys.readouterr().out == "b=7+5=2;c=2-7=5;#5\n"
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--prompt", "a", "--order", "best"])
    assert "unknown 'best'" in capsys.readouterr().err


def test_native_decoding_of_the_command(tmp_path, capsys):
    written = write_checkpoint(tmp_path, "sdar")
    # A student that is often above the threshold.
    write_weights(tmp_path, written.tensors | {"lm_head.weight": 10 * written.tensors["lm_head.weight"]})
    words = ["generate", "--model", str(tmp_path), "--max-new-tokens", "24", "--device", "cpu", "--json"]

    def rows(*more):
        assert main([*words, "--prompt", "1+1?", *more]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    native = rows("--decoding", "native")
    assert native == rows("--threshold", "0.85") != rows()
    assert rows("--decoding", "native", "--threshold", "1", "--order", "random") == rows("--order", "random")
    lab = ["generate", "--model", "lab:student-block", "--prompt", "a=1;a?", "--device", "cpu", "--decoding", "native"]
    assert main(lab) == 2
    assert "the native decoding is known of the families efficient-dlm" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_a_terminal_obeys_nothing_that_a_model_writes(capsys, monkeypatch, terminal):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    text = "a\x1b]0;title\x07b\x9b2J\tc\nd\r"
    said = Trajectory([5], text, [1], [0.0], [1.0], stopped=False, forwards=1)
    monkeypatch.setattr(
        "forkleft.cli.writing.decode", lambda student, prompts, *rest, **settings: [said] * len(prompts)
    )
    monkeypatch.setattr("forkleft.cli.writing._is_shown", lambda *arguments: False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    asked = [[{"role": "user", "content": "a1"}]]
    write_responses(student, asked, plain=False, as_json=False, **STATIC, max_new_tokens=8, batch_size=1)
    shown = capsys.readouterr().out
    assert shown.startswith("a]0;titleb2J\tc\nd\n" if terminal else text)
