"""Devices: how much they hold, and how fast they are on paper."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from forkleft.errors import ForkLeftError, did_you_mean

GB = 1e9


@dataclass(frozen=True)
class Device:
    """A GPU. memory: bytes. flops: a second, in bfloat16, dense. bandwidth: bytes a second from its memory; link: bytes
    a second that it sends to the other GPUs of its node; network: to those of other nodes.

    The shares say how much of these figures a run reaches, and are our assumptions: `compute` of the FLOPs in large
    matrix products, `streaming` of bandwidth, link and network; `usable` is the share of the memory that is left beside
    the CUDA context and what fragmentation wastes. launch: seconds that Python takes to start the kernels of one layer
    in one forward, which is what small forwards wait for.
    """

    name: str
    memory: float
    flops: float
    bandwidth: float
    link: float
    network: float = 50 * GB
    compute: float = 0.4
    streaming: float = 0.7
    usable: float = 0.92
    launch: float = 0.4e-3


# Peak figures from the makers' data sheets: dense bfloat16 with float32 sums, memory bandwidth, and one direction of
# NVLink or, where there is none, PCIe 4.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        Device("rtx4090", 24 * GB, 165e12, 1008 * GB, 32 * GB),
        Device("a100-40gb", 40 * GB, 312e12, 1555 * GB, 300 * GB),
        Device("l40s", 48 * GB, 362e12, 864 * GB, 32 * GB),
        Device("a100", 80 * GB, 312e12, 2039 * GB, 300 * GB),
        Device("h100", 80 * GB, 989e12, 3350 * GB, 450 * GB),
        Device("h200", 141 * GB, 989e12, 4800 * GB, 450 * GB),
    )
}


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal GPUs."""

    device: Device
    per_node: int
    nodes: int = 1

    @property
    def count(self) -> int:
        """All GPUs."""
        return self.per_node * self.nodes

    @property
    def link(self) -> float:
        """Bytes a second of the slowest way between two GPUs."""
        return self.device.link if self.nodes == 1 else min(self.device.link, self.device.network)

    def __str__(self) -> str:
        nodes = "" if self.nodes == 1 else f"{self.nodes} nodes of "
        return f"{nodes}{self.per_node} x {self.device.name}, {self.device.memory / GB:.0f} GB"


def parse_gpus(text: str) -> Cluster:
    """`8x80GB`, `8xh100`, `2x8xh100` (nodes, GPUs of each, kind). Raises ForkLeftError for anything else.

    A kind that is a size is the slowest device of that size that we know, or, for another size, the figures of the
    next larger one.
    """
    *counts, kind = text.lower().split("x") if "x" in text.lower() else [""]
    # `rtx4090` has the letter, too.
    if len(counts) > 1 and counts[-1].endswith("rt"):
        counts, kind = [*counts[:-1], *filter(None, [counts[-1][:-2]])], f"rtx{kind}"
    if not 1 <= len(counts) <= 2 or not all(count.isdecimal() and int(count) for count in counts):
        raise ForkLeftError(f"expected GPUs as 8x80GB, 8xh100 or 2x8xh100 (nodes, GPUs of each, kind), found {text!r}")
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*g(?:i?b)?", kind)
    if kind not in DEVICES and (size is None or not float(size[1])):
        known = ", ".join(DEVICES)
        raise ForkLeftError(
            f"unknown GPU {kind!r}: expected a size such as 80GB, or one of {known}{did_you_mean(kind, DEVICES)}"
        )
    device = DEVICES[kind] if size is None else _of_size(float(size[1]))
    *nodes, per_node = map(int, counts)
    return Cluster(device, per_node, *nodes)


def _of_size(size: float) -> Device:
    by_size = sorted(DEVICES.values(), key=lambda device: (device.memory, device.flops))
    alike = next((device for device in by_size if device.memory >= size * GB), by_size[-1])
    return alike if alike.memory == size * GB else replace(alike, name=f"{alike.name}-like", memory=size * GB)
