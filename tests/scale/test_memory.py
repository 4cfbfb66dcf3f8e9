"""Bytes by formula against the bytes that PyTorch really holds, counted operation by operation."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scales import BLOCKS, GOLD, Updates
from tiny import STOP, tiny_model

from benchmarks.memory import LiveBytes
from forkleft.objective.routes import Route
from forkleft.rollout.orders import _summarise
from forkleft.scale.devices import Cluster, parse_gpus
from forkleft.scale.memory import memory_of, passing, rollout_memory, update_memory
from forkleft.scale.shapes import shape_of
from forkleft.students import Family
from forkleft.teacher import Teacher

WITHIN = 0.15
# Large enough for activations to be far above everything small.
SIZES = {"hidden_size": 96, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2}
OF_QWEN3 = {"head_dim": 24}
OF_EXPERTS = OF_QWEN3 | {"moe_intermediate_size": 64}
LENGTH = 64


def computed(setting, precision, checkpointing):
    """The setting in which the student computes like this; FSDP2 gathers its weights in bfloat16."""
    bf16, sharded = precision != "float32", precision == "bfloat16"
    return replace(setting, bf16=bf16, sharded=sharded, checkpointing=checkpointing)


def cases(**architectures):
    for architecture, sizes in architectures.items():
        for precision in ("float32", "autocast", "bfloat16"):
            for checkpointing in (False, True):
                # Processors without bfloat16 are slow at it: one model tries it here, with checkpointing.
                usual = precision == "float32" or (architecture == "qwen3" and checkpointing)
                marks = [] if usual else [pytest.mark.slow]
                yield pytest.param(architecture, sizes, precision, checkpointing, marks=marks)


def assert_held(architecture, sizes, precision, checkpointing, rank=None):
    """A second micro-batch, with the gradients of the first: all questions on GOLD, which reads most."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    updates = Updates(architecture, routes=GOLD, length=LENGTH, questions=2, dtype=dtype, **SIZES | sizes)
    model = updates.student.model.train()
    if architecture == "qwen3_moe":
        model.set_experts_implementation("grouped_mm")
    if rank is not None:
        # Of the precision of the model, as FSDP2 gathers both.
        config = LoraConfig(r=rank, target_modules="all-linear", exclude_modules=["lm_head"])
        get_peft_model(model, config, autocast_adapter_dtype=False)
    if checkpointing:
        model.gradient_checkpointing_enable()
    lessons = updates.lessons([[1] * LENGTH] * 2)
    for _ in range(2):
        gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
        with LiveBytes(*model.parameters(), *model.buffers(), *gradients) as live:
            with torch.autocast("cpu", torch.bfloat16) if precision == "autocast" else nullcontext():
                loss = updates.read(lessons)
            loss.backward()
    setting = replace(computed(updates.setting, precision, checkpointing), adapter_rank=rank)
    parts = update_memory(setting)
    expected = parts["activations"] + parts["head"] + parts["experts with adapters"]
    if precision == "autocast":
        expected += parts["copies of weights"]
    assert expected == pytest.approx(live.peak, rel=WITHIN)


@pytest.mark.parametrize(
    ("architecture", "sizes", "precision", "checkpointing"),
    [*cases(qwen3=OF_QWEN3, qwen2={}, qwen3_moe=OF_EXPERTS)],
)
def test_an_update_holds_what_the_formula_says(architecture, sizes, precision, checkpointing):
    assert_held(architecture, sizes, precision, checkpointing)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_many_experts_have_gradients_before_they_are_added_up(checkpointing):
    assert_held("qwen3_moe", OF_EXPERTS | {"num_experts": 64}, "float32", checkpointing)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "sizes", "precision", "checkpointing"),
    [
        *cases(qwen3=OF_QWEN3, qwen3_moe=OF_EXPERTS | {"num_experts": 8}),
        # Most of what there is are sums of experts and their adapters.
        *cases(qwen3_moe=OF_EXPERTS | {"num_experts": 64}),
    ],
)
def test_an_update_of_adapters_holds_what_the_formula_says(architecture, sizes, precision, checkpointing):
    assert_held(architecture, sizes, precision, checkpointing, rank=4)


def test_the_head_of_a_large_vocabulary_is_counted():
    """Few tokens and many words: the tables of the head and its gradient are most of what there is."""
    updates = Updates(routes=GOLD, length=16, prompt=4, questions=1, vocab_size=40_000)
    model = updates.student.model.train()
    lessons = updates.lessons([[1] * 16])
    updates.read(lessons).backward()
    gradients = [weight.grad for weight in model.parameters()]
    with LiveBytes(*model.parameters(), *model.buffers(), *gradients) as live:
        updates.read(lessons).backward()
    parts = update_memory(updates.setting)
    assert parts["head"] > 5 * parts["activations"]
    # Another table for the gradient of the tied embedding comes later, when the activations are gone.
    assert parts["activations"] + parts["head"] == pytest.approx(live.peak, rel=WITHIN)


@pytest.mark.parametrize("family", [BLOCKS, Family("block", 8, "absolute", "shifted")], ids=["same", "shifted"])
def test_a_rollout_holds_keys_values_and_one_forward(family):
    sizes = SIZES | OF_QWEN3 | {"num_key_value_heads": 4}
    updates = Updates(length=128, questions=8, family=family, **sizes)
    model = updates.student.model
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        updates.write()
    parts = rollout_memory(updates.setting)
    # A CPU computes its logits a few rows at a time: not more than one table of them.
    words, rows = updates.setting.student.words, updates.setting.written * family.block_size
    expected = parts["keys and values"] + parts["activations"] + 4 * words * rows
    assert expected == pytest.approx(live.peak, rel=WITHIN)


def test_a_rollout_adds_the_adapters_of_one_layer_at_a_time_to_its_experts():
    updates = Updates("qwen3_moe", length=64, questions=2, **SIZES | OF_EXPERTS | {"num_experts": 64})
    model = updates.student.model
    model.set_experts_implementation("grouped_mm")
    get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", exclude_modules=["lm_head"]))
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        updates.write()
    parts = rollout_memory(replace(updates.setting, adapter_rank=4))
    assert parts["experts with adapters"] > sum(parts.values()) / 2
    assert sum(parts.values()) == pytest.approx(live.peak, rel=WITHIN)


def test_the_logits_of_a_pass_on_a_gpu_which_takes_all_rows_at_once():
    logits_UV = torch.randn(64, 1000)
    with LiveBytes(logits_UV) as live:
        _summarise(logits_UV)
    # Beside the logits themselves, which a GPU makes from the product in bfloat16.
    setting = Updates().setting
    tables = rollout_memory(replace(setting, bf16=True))["logits"] / (setting.written * 8 * setting.student.words)
    assert 2 + 4 + 4 * live.peak / logits_UV.nbytes == pytest.approx(tables, rel=WITHIN)


@pytest.mark.parametrize(("architecture", "sizes"), [("qwen2", {}), ("qwen3", OF_QWEN3), ("qwen3_moe", OF_EXPERTS)])
def test_the_teacher_holds_one_layer_at_a_time(architecture, sizes):
    model = tiny_model(architecture, seed=9, max_position_embeddings=512, **SIZES | sizes)
    if architecture == "qwen3_moe":
        model.set_experts_implementation("grouped_mm")
    updates = Updates(routes={Route.LEFTOPD: 1.0}, length=LENGTH)
    updates.teacher = Teacher(model, None, stop_ids=[STOP])
    updates.teacher.hidden([])
    lessons = updates.lessons([[1] * LENGTH] * 4)
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        updates.ask(lessons)
    tokens = sum(len(lesson.prompt) + max(lesson.selected) for lesson in lessons)
    assert tokens * passing(shape_of("teacher", model), 4) == pytest.approx(live.peak, rel=WITHIN)


def test_what_stays_is_weights_gradients_and_two_moments():
    updates = Updates(routes=GOLD)
    model, setting = updates.student.model, updates.setting
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    with LiveBytes(*model.parameters(), *model.buffers()) as live:
        updates.read(updates.lessons([[1] * 64] * 4)).backward()
        optimiser.step()
    weights = sum(weight.nbytes for weight in model.parameters())
    lasting = memory_of(setting).lasting
    assert lasting["student"] == weights
    assert lasting["gradients"] + lasting["optimiser"] == pytest.approx(live.alive, rel=0.01)


def test_processes_divide_the_student_and_share_teachers():
    one = Updates().setting
    eight = replace(one, processes=8, questions=8, cluster=parse_gpus("8x80GB"))
    weights, teacher = 4 * one.student.weights, 4 * one.teacher.weights
    assert memory_of(eight).lasting == {
        "student": weights,
        "gradients": weights,
        "buckets": weights,
        "optimiser": 2 * weights,
        "teacher": teacher,
    }
    sharded = memory_of(replace(eight, sharded=True)).lasting
    assert (sharded["student"], sharded["gradients"], sharded["optimiser"]) == (weights / 8, weights / 8, weights / 4)
    assert sharded["buckets"] == 0
    spread = replace(eight, spread=True, processes=4)
    assert memory_of(spread).lasting["teacher"] == teacher / 2
    # Two nodes of 8 GPUs with 4 processes on each.
    two_nodes = replace(spread, processes=8, cluster=Cluster(one.cluster.device, 8, 2))
    assert memory_of(two_nodes).lasting["teacher"] == teacher / 2
    served = memory_of(replace(eight, processes=4, server_gpus=2))
    assert served.lasting["teacher's head"] == 4 * one.teacher.words * one.teacher.width
    assert "teacher" not in served.lasting and "teacher" not in served.phases


def test_adapters_have_gradients_and_moments_of_their_own_alone():
    setting = Updates().setting
    lasting = memory_of(replace(setting, adapter_rank=2)).lasting
    adapters = 2 * setting.student.pairs
    assert lasting["student"] == 4 * (setting.student.weights + adapters)
    assert (lasting["gradients"], lasting["optimiser"]) == (4 * adapters, 8 * adapters)
