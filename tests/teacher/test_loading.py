import json
import logging

import pytest
import torch
from checkpoints_on_disk import END, TURN_END, write_autoregressive, write_checkpoint
from exact import assert_exact
from tiny import FAMILIES, tiny_student

from forkleft.errors import DiffusionError, ForkLeftError
from forkleft.prompts import Reading
from forkleft.students import convert, load_student
from forkleft.teacher.loading import load_teacher

QUESTION = [{"role": "user", "content": "1+1"}]


def test_a_teacher_from_a_folder(tmp_path):
    stock = write_autoregressive(tmp_path)
    teacher = load_teacher(tmp_path, batch_size=3, dtype=torch.float64)
    assert teacher.stop_ids == (TURN_END, END) and teacher.batch_size == 3
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    ids = torch.tensor([[5, 6, 7]])
    assert_exact(teacher.model(ids).logits, stock.double()(ids).logits)
    assert load_teacher(tmp_path, dtype=torch.bfloat16, device="cpu").model.dtype is torch.bfloat16
    assert len(teacher.answers([QUESTION], max_new_tokens=4)) == 1


def test_what_student_and_teacher_share_is_told(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="forkleft")
    write_autoregressive(tmp_path / "ar")
    student = load_student(write_checkpoint(tmp_path / "sdar", "sdar").folder)
    teacher = load_teacher(tmp_path / "ar", student=student)
    assert teacher.stop_ids == (TURN_END, END)
    assert caplog.messages[-1] == (
        "student and teacher share 282 token ids; tokens of only one of them: '<|MASK|>'; "
        "answers end at '<|im_end|>' (258), '<|endoftext|>' (256)"
    )


def test_a_diffusion_model_does_not_teach(tmp_path):
    write_autoregressive(tmp_path / "ar")
    convert(tmp_path / "ar", tmp_path / "converted", family="bd3lm")
    for folder in (write_checkpoint(tmp_path / "sdar", "sdar").folder, tmp_path / "converted", "lab:student-block"):
        with pytest.raises(DiffusionError, match="is a diffusion model, which does not write from left to right: exp"):
            load_teacher(folder)


def test_answers_end_at_the_stop_ids_of_both(tmp_path):
    write_autoregressive(tmp_path / "ar")
    (tmp_path / "ar" / "generation_config.json").unlink()
    path = tmp_path / "ar" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": TURN_END}))
    student = load_student(write_checkpoint(tmp_path / "sdar", "sdar").folder)
    assert load_teacher(tmp_path / "ar").stop_ids == (TURN_END,)
    assert load_teacher(tmp_path / "ar", student=student).stop_ids == (TURN_END, END)


def test_another_tokenizer_is_an_error(tmp_path):
    write_autoregressive(tmp_path / "ar")
    path = tmp_path / "ar" / "tokenizer.json"
    tokens = json.loads(path.read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]
    path.write_text(json.dumps(tokens))
    student = load_student(write_checkpoint(tmp_path / "sdar", "sdar").folder)
    with pytest.raises(ForkLeftError, match="must share a tokenizer, but 2 ordinary tokens differ"):
        load_teacher(tmp_path / "ar", student=student)
    with pytest.raises(ForkLeftError, match="the student has no tokenizer to compare with"):
        load_teacher(tmp_path / "ar", student=tiny_student(FAMILIES[0]))


def test_student_and_teacher_end_where_the_same_files_say(tmp_path):
    """The template's end of a turn first, and a generation configuration without ends does not hide the model's."""
    write_autoregressive(tmp_path / "ar")
    (tmp_path / "ar" / "generation_config.json").write_text('{"temperature": 0.6}')
    for file, changes in (
        ("config.json", {"eos_token_id": 300}),
        ("tokenizer_config.json", {"eos_token": "<|endoftext|>"}),
    ):
        path = tmp_path / "ar" / file
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    convert(tmp_path / "ar", tmp_path / "student", family="bd3lm")
    student = load_student(tmp_path / "student")
    assert student.vocabulary.stop_ids == load_teacher(tmp_path / "ar").stop_ids == (TURN_END, END, 300)


def test_a_chat_template_can_be_given(tmp_path, monkeypatch):
    write_autoregressive(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": None, "eos_token": "<|endoftext|>"}))
    assert load_teacher(tmp_path).stop_ids == (END,)
    teacher = load_teacher(tmp_path, chat_template="{{ messages[0].content }}<|im_end|>")
    assert teacher.stop_ids == (TURN_END, END) and teacher.identity != load_teacher(tmp_path).identity
    # A file that is not there is said before the weights are read.
    monkeypatch.setattr("forkleft.teacher.loading.load_causal_lm", lambda *given, **said: 1 / 0)
    with pytest.raises(ForkLeftError, match=r"nowhere\.jinja"):
        load_teacher(tmp_path, chat_template="nowhere.jinja")


def test_a_teacher_spread_over_memories_answers_as_a_whole_one(tmp_path):
    """Without several devices: parts on the disk, among them the head, which are fetched when they are called."""
    write_autoregressive(tmp_path, tied=False)
    whole = load_teacher(tmp_path, dtype=torch.float64)
    parts = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu"}
    spread = load_teacher(
        tmp_path,
        device_map=parts | {"model.layers.1": "disk", "lm_head": "disk"},
        offload_folder=tmp_path / "offloaded",
        dtype=torch.float64,
        device="cpu",
    )
    assert spread.head_weight.is_meta
    ours, theirs = (teacher.answers([QUESTION], max_new_tokens=4) for teacher in (spread, whole))
    assert ours == theirs
    asked = [Reading("q", [5, 6], [7, 8, 9], [0, 2])]
    (ours_SE,), (theirs_SE,) = (teacher.hidden(asked) for teacher in (spread, whole))
    assert_exact(ours_SE, theirs_SE)
    assert_exact(spread.head_logits(ours_SE), whole.head_logits(theirs_SE))
