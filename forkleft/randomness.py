"""Random choices keyed by what they are for.

Every random choice is a function of a seed and a name (question, update, stream), never of a global generator, so that
results do not depend on batch order, on the number of processes, or on where a run was resumed.
"""

import hashlib
from collections.abc import Sequence

import torch


def keyed_generator(*key: int | str) -> torch.Generator:
    """A CPU generator seeded by a digest of `key`: the same key gives the same numbers everywhere."""
    digest = hashlib.sha256("/".join(map(repr, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def ids_key(ids: Sequence[int]) -> str:
    """A name for a token sequence."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()
