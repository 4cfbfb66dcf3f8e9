"""The plan of a run: whether it fits, how long it takes, and if it does not fit, which nearest settings do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.scale.memory import Memory, memory_of
from forkleft.scale.setting import Setting
from forkleft.scale.timing import Flops, Time, flops_of, time_of

# More changes than this are another run.
_MOST_CHANGES = 3
_ADAPTER_RANK = 16


@dataclass(frozen=True)
class Plan:
    """A setting with what it needs."""

    setting: Setting
    memory: Memory
    flops: Flops
    time: Time

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a run may use."""
        device = self.setting.cluster.device
        return device.memory * device.usable

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU holds it."""
        return self.memory.peak <= self.usable


@dataclass(frozen=True)
class Change:
    """An option that makes a run smaller: how to say it, and the fields of a setting that it changes."""

    says: str
    fields: Mapping[str, Any]


def plan_of(setting: Setting) -> Plan:
    """What a setting needs. Raises ForkLeftError for one that cannot be run at all."""
    if setting.sharded and setting.family.attention == "full":
        raise ForkLeftError("a student with full attention cannot be trained under FSDP; leave fsdp out")
    return Plan(setting, memory_of(setting), flops_of(setting), time_of(setting))


def nearest(setting: Setting) -> list[tuple[list[str], Plan]]:
    """The settings that fit with the fewest changes, each with its changes as options, the fewest device-hours first.

    The teacher stays where it is, in memory or on a server. Adapters are tried only if nothing else helps, since with
    them another thing is learned.
    """
    ways = list(_ways(setting))
    adapters = [Change(f"lora_rank: {_ADAPTER_RANK}", {"adapter_rank": _ADAPTER_RANK})]
    for always in ((), (adapters,)) if setting.adapter_rank is None else ((),):
        for count in range(_MOST_CHANGES + 1 - len(always)):
            tried = (_mildest(setting, (*always, *chosen)) for chosen in combinations(ways, count))
            if found := [fitting for fitting in tried if fitting is not None]:
                return sorted(found, key=lambda pair: pair[1].time.device_hours)
    return []


def _mildest(setting: Setting, ways: tuple[list[Change], ...]) -> tuple[list[str], Plan] | None:
    """The first combination of values that fits; each list begins with the smallest change."""
    device = setting.cluster.device
    for changes in product(*ways):
        changed = setting
        for change in changes:
            changed = replace(changed, **change.fields)
        if changed.divides and memory_of(changed).peak <= device.memory * device.usable:
            return [change.says for change in changes], plan_of(changed)
    return None


def _ways(setting: Setting) -> Iterator[list[Change]]:
    """The options that save memory, each with its values from mild to strong; changes that would do nothing are not."""
    if not setting.checkpointing:
        yield [Change("gradient_checkpointing: true", {"checkpointing": True})]
    if sizes := [size for size in range(setting.batch - 1, 0, -1) if setting.questions % size == 0]:
        yield [Change(f"per_device_train_batch_size: {size}", {"batch": size}) for size in sizes]
    if not setting.sharded and setting.processes > 1 and setting.family.attention == "block":
        yield [Change("fsdp: true", {"sharded": True})]
    if not setting.served:
        if not setting.spread and setting.cluster.per_node > 1:
            yield [Change("teacher_device_map: auto", {"spread": True})]
        # A teacher that is spread is on every GPU once for each process.
        if fewer := [n for n in range(setting.processes - 1, 0, -1) if setting.questions % n == 0]:
            yield [Change(f"{n} process{'es' if n > 1 else ''}", {"processes": n}) for n in fewer]
