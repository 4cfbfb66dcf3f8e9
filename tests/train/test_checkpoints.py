import errno
import json
import os

import pytest

from forkleft import manifests
from forkleft.digests import file_digest
from forkleft.errors import ForkLeftError
from forkleft.train.checkpoints import (
    MANIFEST,
    check_whole,
    fault,
    move_files,
    newest_whole,
    publish,
    rotate,
    set_aside,
    steps,
)


def write(output, step, text="weights"):
    staged = output / "staging" / f"checkpoint-{step}"
    (staged / "deep").mkdir(parents=True)
    (staged / "model").write_text(text)
    (staged / "deep" / "state").write_text("state")
    publish(staged, output / staged.name)
    return output / staged.name


def test_published_is_whole(tmp_path):
    folder = write(tmp_path, 3)
    assert fault(folder) is None
    assert not (tmp_path / "staging" / "checkpoint-3").exists()
    assert write(tmp_path, 3, "newer") == folder
    assert (folder / "model").read_text() == "newer"
    assert fault(folder) is None


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("model", lambda path: path.write_text("weightz"), "model is damaged"),
        ("model", lambda path: path.unlink(), "model is missing"),
        ("deep/state", lambda path: path.write_bytes(b""), "deep/state is damaged"),
        (MANIFEST, lambda path: path.unlink(), f"{MANIFEST} is missing"),
        (MANIFEST, lambda path: path.write_text("{"), f"{MANIFEST} is damaged"),
    ],
)
def test_damage_is_seen_and_passed_over(tmp_path, name, damage, reason):
    older, newer = write(tmp_path, 9), write(tmp_path, 10)
    assert newest_whole(tmp_path) == newer
    damage(newer / name)
    assert fault(newer).startswith(reason)
    assert newest_whole(tmp_path) == older
    with pytest.raises(ForkLeftError, match=f"not a whole checkpoint .*{reason}"):
        check_whole(newer)
    damage(older / name)
    with pytest.raises(ForkLeftError, match=f"no whole checkpoint .*checkpoint-10: {reason}.*; checkpoint-9: {reason}"):
        newest_whole(tmp_path)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_file_that_cannot_be_read_is_passed_over(tmp_path, monkeypatch, number):
    older, newer = write(tmp_path, 9), write(tmp_path, 10)

    def unread(path):
        if path.is_relative_to(newer):
            raise OSError(number, os.strerror(number))
        return file_digest(path)

    monkeypatch.setattr(manifests, "file_digest", unread)
    assert newest_whole(tmp_path) == older
    with pytest.raises(ForkLeftError, match=rf"deep/state cannot be read \({os.strerror(number)}\)"):
        check_whole(newer)


def test_what_is_set_aside_does_not_count_and_is_not_removed(tmp_path, caplog):
    for text in ("first", "second"):
        folder = write(tmp_path, 10, text)
        set_aside(folder)
        assert steps(tmp_path) == {}
        (aside,) = tmp_path.glob("*checkpoint-10")
        assert (aside / "model").read_text() == text
        assert f"{folder} is not whole, and is {aside.name} now" in caplog.text


def test_nothing_there(tmp_path):
    (tmp_path / "checkpoint-best").mkdir()
    with pytest.raises(ForkLeftError, match=r"no folder checkpoint-N\)"):
        newest_whole(tmp_path)
    with pytest.raises(ForkLeftError, match="is no folder"):
        check_whole(tmp_path / "checkpoint-1")


@pytest.mark.parametrize(
    ("limit", "keep", "left"),
    [
        (None, None, [2, 4, 10]),
        (2, None, [4, 10]),
        (1, None, [10]),
        (2, 2, [2, 10]),
        (1, 2, [2, 10]),
        (5, 4, [2, 4, 10]),
    ],
)
def test_rotation_keeps_the_newest_and_the_best(tmp_path, limit, keep, left):
    for step in (2, 4, 10):
        write(tmp_path, step)
    rotate(tmp_path, limit, best=None if keep is None else f"elsewhere/checkpoint-{keep}")
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.glob("checkpoint-*")) == left


def test_checkpoints_that_were_asked_for_by_their_step_stay_and_do_not_count(tmp_path):
    for step in (2, 4, 6, 8, 10):
        write(tmp_path, step)
    rotate(tmp_path, 1, best=None, kept=[2, 4])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{k}" for k in (10, 2, 4)]
    rotate(tmp_path, 1, best=None, kept=[2, 10])
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == [f"checkpoint-{k}" for k in (10, 2, 4)]


def test_a_final_model_replaces_the_weights_of_an_older_one_and_nothing_else(tmp_path):
    staged = tmp_path / "staged"
    staged.mkdir()
    (staged / "model.safetensors").write_text("new")
    stale = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"]
    stale.append(MANIFEST)
    for name in [*stale, "model.safetensors", "model_mine.safetensors", "metrics.jsonl"]:
        (tmp_path / name).write_text("old")
    move_files(staged, tmp_path)
    left = {path.name: path.read_text() for path in tmp_path.iterdir()}
    manifest = json.loads(left.pop(MANIFEST))
    assert left == {"model.safetensors": "new", "model_mine.safetensors": "old", "metrics.jsonl": "old"}
    assert manifest == {"model.safetensors": file_digest(tmp_path / "model.safetensors")}


def test_an_older_checkpoint_is_not_taken_without_a_word(tmp_path, caplog):
    for step in (2, 4):
        staged = tmp_path / "staged"
        staged.mkdir()
        (staged / "model.safetensors").write_bytes(b"weights")
        publish(staged, tmp_path / f"checkpoint-{step}")
    (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"weightt")
    assert newest_whole(tmp_path).name == "checkpoint-2"
    assert "checkpoint-4: model.safetensors is damaged; checkpoint-2 is the newest that is" in caplog.text
