"""The end of a teacher: its output head and its final norm, read out of a checkpoint without the rest.

The hidden states that a server gives come out of the final norm and go into the head. The head turns them into the
teacher's distribution; the norm shows whether they are what they should be.

Shapes: S rows, E the teacher's width, V the rows of its head.
"""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from forkleft.students.shards import find_tensors, fingerprint_of_file, partial_folder, read_tensors

# By so much the size of a normalised row may be off: rounding to bfloat16 is far below it.
_NORM_TOLERANCE = 0.02


@dataclass(frozen=True)
class FinalNorm:
    """What the last norm of a model multiplies by, and adds."""

    scale_E: torch.Tensor
    shift_E: torch.Tensor

    def came_out(self, hidden_SE: torch.Tensor) -> bool:
        """Whether rows can have come out of this norm: without scale and shift, their mean square is 1."""
        if not self.scale_E.all():
            # What a scale of 0 has removed cannot be seen.
            return True
        size_S = ((hidden_SE.float() - self.shift_E) / self.scale_E).square().mean(-1).sqrt()
        return bool(((size_S - 1).abs() <= _NORM_TOLERANCE).all())


@dataclass(frozen=True)
class Ending:
    """The end of a model. norm: None if its class keeps it where we do not look. fingerprint: of the head's file."""

    head_VE: torch.Tensor
    norm: FinalNorm | None
    fingerprint: str


def read_ending(path_or_hub_id: str | Path, model: PreTrainedModel, dtype: torch.dtype) -> Ending:
    """Read the end of a model, the head in `dtype`, out of its checkpoint in safetensors.

    model: without weights, as `config.json` describes it. Of a repository of the hub only the files that hold the end
    are downloaded. Raises ForkLeftError if the head or the norm is missing, of another shape, or quantised.
    """
    head = model.get_output_embeddings().weight
    # A head that is tied to the embedding has both names. The embedding comes first, and is what the checkpoint holds.
    owner, *copies = [name for name, found in model.named_parameters(remove_duplicate=False) if found is head]
    views = {owner: torch.empty(head.shape, dtype=dtype)}
    prefix, norm = _final_norm(model)
    if norm is not None:
        norm = copy.deepcopy(norm).to_empty(device="cpu").float()
        views |= {f"{prefix}.{name}": found.data for name, found in norm.named_parameters()}
    folder = partial_folder(path_or_hub_id, {*views, *copies})
    where = find_tensors(folder, views, copies=dict.fromkeys(copies, owner), passed_over=lambda name: True, only=True)
    read_tensors(where, views)
    final = None if norm is None else _measured(norm, head.shape[1])
    return Ending(views[owner], final, fingerprint_of_file(where[owner]))


def _final_norm(model: PreTrainedModel) -> tuple[str, torch.nn.Module | None]:
    """The norm behind all layers, with its name, which stands beside the layers in every usual class."""
    children = model.base_model.named_children()
    norms = [(name, child) for name, child in children if type(child).__name__.endswith("Norm")]
    if len(norms) != 1:
        return "", None
    ((name, norm),) = norms
    return f"{model.base_model_prefix}.{name}", norm


@torch.no_grad()
def _measured(norm: torch.nn.Module, width: int) -> FinalNorm:
    """Scale and shift of a norm, found by using it: classes differ in what their weights mean (Gemma adds 1)."""
    # Of mean 0 and mean square 1, so that every kind of norm leaves it as it is.
    alternating_E = torch.ones(width)
    alternating_E[1::2] = -1
    shift_E = norm(torch.zeros(1, width))[0]
    return FinalNorm((norm(alternating_E[None])[0] - shift_E) * alternating_E, shift_E)
