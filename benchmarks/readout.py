"""Packed prefix readouts against one forward for each position, forward and backward.

Qwen3, 4 layers, width 128; prompt 128, response 512, blocks of 32, a quarter of the positions.
"""

import torch

from benchmarks.harness import Result, ratio
from benchmarks.models import plain, random_ids, random_student
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Reading

VOCABULARY, PROMPT, LENGTH, BLOCK, SHARE = 8192, 128, 512, 32, 0.25


def run() -> list[Result]:
    """The readout row of the table."""
    student = random_student(VOCABULARY, BLOCK)
    model, mask_id = plain(student), student.vocabulary.mask_id
    prompt, response = random_ids(1, PROMPT, VOCABULARY)[0], random_ids(1, LENGTH, VOCABULARY)[0]
    chosen = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(0))[: int(SHARE * LENGTH)]
    positions = sorted(chosen.tolist())
    weights = torch.randn(len(positions), 128, generator=torch.Generator().manual_seed(2))

    def packed() -> torch.Tensor:
        student.model.zero_grad()
        hidden = prefix_hidden(student, [Reading("0", prompt, response, positions)], budget=LENGTH)
        (hidden * weights).sum().backward()
        return hidden.detach()

    def one_by_one() -> torch.Tensor:
        model.zero_grad()
        rows = []
        for i, weight in zip(positions, weights, strict=True):
            ids = torch.tensor([[*prompt, *response[:i], mask_id]])
            blocks = ((torch.arange(ids.shape[1]) - PROMPT) // BLOCK).clamp(min=-1)
            seen = (blocks[None, :] <= blocks[:, None])[None, None]
            hidden = model.base_model(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state[0, -1]
            (hidden * weight).sum().backward()
            rows.append(hidden.detach())
        return torch.stack(rows)

    assert (packed() - one_by_one()).abs().max() < 1e-4
    for (name, ours), theirs in zip(student.model.named_parameters(), model.parameters(), strict=True):
        if theirs.grad is not None:
            error = (ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max()
            assert error < 1e-4, f"gradient of {name} differs by {error:.1e}"
    return [ratio("readout: one forward a position / packed", one_by_one, packed, ">= 12")]
