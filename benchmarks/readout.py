"""Packed prefix readouts, forward and backward: against one forward for each position, and against their products.

Qwen3, 4 layers, width 128; prompt 128, response 512, blocks of 32, a quarter of the positions. Against the products
also at width 512.
"""

from collections.abc import Callable

import torch

from benchmarks.harness import Result, ratio
from benchmarks.models import plain, random_ids, random_student
from benchmarks.products import products_row
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Reading
from forkleft.students import Student

VOCABULARY, PROMPT, LENGTH, BLOCK, SHARE = 8192, 128, 512, 32, 0.25
GOALS = {128: "<= 2.2", 512: "<= 1.35"}


def run() -> list[Result]:
    """The readout rows of the table."""
    results = [_against_one_by_one()]
    for width, goal in GOALS.items():
        packed = _packed(random_student(VOCABULARY, BLOCK, width=width), width)
        results.append(products_row(f"readout: width {width}, packed / its matrix products", packed, goal))
    return results


def _reading() -> Reading:
    prompt, response = random_ids(1, PROMPT, VOCABULARY)[0], random_ids(1, LENGTH, VOCABULARY)[0]
    chosen = torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(0))[: int(SHARE * LENGTH)]
    return Reading("0", prompt, response, sorted(chosen.tolist()))


def _weights(rows: int, width: int) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(2))


def _packed(student: Student, width: int) -> Callable[[], torch.Tensor]:
    reading = _reading()
    weights = _weights(len(reading.positions), width)

    def packed() -> torch.Tensor:
        student.model.zero_grad()
        hidden = prefix_hidden(student, [reading], budget=LENGTH)
        (hidden * weights).sum().backward()
        return hidden.detach()

    return packed


def _against_one_by_one() -> Result:
    student = random_student(VOCABULARY, BLOCK)
    model, mask_id = plain(student), student.vocabulary.mask_id
    packed, reading = _packed(student, 128), _reading()
    weights = _weights(len(reading.positions), 128)

    def one_by_one() -> torch.Tensor:
        model.zero_grad()
        rows = []
        for i, weight in zip(reading.positions, weights, strict=True):
            ids = torch.tensor([[*reading.prompt, *reading.response[:i], mask_id]])
            blocks = ((torch.arange(ids.shape[1]) - PROMPT) // BLOCK).clamp(min=-1)
            seen = (blocks[None, :] <= blocks[:, None])[None, None]
            hidden = model.base_model(input_ids=ids, attention_mask=seen, use_cache=False).last_hidden_state[0, -1]
            (hidden * weight).sum().backward()
            rows.append(hidden.detach())
        return torch.stack(rows)

    def same(plain_hidden: torch.Tensor, hidden: torch.Tensor) -> None:
        assert (hidden - plain_hidden).abs().max() < 1e-4
        for (name, ours), theirs in zip(student.model.named_parameters(), model.parameters(), strict=True):
            if theirs.grad is not None:
                error = (ours.grad - theirs.grad).abs().max() / theirs.grad.abs().max()
                assert error < 1e-4, f"gradient of {name} differs by {error:.1e}"

    return ratio("readout: one forward a position / packed", one_by_one, packed, ">= 14", check=same)
