import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def two_threads():
    """The suite is sized for two cores; more threads only fight over tiny tensors."""
    torch.set_num_threads(2)
