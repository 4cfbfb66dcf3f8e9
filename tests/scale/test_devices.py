import pytest

from forkleft.errors import ForkLeftError
from forkleft.scale.devices import DEVICES, GB, parse_gpus


@pytest.mark.parametrize(
    ("text", "name", "memory", "per_node", "nodes"),
    [
        ("8x80GB", "a100", 80, 8, 1),
        ("8x80gb", "a100", 80, 8, 1),
        ("4xH100", "h100", 80, 4, 1),
        ("2x8xh100", "h100", 80, 8, 2),
        ("1xrtx4090", "rtx4090", 24, 1, 1),
        ("2x4xrtx4090", "rtx4090", 24, 4, 2),
        ("2x64GB", "a100-like", 64, 2, 1),
        ("1x192GiB", "h200-like", 192, 1, 1),
    ],
)
def test_gpus_are_read(text, name, memory, per_node, nodes):
    cluster = parse_gpus(text)
    assert (cluster.device.name, cluster.device.memory) == (name, memory * GB)
    assert (cluster.per_node, cluster.nodes, cluster.count) == (per_node, nodes, per_node * nodes)


@pytest.mark.parametrize("text", ["", "8", "80GB", "0x80GB", "8x", "x80GB", "1x2x3x80GB", "-1x80GB", "8x0GB"])
def test_what_is_no_number_of_gpus_is_refused(text):
    with pytest.raises(ForkLeftError, match=r"expected GPUs as 8x80GB|expected a size such as 80GB"):
        parse_gpus(text)


def test_an_unknown_gpu_gets_the_nearest_name():
    with pytest.raises(ForkLeftError, match=r"unknown GPU 'h10'.*did you mean h100"):
        parse_gpus("8xh10")


def test_nodes_are_slower_to_reach_than_neighbours():
    assert parse_gpus("8xh100").link == DEVICES["h100"].link
    assert parse_gpus("2x8xh100").link == DEVICES["h100"].network
    assert str(parse_gpus("2x8xh100")) == "2 nodes of 8 x h100, 80 GB"
