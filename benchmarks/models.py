"""The model that the rows of the table share, and a plain copy of it."""

import copy

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from forkleft.students import Family, Student


def student(vocabulary: int, block_size: int) -> Student:
    """Qwen3, 4 layers, width 128, random; its last two ids are mask and stop."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.1,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).eval()
    return Student.from_model(model, Family("block", block_size), vocabulary - 1, [vocabulary - 2])


def plain(one: Student) -> PreTrainedModel:
    """The same weights under Transformers' own attention."""
    model = copy.deepcopy(one.model)
    model.set_attn_implementation("sdpa")
    return model


def random_ids(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    """Prompts without special ids."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, vocabulary - 2, (rows, length), generator=generator).tolist()
