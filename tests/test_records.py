import multiprocessing
import os
import tracemalloc

import pytest

from forkleft.errors import ForkLeftError
from forkleft.records import KeptRecords


def kept(path, fields=None):
    return KeptRecords(path, fields or {"value": int}, "numbers")


def test_another_process_finds_what_was_put(tmp_path):
    one, two = kept(tmp_path / "numbers.jsonl"), kept(tmp_path / "numbers.jsonl")
    one.put({"k": {"value": 1}})
    assert two.get("k") == {"value": 1}
    two.put({"k": {"value": 2}, "l": {"value": 3}})
    assert one.get("k") == two.get("k") == {"value": 1}
    assert one.get("l") == {"value": 3}
    assert one.get("m") is None and len(one) == 2


@pytest.mark.parametrize("cut", range(2, 40, 7))
def test_a_torn_line_does_not_spoil_the_next(tmp_path, cut):
    path = tmp_path / "numbers.jsonl"
    kept(path).put({"k": {"value": 1}, "l": {"value": 2}})
    path.write_bytes(path.read_bytes()[:-cut])
    records = kept(path)
    assert records.get("l") is None
    records.put({"m": {"value": 3}})
    again = kept(path)
    assert (again.get("k"), again.get("l"), again.get("m")) == ({"value": 1}, None, {"value": 3})


def test_a_line_with_other_fields_is_not_taken(tmp_path):
    path = tmp_path / "numbers.jsonl"
    kept(path, {"value": int, "more": int}).put({"k": {"value": 1, "more": 2}})
    assert kept(path).get("k") is None
    kept(path, {"value": str}).put({"l": {"value": "1"}})
    assert kept(path).get("l") is None


def test_what_the_disk_damages_later_is_not_trusted_either(tmp_path):
    path = tmp_path / "numbers.jsonl"
    records = kept(path)
    records.put({"k": {"value": 1}, "l": {"value": 2}})
    path.write_bytes(path.read_bytes().replace(b'"value": 1', b'"value": 7'))
    assert (records.get("k"), records.get("l"), len(records)) == (None, {"value": 2}, 1)
    # So it is made again.
    records.put({"k": {"value": 1}})
    assert records.get("k") == kept(path).get("k") == {"value": 1}


def test_texts_are_not_kept_in_memory(tmp_path):
    records = kept(tmp_path / "texts.jsonl", {"value": str})
    tracemalloc.start()
    try:
        for k in range(100):
            records.put({str(k): {"value": f"{k} " * 10_000}})
            assert records.get(str(k)) is not None
        assert tracemalloc.get_traced_memory()[0] < 1 << 19
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", ["export PATH=/bin\n", "ssh-rsa AAAA", '{"question": "1+1?"}\n', "\0\0"])
def test_a_file_of_somebody_else_is_not_written_into(tmp_path, content):
    path = tmp_path / "theirs.jsonl"
    path.write_text(content)
    with pytest.raises(ForkLeftError, match=r"theirs.jsonl holds something else than numbers, .*; name another file"):
        kept(path)
    assert path.read_text() == content


@pytest.mark.parametrize("left", [0, 1, 5, 8, 20])
def test_a_file_whose_first_line_was_cut_is_still_ours(tmp_path, left):
    path = tmp_path / "numbers.jsonl"
    kept(path).put({"k": {"value": 1}})
    path.write_bytes(path.read_bytes()[:left])
    kept(path).put({"l": {"value": 2}})
    assert kept(path).get("l") == {"value": 2}
    # Also if its beginning was damaged later, as long as there is a record in it.
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert left < 2 or kept(path).get("l") == {"value": 2}


def _put_many(path, name):
    records = kept(path)
    for k in range(40):
        records.put({f"{name}-{k}": {"value": 10**300}, f"shared-{k}": {"value": 1}})


def test_processes_may_write_at_the_same_time(tmp_path):
    path = tmp_path / "numbers.jsonl"
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_put_many, args=(path, name)) for name in "abc"]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert len(kept(path)) == 4 * 40
    assert len(path.read_text().splitlines()) == 4 * 40


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ForkLeftError, match=r"cannot keep numbers in .*; name another file"):
        kept(tmp_path / "file" / "numbers.jsonl")
    with pytest.raises(ForkLeftError, match=r"cannot keep numbers in .*null byte; name another file"):
        kept(tmp_path / "a\0b.jsonl")


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    records = kept(tmp_path / "numbers.jsonl")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ForkLeftError, match=r"cannot keep numbers in .*numbers.jsonl: No space left on device; make"):
        records.put({"k": {"value": 1}})


def test_a_file_that_is_gone_is_told(tmp_path):
    records = kept(tmp_path / "numbers.jsonl")
    records.put({"k": {"value": 1}})
    records.path.unlink()
    for key in "kl":
        with pytest.raises(ForkLeftError, match=r"cannot read numbers in .*numbers.jsonl: No such file"):
            records.get(key)
