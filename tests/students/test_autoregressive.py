import json

import pytest
import torch
from checkpoints_on_disk import write_autoregressive, write_checkpoint, write_tokenizer, write_weights
from exact import assert_exact
from tiny import tiny_model

from forkleft.errors import ForkLeftError
from forkleft.students.autoregressive import load_causal_lm


def test_a_mixture_of_experts(tmp_path):
    model = tiny_model("qwen3_moe", vocab_size=320, dtype=torch.float64)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, ["<|endoftext|>"], tokenizer_class="PreTrainedTokenizerFast")
    loaded, tokenizer = load_causal_lm(tmp_path, dtype=torch.float64)
    assert tokenizer.eos_token_id == 256
    ids = torch.tensor([[5, 6, 7]])
    assert_exact(loaded(ids).logits, model(ids).logits)


@pytest.mark.parametrize("generation_config", [True, False])
def test_without_weights_there_are_shapes_and_stop_ids(tmp_path, generation_config):
    write_autoregressive(tmp_path)
    if not generation_config:
        (tmp_path / "generation_config.json").unlink()
    whole, _ = load_causal_lm(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not looked at")
    empty, tokenizer = load_causal_lm(tmp_path, dtype=torch.bfloat16, weights=False)
    assert (empty.device.type, empty.dtype) == ("meta", torch.bfloat16)
    assert {n: p.shape for n, p in empty.named_parameters()} == {n: p.shape for n, p in whole.named_parameters()}
    assert empty.generation_config.eos_token_id == whole.generation_config.eos_token_id
    assert tokenizer.chat_template is not None


def test_a_model_without_experts_may_have_the_field(tmp_path):
    write_autoregressive(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"num_experts": None}))
    assert load_causal_lm(tmp_path, weights=False)[0].device.type == "meta"


def test_what_is_not_whole_is_refused(tmp_path):
    """Transformers fills what is missing with noise and only reports it."""
    write_autoregressive(tmp_path / "ar", tied=False)
    tensors = write_checkpoint(tmp_path / "sdar", "sdar").tensors
    norm = tensors.pop("model.norm.weight")
    write_weights(tmp_path / "ar", tensors)
    with pytest.raises(ForkLeftError, match=r"are not those of its configuration; missing: model.norm.weight"):
        load_causal_lm(tmp_path / "ar")
    write_weights(tmp_path / "ar", tensors | {"model.norm.weight": norm, "model.extra": norm.clone()})
    with pytest.raises(ForkLeftError, match=r"unexpected: model.extra"):
        load_causal_lm(tmp_path / "ar")


def test_bad_input(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    write_autoregressive(tmp_path / "ar")
    trap = tmp_path / "sprung"
    code = write_checkpoint(tmp_path / "sdar", "sdar").folder
    for path in code.glob("*.py"):
        path.write_text(f"open({str(trap)!r}, 'w').close()\n")
    with pytest.raises(ForkLeftError, match="cannot be loaded"):
        load_causal_lm(code)
    assert not trap.exists()
    with pytest.raises(ForkLeftError, match="cannot be loaded"):
        load_causal_lm(tmp_path / "absent")
    (tmp_path / "ar" / "model.safetensors").rename(tmp_path / "ar" / "pytorch_model.bin")
    with pytest.raises(ForkLeftError, match=r"pytorch_model.bin: pickles"):
        load_causal_lm(tmp_path / "ar")
    (tmp_path / "ar" / "pytorch_model.bin").rename(tmp_path / "ar" / "model.gguf")
    with pytest.raises(ForkLeftError, match=r"name the file to use: --gguf-file model.gguf .* teacher_gguf_file"):
        load_causal_lm(tmp_path / "ar")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ForkLeftError, match="cannot be loaded"):
        load_causal_lm(tmp_path / "a.gguf")


def test_a_repository_with_pickles_only_is_refused_by_name(monkeypatch):
    asked = []

    def from_pretrained(source, **settings):
        asked.append((source, settings.get("revision"), settings["use_safetensors"]))
        raise OSError("no file named model.safetensors")

    def list_repo_files(name, revision):
        asked.append((name, revision))
        return ["config.json", "pytorch_model.bin"]

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", from_pretrained)
    monkeypatch.setattr("huggingface_hub.list_repo_files", list_repo_files)
    with pytest.raises(ForkLeftError, match=r"owner/name has its weights in pytorch_model.bin: pickles"):
        load_causal_lm("owner/name@v1")
    assert asked == [("owner/name", "v1", True), ("owner/name", "v1")]
