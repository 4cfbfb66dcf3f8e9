import json

import pytest

from forkleft.manifests import MANIFEST, fault, write_manifest


def test_only_some_files_may_count(tmp_path):
    for name in ("model", "state"):
        (tmp_path / name).write_text(name)
    write_manifest(tmp_path)
    assert fault(tmp_path) is None
    (tmp_path / "state").unlink()
    assert fault(tmp_path) == fault(tmp_path, digests=False) == "state is missing"
    assert fault(tmp_path, counts=lambda name: name == "model") is None


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"])
def test_a_manifest_may_name_what_can_be_no_file(tmp_path, name):
    (tmp_path / MANIFEST).write_text(json.dumps({name: "d"}))
    assert fault(tmp_path).endswith("is missing")


@pytest.mark.parametrize("content", ["[]", "{}", "1", '{"../other": "d"}', '{"/etc/hostname": "d"}', "[" * 100_000])
def test_a_manifest_that_is_none_is_a_fault(tmp_path, content):
    (tmp_path / "other").write_text("x")
    folder = tmp_path / "checkpoint-2"
    folder.mkdir()
    (folder / MANIFEST).write_text(content)
    assert fault(folder).startswith(f"{MANIFEST} is damaged")
