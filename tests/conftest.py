import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def two_threads():
    """The suite is sized for two cores; more threads only fight over tiny tensors."""
    torch.set_num_threads(2)


@pytest.fixture(autouse=True)
def own_verifier(monkeypatch):
    """Runs with scripted verdicts (`trainer_runs.py`) give the trainer another verifier; the next test has its own."""
    from forkleft import collection

    monkeypatch.setattr(collection, "verify_batch", collection.verify_batch)
