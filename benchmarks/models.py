"""The models that the rows of the table share, and plain copies of them."""

import copy

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from forkleft.students import Family, Student


def qwen3(vocabulary: int, *, width: int = 128, seed: int = 0) -> PreTrainedModel:
    """A Qwen3 model of 4 layers with random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=width // 4,
        max_position_embeddings=4096,
        initializer_range=0.1,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    return Qwen3ForCausalLM(config).eval()


def random_student(vocabulary: int, block_size: int, *, width: int = 128) -> Student:
    """A random `qwen3` as a student; its last two ids are stop and mask. It never stops before its budget ends."""
    model = qwen3(vocabulary, width=width)
    # A logit of zero is never the highest of so many.
    torch.nn.init.zeros_(model.lm_head.weight[vocabulary - 2])
    return Student.from_model(model, Family("block", block_size), vocabulary - 1, [vocabulary - 2])


def plain(student: Student) -> PreTrainedModel:
    """A copy of a student's model, under Transformers' own attention."""
    model = copy.deepcopy(student.model)
    model.set_attn_implementation("sdpa")
    return model


def random_ids(rows: int, length: int, vocabulary: int, *, seed: int = 1) -> list[list[int]]:
    """Prompts without special ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary - 2, (rows, length), generator=generator).tolist()
