"""Folders and files as `load_student` meets them."""

import json
import shutil

import pytest
import torch
from checkpoints_on_disk import same_parameters, write_checkpoint, write_weights

from forkleft.errors import ForkLeftError
from forkleft.students import load_student


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


def test_paths_that_lead_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ForkLeftError, match="and it cannot be the id of a repository"):
        load_student(tmp_path / "absent")
    with pytest.raises(ForkLeftError, match="there is no folder owner/absent, and the hub gave no repository"):
        load_student("owner/absent")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(ForkLeftError, match=r"a.gguf is a file: expected a checkpoint's folder"):
        load_student(tmp_path / "a.gguf")


def test_a_hub_id_is_downloaded_without_pickles(tmp_path, monkeypatch):
    written = write_checkpoint(tmp_path / "hub", "sdar")
    asked = {}

    def snapshot_download(name, allow_patterns):
        asked[name] = allow_patterns
        return str(shutil.copytree(written.folder, tmp_path / "snapshot"))

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert same_parameters(load_student("JetLM/SDAR-1.7B-Chat").model, written.stock)
    assert not any(pattern in ("*", "*.bin") for pattern in asked["JetLM/SDAR-1.7B-Chat"])
