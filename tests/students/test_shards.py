"""Folders and files as `load_student` meets them."""

import json
import os
import shutil
import socket
import types
from fnmatch import fnmatch

import huggingface_hub
import pytest
import torch
from checkpoints_on_disk import same_parameters, write_checkpoint, write_weights

from forkleft.errors import ForkLeftError
from forkleft.students import load_student, shards
from forkleft.students.autoregressive import load_causal_lm


def test_bad_weights(tmp_path):
    """Missing, unexpected and misshapen tensors, all named; nothing is left at random."""
    written = write_checkpoint(tmp_path / "one", "sdar")
    norm = "model.layers.1.self_attn.q_norm.weight"
    without = {name: tensor for name, tensor in written.tensors.items() if name != norm}
    cases = [
        (without, f"missing: {norm}$"),
        (written.tensors | {"model.extra": torch.ones(2)}, "unexpected: model.extra$"),
        (without | {"model.extra": torch.ones(2)}, f"missing: {norm}; unexpected: model.extra$"),
        (without | {norm: torch.ones(9)}, rf"{norm} has shape \(9,\), but config.json makes it \(8,\)"),
        (without | {norm: torch.ones(8, dtype=torch.int8)}, f"{norm} is stored as I8; expected floating point"),
    ]
    for tensors, message in cases:
        write_weights(written.folder, tensors)
        with pytest.raises(ForkLeftError, match=message):
            load_student(written.folder)
    computed = {
        "model.rotary_emb.inv_freq": torch.ones(4),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4),
    }
    write_weights(written.folder, written.tensors | computed)
    assert same_parameters(load_student(written.folder).model, written.stock)


def test_a_tied_head_that_was_stored_too(tmp_path):
    written = write_checkpoint(tmp_path, "sdar", tied=True)
    write_weights(tmp_path, written.tensors | {"lm_head.weight": written.tensors["model.embed_tokens.weight"].clone()})
    assert same_parameters(load_student(tmp_path).model, written.stock)


def test_damaged_files(tmp_path):
    for kind in ("missing", "truncated", "empty"):
        folder = write_checkpoint(tmp_path / kind, "sdar", shards=3).folder
        shard = folder / "model-00002-of-00003.safetensors"
        if kind == "missing":
            shard.unlink()
            message = r"lacks 1 of its 3 weight files: model-00002-of-00003.safetensors; download it again"
        else:
            shard.write_bytes(shard.read_bytes()[: {"truncated": -100, "empty": 0}[kind] or 0])
            message = "model-00002-of-00003.safetensors is damaged or truncated"
        with pytest.raises(ForkLeftError, match=message):
            load_student(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../a.safetensors"}}')
    with pytest.raises(ForkLeftError, match=r"names files outside its folder: ../a.safetensors"):
        load_student(folder)
    index.write_text("{")
    with pytest.raises(ForkLeftError, match=r"index.json cannot be read: Expecting property name"):
        load_student(folder)
    index.unlink()
    with pytest.raises(ForkLeftError, match=r"neither model.safetensors nor model.safetensors.index.json"):
        load_student(folder)
    (folder / "config.json").unlink()
    with pytest.raises(ForkLeftError, match=r"config.json is missing"):
        load_student(folder)


def test_an_index_that_lists_what_no_file_has(tmp_path):
    folder = write_checkpoint(tmp_path, "sdar", shards=2).folder
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.ghost"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ForkLeftError, match=r"lists tensors that are in none of its files: model.ghost"):
        load_student(folder)


def test_pickled_weights_are_refused_by_name(tmp_path):
    folder = write_checkpoint(tmp_path, "sdar").folder
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ForkLeftError, match=r"its weights in pytorch_model.bin: pickles, .* are refused"):
        load_student(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.gguf")
    with pytest.raises(ForkLeftError, match=r"has only GGUF weights \(model.gguf\)"):
        load_student(folder)
    (folder / "model.gguf").unlink()
    with pytest.raises(ForkLeftError, match=r"has no weights: expected model.safetensors or"):
        load_student(folder)


@pytest.mark.parametrize("load", [load_student, load_causal_lm])
def test_a_hub_that_is_not_reached_is_no_wrong_name(load, monkeypatch):
    """Without a connection, and where none is allowed; a repository that is not there is another matter."""
    # The client tries again after pauses, which say nothing here.
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    for offline, reason in ((False, "and the hub was not reached; .* a connection"), (True, "HF_HUB_OFFLINE is set; ")):
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr("socket.getaddrinfo", no_network)
        with pytest.raises(ForkLeftError, match=f"there is no folder owner/absent here, .*{reason}") as raised:
            load("owner/absent")
        assert "Got:" not in str(raised.value) and "local folder" in str(raised.value)


def test_a_repository_that_is_not_there(monkeypatch):
    def refuse(*given, **settings):
        response = types.SimpleNamespace(headers={}, request=None, status_code=404)
        raise huggingface_hub.errors.RepositoryNotFoundError("404 Client Error", response=response)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ForkLeftError, match="the hub gave no repository of that name: 404 Client Error"):
        load_student("owner/absent")


def no_network(*given, **settings):
    raise socket.gaierror(-2, "Name or service not known")


def test_paths_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ForkLeftError, match="and it cannot be the id of a repository"):
        load_student(tmp_path / "absent")
    with pytest.raises(ForkLeftError, match=r"there is no file or folder x.ggufx, and it cannot be"):
        load_student("x.ggufx")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ForkLeftError, match=r"a.gguf is a file: expected a checkpoint's folder"):
        load_student(tmp_path / "a.gguf")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one repository: its folder, and what was asked of it."""
    written, asked = write_checkpoint(tmp_path / "hub", "sdar"), []

    def snapshot_download(name, revision, allow_patterns):
        asked.append((name, revision))
        left = [path.name for path in written.folder.iterdir()]
        left = [file for file in left if not any(fnmatch(file, pattern) for pattern in allow_patterns)]
        return str(shutil.copytree(written.folder, tmp_path / f"snapshot-{len(asked)}", ignore=lambda *_: left))

    def list_repo_files(name, revision):
        assert asked[-1] == (name, revision)
        return [str(path.relative_to(written.folder)) for path in written.folder.rglob("*") if path.is_file()]

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.list_repo_files", list_repo_files)
    return written, asked


def test_a_hub_id_is_downloaded(hub):
    written, asked = hub
    for name in ("JetLM/SDAR-1.7B-Chat", "JetLM/SDAR-1.7B-Chat@refs/pr/3"):
        assert same_parameters(load_student(name).model, written.stock)
    assert asked == [("JetLM/SDAR-1.7B-Chat", None), ("JetLM/SDAR-1.7B-Chat", "refs/pr/3")]


def test_weights_stay_on_the_hub_if_they_are_not_wanted(hub):
    whole, empty = load_student("a/b"), load_student("a/b", weights=False)
    left = [path.name for path in whole.origin.folder.iterdir() if not (empty.origin.folder / path.name).exists()]
    assert left == ["model.safetensors"]
    assert (empty.device.type, empty.family, empty.vocabulary) == ("meta", whole.family, whole.vocabulary)
    shapes = [{name: parameter.shape for name, parameter in each.model.named_parameters()} for each in (whole, empty)]
    assert shapes[0] == shapes[1]


def test_of_a_repository_only_the_files_with_some_tensors_are_downloaded(hub):
    written, _ = hub
    folder, names = written.folder, {"model.norm.weight", "model.layers.0.mlp.up_proj.weight"}
    assert (shards.partial_folder("a/b", names) / "model.safetensors").exists()
    (folder / "model.safetensors").unlink()
    write_weights(folder, written.tensors, 5)
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    found = shards.partial_folder("a/b@main", names)
    assert {path.name for path in found.glob("*.safetensors")} == {places[name] for name in names}
    assert (found / "config.json").exists()
    # Of a folder on this machine nothing is copied.
    assert shards.partial_folder(folder, names) == folder


def test_a_repository_with_other_weights_only_is_refused_by_name(hub):
    folder = hub[0].folder
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    # Of another model, as far as anybody knows.
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").touch()
    message = r"^a/b has its weights in pytorch_model.bin: pickles, .* name a revision .*owner/name@revision"
    with pytest.raises(ForkLeftError, match=message):
        load_student("a/b@main")
    (folder / "pytorch_model.bin").rename(folder / "q4.gguf")
    with pytest.raises(ForkLeftError, match=r"^a/b has only GGUF weights \(q4.gguf\); name the file to use"):
        load_student("a/b")


def test_no_pickle_is_ever_downloaded():
    for pickled in shards._PICKLES:
        for file in (pickled.replace("*", "pytorch_model"), pickled.replace("*", "old/weights-00001")):
            assert not any(fnmatch(file, pattern) for pattern in shards._DOWNLOADED)


def write(folder, tensors, **settings):
    shards.write_tensors(folder, tensors, dtype=torch.float32, **{"shard_bytes": 5_000_000} | settings)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_only_weights_that_were_written_here_are_removed(tmp_path):
    others = [
        "model_mine.safetensors",
        "model-1.safetensors",
        "model-00001-of-00002.safetensors.bak",
        "other.safetensors",
    ]
    for name in others:
        (tmp_path / name).write_text("mine")
    tensors = {name: torch.ones(100) for name in "abc"}
    write(tmp_path, tensors, shard_bytes=400)
    index = "model.safetensors.index.json"
    files = [f"model-{k:05d}-of-00003.safetensors" for k in (1, 2, 3)]
    assert names(tmp_path) == sorted([*others, *files, index])
    write(tmp_path, tensors)
    assert names(tmp_path) == sorted([*others, "model.safetensors"])
    write(tmp_path, tensors, shard_bytes=800)
    assert names(tmp_path) == sorted([*others, *(f"model-{k:05d}-of-00002.safetensors" for k in (1, 2)), index])
    assert all((tmp_path / name).read_text() == "mine" for name in others)


def test_old_weights_stay_until_the_new_ones_are_there(tmp_path):
    write(tmp_path, {"a": torch.ones(100)})
    before = (tmp_path / "model.safetensors").read_bytes()

    def full_disk(view):
        if view.sum() > 150:
            raise OSError("no space left on device")
        assert (tmp_path / "model.safetensors").read_bytes() == before
        return view

    with pytest.raises(OSError, match="no space left"):
        write(tmp_path, {"a": torch.ones(100), "b": torch.full((100,), 2.0)}, shard_bytes=400, final=full_disk)
    assert names(tmp_path) == ["model.safetensors"] and (tmp_path / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_weights_can_be_read_as_other_files_can(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        shards.write_tensors(tmp_path, {"a": torch.zeros(4), "b": torch.zeros(4)}, dtype=torch.float32, shard_bytes=16)
    finally:
        os.umask(before)
    assert len(list(tmp_path.iterdir())) == 3
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {mode}
