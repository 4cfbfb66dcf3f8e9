import gzip

import pytest

from forkleft.errors import ForkLeftError
from forkleft.jsonl import read_jsonl


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
        ("torn.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 99)[:-20], "expected UTF-8 JSON Lines"),
    ],
)
def test_damaged_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ForkLeftError, match=message):
        read_jsonl(tmp_path / name)
    with pytest.raises(ForkLeftError, match="found none at"):
        read_jsonl(tmp_path / "missing.jsonl")
