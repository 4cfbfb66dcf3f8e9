from dataclasses import replace

import pytest
from scales import Updates

from forkleft.errors import ForkLeftError
from forkleft.scale.devices import Cluster, parse_gpus
from forkleft.scale.memory import memory_of
from forkleft.scale.plan import nearest, plan_of
from forkleft.students import Family


def with_memory(setting, memory):
    device = replace(setting.cluster.device, memory=memory, usable=1.0)
    return replace(setting, cluster=Cluster(device, setting.cluster.per_node))


def test_a_plan_fits_if_the_fullest_moment_does():
    setting = Updates().setting
    peak = memory_of(setting).peak
    assert plan_of(with_memory(setting, peak)).fits
    assert not plan_of(with_memory(setting, peak * 0.99)).fits


def test_the_nearest_setting_has_the_fewest_changes_and_the_mildest_values():
    setting = replace(Updates(questions=8, length=128).setting, checkpointing=True)
    half = memory_of(replace(setting, batch=4)).peak
    assert memory_of(setting).peak > half > memory_of(replace(setting, batch=2)).peak
    ((changes, plan), *others) = nearest(with_memory(setting, half))
    assert changes == ["per_device_train_batch_size: 4"]
    assert plan.fits and plan.setting.at_once == 4 and plan.setting.questions == 8
    assert not others


def test_every_nearest_setting_fits_and_none_does_with_fewer_changes():
    setting = replace(Updates(questions=8).setting, processes=2, cluster=parse_gpus("2x80GB"))
    small = memory_of(replace(setting, checkpointing=True, batch=1, sharded=True)).peak
    found = nearest(with_memory(setting, small * 1.1))
    assert len({len(changes) for changes, _ in found}) == 1
    for changes, plan in found:
        assert plan.fits, changes
        assert not any(change.startswith("lora") for change in changes)


def test_no_batch_is_named_that_training_would_refuse():
    """Of 12 questions in each of two processes: 8 divides the questions of an update, but not those of a process."""
    setting = replace(Updates(questions=24).setting, processes=2, batch=16, cluster=parse_gpus("2x80GB"))
    setting = replace(setting, checkpointing=True, sharded=True, spread=True)
    assert setting.divides and not replace(setting, batch=8).divides
    small = with_memory(setting, memory_of(replace(setting, batch=8)).peak)
    found = [changes for changes, _ in nearest(replace(small, cluster=replace(small.cluster, per_node=2)))]
    assert ["per_device_train_batch_size: 6"] in found


def test_adapters_come_last_and_then_nothing_does():
    setting = Updates(questions=1).setting
    setting = replace(setting, student=replace(setting.student, weights=1_000_000))
    least = replace(setting, checkpointing=True)
    adapters = memory_of(replace(least, adapter_rank=16)).peak
    assert adapters < memory_of(least).peak
    ((changes, _),) = nearest(with_memory(setting, adapters))
    assert changes == ["lora_rank: 16", "gradient_checkpointing: true"]
    assert nearest(with_memory(setting, 1000.0)) == []


def test_full_attention_is_not_sharded():
    setting = replace(Updates().setting, family=Family("full", 8), sharded=True)
    with pytest.raises(ForkLeftError, match="full attention cannot be trained under FSDP"):
        plan_of(setting)
