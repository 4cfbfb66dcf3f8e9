"""The last layer of a student, computed only for the tokens that are read.

Behind the attention of the last layer a token no longer affects any other. So what follows (its feed-forward network,
both norms, the output head) is needed only for tokens that are read: one of 32 in a readout with blocks of 32, the
unresolved ones in a rollout. The layer stays the stock one; it is told the rows with `forkleft_rows` and then returns
these alone.
"""

from types import MethodType
from typing import Any

import torch
from transformers import PreTrainedModel


def read_rows(model: PreTrainedModel) -> None:
    """Make `model.base_model(..., forkleft_rows=rows_S)` return the hidden states of these tokens alone.

    Without rows it works as before.
    """
    layers: Any = model.base_model.layers
    # A method, not a closure: a copy of the model then calls the copy.
    layers[-1].forward = MethodType(_reading, layers[-1])


def _reading(
    self: Any, hidden_states: torch.Tensor, *, forkleft_rows: torch.Tensor | None = None, **settings: Any
) -> torch.Tensor:
    if forkleft_rows is None:
        return type(self).forward(self, hidden_states, **settings)
    attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), forkleft_last=True, **settings)
    read_1SD = hidden_states[:, forkleft_rows] + attended[:, forkleft_rows]
    return read_1SD + self.mlp(self.post_attention_layernorm(read_1SD))
