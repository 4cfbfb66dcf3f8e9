"""A teacher on a real vLLM server. The other tests of `teacher/remote.py` use a stand-in that answers like it."""

import json
import threading

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from vllm_server import VllmServer

from forkleft.cli import main
from forkleft.lab.questions import held_out
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.prompts import prompt_ids
from forkleft.teacher import StateServer

# Sums of float32, in another order: each rounds by 6e-8, and errors of thousands of them add up like a random walk. The
# next coarser mistake would be a precision of 16 bits somewhere, which differs by 1e-2.
ROUNDING = 1e-4


def write_teacher(folder):
    """A small Qwen3 that has learned a little of the lab's language, with heads of a size that vLLM knows."""
    tokenizer = build_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for question in held_out("chain-3", 100):
        prompt = prompt_ids(tokenizer, [{"role": "user", "content": question.prompt}])
        ids_BT = torch.tensor([[*prompt, *tokenizer.encode(question.solution), tokenizer.eos_token_id]])
        model(input_ids=ids_BT, labels=ids_BT).loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    for saved in (model.eval(), tokenizer):
        saved.save_pretrained(folder)


@pytest.fixture
def vllm(tmp_path):
    """The server, which is starting."""
    write_teacher(tmp_path / "teacher")
    server = VllmServer(tmp_path / "teacher", tmp_path / "vllm.log")
    server.start()
    try:
        yield server
    finally:
        server.kill()


def losses_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [[row[name] for name in ("loss", "kl", "teacher_entropy", "grad_norm")] for row in rows if "loss" in row]


@pytest.mark.slow
def test_training_with_a_server_equals_training_with_the_model_in_memory(tmp_path, vllm, monkeypatch, capsys):
    """Also if the server is killed in the middle of an update, and started again."""
    recipe = tmp_path / "recipe.yaml"
    # Plain gradient descent: the first steps of Adam turn the rounding of a gradient near 0 into a whole step.
    recipe.write_text(
        f"student: lab:student-block\nteacher: {tmp_path}/teacher\nteacher_dtype: float32\ntrain_data: lab:train\n"
        "train_questions: 12\nquestions_per_update: 4\nper_device_train_batch_size: 2\nmax_steps: 3\npasses: 8\n"
        "max_new_tokens: 48\nteacher_max_new_tokens: 48\nrho: 0.5\nverifier: lab\nsupervision: opd\n"
        'prompt_template: "{question}"\noptim: sgd\nlearning_rate: 0.01\nsave_strategy: "no"\nshowcase_questions: 0\n'
        f"use_cpu: true\ndataloader_pin_memory: false\nseed: 1\nanswer_cache: {tmp_path}/answers.jsonl\n"
        f"output_dir: {tmp_path}/run\n"
    )

    def run(command, name, *words):
        assert main([command, "--config", str(recipe), "--output_dir", str(tmp_path / name), *words]) == 0
        return capsys.readouterr().out

    run("train", "local")
    remote = ["--teacher_url", vllm.url, "--teacher_model", "teacher"]
    run("answer", "remote", *remote)
    vllm.wait()
    run("train", "remote", *remote)

    asked, states = [], StateServer.states

    def interrupted(server, ids, *others):
        asked.append(ids)
        if len(asked) == 4 + 8 + 6:
            # There are four texts for the first look, which each of the updates repeats before it reads four responses.
            # Half of the responses of the second update have been read.
            vllm.kill()
            threading.Timer(3, vllm.start).start()
        return states(server, ids, *others)

    monkeypatch.setattr(StateServer, "states", interrupted)
    run("train", "interrupted", *remote, "--teacher_concurrency", "1", "--teacher_attempts", "60")
    # It was asked again, and looked at once more.
    assert len(asked) > 4 + 3 * 8 + 4

    expected = losses_of(tmp_path / "local")
    assert len(expected) == 3
    for name in ("remote", "interrupted"):
        for row, other in zip(losses_of(tmp_path / name), expected, strict=True):
            assert row == pytest.approx(other, rel=ROUNDING)
