import pytest
import torch
from simulated_device import SIM, Simulation


def test_it_computes_and_tells_its_device():
    with Simulation() as simulation:
        x = torch.arange(6.0, device=SIM).view(2, 3).requires_grad_()
        y = (x @ x.T + torch.tensor(1.0)).sum()  # numbers of the CPU may be mixed in
        y.backward()
        assert (x.device, y.device, x.grad.device, x.clone().device.type) == (SIM, SIM, SIM, "sim")
        assert y.tolist() == (x.held @ x.held.T + 1).sum().item()
        assert torch.equal(x.grad.cpu(), 2 * x.held.sum(0).expand(2, 3))
    assert len(simulation.waits) == 2


@pytest.mark.parametrize(
    "mixing",
    [
        lambda there, here: there + here,
        lambda there, here: torch.cat([there, here]),
        lambda there, here: there.gather(0, here.long()),
        lambda there, here: here[there.long()],
        lambda there, here: there.masked_fill(here > 1, 0.0),
        lambda there, here: there.index_put_((torch.tensor([0, 1, 2]),), here),
        lambda there, here: torch.where(there > 1, there, here),
        lambda there, here: torch.rand(3, generator=torch.Generator(), device=SIM),
    ],
)
def test_it_refuses_to_mix(mixing):
    with Simulation(), pytest.raises(RuntimeError, match=r"same device|is on cpu|device type for generator"):
        mixing(torch.arange(3.0, device=SIM), torch.arange(3.0))


@pytest.mark.parametrize(
    ("waits", "act"),
    [
        (0, lambda x: torch.tensor([1, 2, 3]).to(SIM, non_blocking=True)),
        (0, lambda x: x[torch.arange(2, device=SIM)]),
        (0, lambda x: x[1].copy_(x[0])),
        (0, lambda x: x.__setitem__(slice(0, 2), 5.0)),
        (1, lambda x: torch.tensor([1, 2, 3]).to(SIM)),
        (1, lambda x: torch.tensor([1, 2, 3], device=SIM)),
        (1, lambda x: x + x.new_tensor([1, 2, 3])),
        (1, lambda x: x[torch.arange(2)]),
        (1, lambda x: x[[0, 1]]),
        (1, lambda x: x.__setitem__(slice(0, 2), torch.ones(2))),
        (1, lambda x: x[x > 1]),
        (1, lambda x: x.nonzero()),
        (1, lambda x: x.cpu()),
        (1, lambda x: x.tolist()),
        (1, lambda x: x.sum().item()),
        (1, lambda x: bool((x > 1).all())),
        (1, lambda x: torch.empty(3).copy_(x)),
        (1, lambda x: torch.repeat_interleave(x.long())),
    ],
)
def test_it_counts_waits(waits, act):
    with Simulation() as simulation:
        x = torch.arange(3.0, device=SIM)
        act(x)
    assert len(simulation.waits) == waits, simulation.waits


def test_outside_there_is_no_such_device():
    with Simulation():
        x = torch.arange(3.0, device=SIM)
    with pytest.raises(AssertionError, match="outside of `Simulation`"):
        x + 1
    assert torch.tensor([1]).device.type == "cpu"
