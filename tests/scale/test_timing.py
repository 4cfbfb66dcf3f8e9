from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scales import GOLD, MIXED, Updates
from skips import slow
from torch.utils.flop_counter import FlopCounterMode

from forkleft.scale.devices import Cluster, parse_gpus
from forkleft.scale.timing import expected_work, flops_of, time_of

WITHIN = 0.15


def product_in_place(_, left, right, **others):
    """FLOPs of `table.addmm_(left, right)`, which PyTorch's count does not know."""
    return 2 * left[0] * left[1] * right[1]


def counted_flops(updates):
    """PyTorch's own count of the matrix products of an update, by phase. On a CPU it leaves out attention."""
    found = {}

    def measured(phase, call):
        with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: product_in_place}) as counter:
            result = call()
        found[phase] = counter.get_total_flops()
        return result

    updates.run(measured)
    return found


@pytest.mark.parametrize(
    ("architecture", "routes", "change"),
    [
        slow("qwen3", GOLD, {}),
        ("qwen3", MIXED, {"checkpointing": True}),
        slow("qwen3", MIXED, {"adapter_rank": 4}),
        slow("qwen2", MIXED, {}),
        ("qwen3_moe", MIXED, {}),
        slow("qwen3_moe", MIXED, {"adapter_rank": 4}),
        slow("qwen3_moe", MIXED, {"adapter_rank": 4, "checkpointing": True}),
    ],
)
def test_flops_are_those_that_an_update_computes(architecture, routes, change):
    sizes = {"hidden_size": 64, "intermediate_size": 128}
    if "adapter_rank" in change:
        # The first layer needs no gradients of its inputs then. Of few layers that is much.
        sizes["num_hidden_layers"] = 4
    if architecture == "qwen3_moe":
        sizes["num_experts"] = 16
    updates = Updates(architecture, routes=routes, questions=2, **sizes)
    updates.setting = setting = replace(updates.setting, **change)
    model = updates.student.model.train()
    if setting.checkpointing:
        model.gradient_checkpointing_enable()
    if setting.adapter_rank is not None:
        rank = setting.adapter_rank
        get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear", exclude_modules=["lm_head"]))
    counted = counted_flops(updates)
    # Without attention, as PyTorch counts; `test_work.py` compares its pairs one by one.
    student, teacher = (replace(shape, queries=0) for shape in (setting.student, setting.teacher))
    expected = vars(flops_of(replace(setting, student=student, teacher=teacher)))
    assert counted.keys() == expected.keys()
    # No question is taught on GOLD.
    for phase in counted if routes is MIXED else counted.keys() - {"teacher"}:
        assert expected[phase] == pytest.approx(counted[phase], rel=WITHIN), phase


def test_attention_has_two_products_forward_and_five_backward():
    setting = replace(Updates(routes=GOLD).setting, routes=GOLD)
    live, probed, _ = expected_work(setting)
    done, without = flops_of(setting), flops_of(replace(setting, student=replace(setting.student, queries=0)))
    pair = 2 * setting.student.layers * setting.student.queries * setting.share
    assert done.readout - without.readout == pytest.approx(2 * pair * (live.pairs + probed.pairs))
    assert done.backward - without.backward == pytest.approx(5 * pair * live.pairs)


def test_a_small_forward_waits_for_python_and_a_large_one_for_the_device():
    updates = Updates(questions=4)
    device = replace(updates.setting.cluster.device, launch=1.0)
    slow = replace(updates.setting, cluster=Cluster(device, 1))
    phases = time_of(slow).phases
    layers, blocks = slow.student.layers, 64 // 8
    assert phases["rollout"] == blocks * slow.passes * layers
    assert phases["readout"] == 2 * layers
    fast = replace(updates.setting, cluster=Cluster(replace(device, launch=0.0, flops=1e6, compute=1.0), 1))
    done = flops_of(fast)
    assert time_of(fast).phases["readout"] == done.readout / 1e6
    assert time_of(fast).phases["backward"] == done.backward / 1e6
    starved = replace(updates.setting, cluster=Cluster(replace(device, launch=0.0, bandwidth=1.0, streaming=1.0), 1))
    # AdamW moves 36 bytes of each weight.
    assert time_of(starved).phases["optimiser"] == 36 * starved.trained


def test_a_rollout_reads_all_experts_and_adds_their_adapters_in_every_forward():
    setting = Updates("qwen3_moe", questions=4).setting
    device = replace(setting.cluster.device, launch=0.0, bandwidth=1.0, streaming=1.0)
    starved, student = replace(setting, cluster=Cluster(device, 1)), setting.student
    forwards = 64 // 8 * setting.passes
    before = time_of(starved).phases["rollout"]
    assert before > forwards * 4 * (student.layers * student.layer + student.head)
    after = time_of(replace(starved, adapter_rank=2)).phases["rollout"]
    # Read and written, twice.
    assert after - before == pytest.approx(forwards * 4 * 4 * student.folded)


def test_what_processes_send():
    setting = replace(Updates().setting, processes=4, cluster=parse_gpus("4xh100"))
    link = setting.cluster.link * setting.cluster.device.streaming
    weights = setting.student.weights
    assert time_of(setting).phases["sending"] == pytest.approx(2 * 3 / 4 * 4 * weights / link)
    # The rollout, readout, probe and backward gather the weights, and the gradients are divided.
    sharded = replace(setting, sharded=True)
    assert time_of(sharded).phases["sending"] == pytest.approx(3 / 4 * 4 * (4 + 1) * weights / link)
    assert time_of(replace(setting, processes=1)).phases["sending"] == 0


def test_a_run_is_its_updates_and_the_answers_before_it():
    setting = replace(Updates().setting, updates=10)
    time = time_of(setting)
    assert time.days == pytest.approx(time.update * 10 / 86400)
    assert time.device_hours == pytest.approx((time.update * 10 + time.answers) / 3600)
    # Each of 40 questions is answered once, 4 at a time, a token in a forward that waits for Python.
    assert time.answers == pytest.approx(10 * 64 * setting.teacher.layers * setting.cluster.device.launch)
