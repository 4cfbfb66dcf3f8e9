import gzip
from pathlib import Path

import pytest

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.files import check_writable, read_jsonl


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
