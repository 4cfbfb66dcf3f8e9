"""The formats of the known families: from their checkpoints into stock Transformers classes, and back."""

from forkleft.students.formats.stock import (
    STOCK,
    head_and_embedding,
    is_computed,
    stock_class,
    stock_config,
    tensor_views,
    unread_fields,
    with_vocab_size,
)

__all__ = [
    "STOCK",
    "head_and_embedding",
    "is_computed",
    "stock_class",
    "stock_config",
    "tensor_views",
    "unread_fields",
    "with_vocab_size",
]
