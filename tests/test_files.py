import gzip
import os
import socket
from pathlib import Path

import pytest

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.files import (
    check_writable,
    is_locked,
    lock,
    read_appended,
    read_jsonl,
    remove_unfinished,
    replacing,
    write_bytes,
    write_json,
    write_text,
)


def test_a_folder_that_can_be_written_to_is_left_as_it_was(tmp_path, monkeypatch):
    check_writable(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path)
    check_writable(Path("a"))
    assert list(tmp_path.iterdir()) == []


def test_one_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ForkLeftError, match=r"found a file: .*/file; name another \(--there\)"):
        check_writable(tmp_path / "file", "--there")
    with pytest.raises(ForkLeftError, match=r"cannot write to .*/file/run: Not a directory; name another \(--output\)"):
        check_writable(tmp_path / "file" / "run")
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: (_ for _ in ()).throw(PermissionError(13, "denied")))
    with pytest.raises(ForkLeftError, match=r"cannot write to .*: denied"):
        check_writable(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["convert", "--model", "nowhere", "--family", "bd3lm", "--output"],
        ["demo", "--output"],
        ["lab", "accuracy", "--records"],
        ["train", "--config", str(Path(__file__).parents[1] / "recipes" / "lab.yaml"), "--output_dir"],
        ["answer", "--config", str(Path(__file__).parents[1] / "recipes" / "lab.yaml"), "--output_dir"],
    ],
    ids=lambda words: words[0],
)
def test_commands_say_so_before_they_work(tmp_path, capsys, words):
    (tmp_path / "file").touch()
    assert main([*words, str(tmp_path / "file" / "run")]) == 2
    assert "Not a directory; name another" in capsys.readouterr().err


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    # No process has so large a number.
    host, ended = socket.gethostname(), 10**9
    left = [f".traces.jsonl.{host}-{ended}", f".model-00001-of-00002.safetensors.{host}-{ended}"]
    left += [f".a.md.{host}-{10**30}", ".report.html.node-7-4711"]
    kept = [f".report.html.{host}-{os.getpid()}", ".lock", f".mine.{host}-{ended}", f"traces.jsonl.{host}-{ended}"]
    kept += [".a.json", ".report.html.node-7-4712"]
    for name in left + kept:
        (tmp_path / name).touch()
    os.utime(tmp_path / ".report.html.node-7-4711", (0, 0))
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_plain_and_gzipped_files_give_the_same_rows(tmp_path):
    text = '{"a": "ä"}\n\n{"a": 2}\n'
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("rows.jsonl", "rows.jsonl.gz"):
        path = tmp_path / name
        assert read_jsonl(path) == [(f"{path}, line 1", {"a": "ä"}), (f"{path}, line 3", {"a": 2})]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("torn.jsonl", b'{"a": 1}\n{"a": ', "line 2: expected a JSON object"),
        ("list.jsonl", b"[1]\n", "line 1: expected a JSON object, found"),
        ("binary.jsonl", b"\xff\xfe\x00", "expected UTF-8 JSON Lines"),
        ("torn.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99, mtime=0)[:-20], "expected UTF-8 JSON Lines"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ForkLeftError, match=message):
        read_jsonl(tmp_path / name)
    with pytest.raises(ForkLeftError, match="found none at"):
        read_jsonl(tmp_path / "missing.jsonl")


def full(*arguments, **settings):
    raise OSError(28, "No space left on device")


def test_a_file_is_written_whole_or_left_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_text(path, "ä\n")
    assert path.read_bytes() == "ä\n".encode()
    write_json(path, {"b": "ä", "a": [1]})
    assert path.read_text() == '{\n  "b": "\\u00e4",\n  "a": [\n    1\n  ]\n}\n'
    write_json(path, {"b": "ä", "a": 1}, indent=None, sort_keys=True, ensure_ascii=False)
    assert path.read_text(encoding="utf-8") == '{"a": 1, "b": "ä"}\n'
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_bytes(path, b"new")
    assert [(path.name, path.read_text(encoding="utf-8")) for path in tmp_path.iterdir()] == [
        ("file", '{"a": 1, "b": "ä"}\n')
    ]


def test_files_that_belong_together_take_their_names_together(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("old")
    with pytest.raises(KeyError), replacing([one, two]) as staged:
        staged[one].write_text("new")
        raise KeyError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("one", "old")]
    with replacing([one, two]) as staged:
        staged[one].write_text("new")
        staged[two].write_text("2")
        assert one.read_text() == "old" and not two.exists()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one": "new", "two": "2"}


def test_torn_and_damaged_lines_are_told_from_whole_ones(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [b'{"a": 1}\n', b"[1]\n", b'{"a": \n', b"\xff\n", '{"a": "\u2028"}\n'.encode(), b'{"a": 3}']
    path.write_bytes(b"".join(lines))
    found = [{"a": 1}, None, None, None, {"a": "\u2028"}, None]
    assert list(read_appended(path)) == list(zip(lines, found, strict=True))
    assert list(read_appended(path, len(lines[0]))) == list(zip(lines, found, strict=True))[1:]
    assert list(read_appended(path, path.stat().st_size)) == []


def test_a_lock_holds_until_the_file_is_closed(tmp_path):
    path = tmp_path / "lock"
    assert not is_locked(path)
    with path.open("a") as file, path.open("a") as other:
        assert lock(file) and is_locked(path)
        assert not lock(other, wait=False)
        file.close()
        assert not is_locked(path) and lock(other, wait=False)
