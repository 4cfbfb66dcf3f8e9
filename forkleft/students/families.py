"""The student families that ForkLeft knows by name, and how a checkpoint's `config.json` tells which one it is.

A family is a record: adding one is adding an entry to `RECORDS`. What a record says is public knowledge about the
family (`docs/models.md` gives the sources and the gaps); mask and stop ids belong to each checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forkleft.errors import AutoregressiveError, ForkLeftError
from forkleft.students.bundled import did_you_mean
from forkleft.students.family import Family


@dataclass(frozen=True)
class Decoding:
    """How a student writes outside of training, in the terms of `generate`; tokens are taken by argmax.

    order: which positions come first. passes: how many a block may take (None: one position each). threshold: every
    position that is more confident than this is committed as well. whole_budget: the response budget is filled as one
    window, where the family's sampler knows no blocks (full attention only).
    """

    order: str = "confidence"
    passes: int | None = None
    threshold: float | None = None
    whole_budget: bool = False

    def __str__(self) -> str:
        """For a person: what is not as it would be by default, or the default."""
        told = [] if self.order == "confidence" else [self.order]
        if self.passes is not None:
            told.append(f"{self.passes} passes a block")
        elif self.threshold is None:
            told.append("one token a pass")
        if self.threshold is not None:
            told.append(f"threshold {self.threshold:g}")
        if self.whole_budget:
            told.append("one window")
        return ", ".join(told)


@dataclass(frozen=True)
class FamilyRecord:
    """What is known of a family.

    family: its facts, with the usual block size. model_types: the `model_type`s that only this family uses.
    block_size_field: the field of `config.json` that gives a checkpoint's own block size, if there is one.
    mask_token: the mask's token where neither tokenizer nor configuration names it. adds_mask: the family's own tools
    add that token to a tokenizer that lacks it. decoding: what its authors show to write with, but for the temperature.
    """

    family: Family
    model_types: tuple[str, ...] = ()
    block_size_field: str | None = None
    mask_token: str | None = None
    adds_mask: bool = False
    decoding: Decoding = Decoding()


_RECORDS = (
    FamilyRecord(Family("block", 32, "prompt_end", name="efficient-dlm"), ("edlm",), decoding=Decoding(threshold=0.9)),
    FamilyRecord(
        Family("block", 4, "absolute", name="sdar"),
        ("sdar", "sdar_moe"),
        "block_size",
        "<|MASK|>",
        decoding=Decoding(threshold=0.85),
    ),
    FamilyRecord(Family("block", 4, "prompt_end_backward", name="bd3lm"), mask_token="<|mask|>", adds_mask=True),
    FamilyRecord(
        Family("full", 32, name="mdlm"), mask_token="<|mask|>", adds_mask=True, decoding=Decoding(whole_budget=True)
    ),
    FamilyRecord(
        Family("block", 32, "absolute", "shifted", sub_block=8, name="fast-dllm-v2"),
        ("Fast_dLLM_Qwen",),
        "bd_size",
        "|<MASK>|",
        decoding=Decoding(threshold=0.9),
    ),
    FamilyRecord(
        Family("full", 32, head="shifted", name="dream"),
        ("Dream",),
        mask_token="<|mask|>",
        decoding=Decoding("low_entropy", whole_budget=True),
    ),
    FamilyRecord(Family("full", 32, name="llada"), ("llada",), mask_token="<|mdm_mask|>"),
)
RECORDS: Mapping[str, FamilyRecord] = {str(record.family.name): record for record in _RECORDS}

_AUTOREGRESSIVE = ("llama", "qwen2", "qwen3", "qwen3_moe")


def named_family(name: str) -> FamilyRecord:
    """The record of a name. Raises ForkLeftError listing the names there are."""
    if name not in RECORDS:
        raise ForkLeftError(f"unknown family {name!r}; there are {', '.join(RECORDS)}{did_you_mean(name, RECORDS)}")
    return RECORDS[name]


def recognise(config: Mapping[str, Any]) -> FamilyRecord:
    """The family whose `config.json` this is. Raises ForkLeftError if it could be several, or none."""
    kind = config.get("model_type")
    names = ", ".join(RECORDS)
    if kind in _AUTOREGRESSIVE:
        raise AutoregressiveError(
            f"model_type {kind!r} is that of an autoregressive checkpoint: expected a diffusion model. Make a student "
            f"of it with `forkleft convert`; if it already is one, say of which family (--family; in Python and "
            f"in recipes family): {names}"
        )
    if isinstance(kind, str) and kind.startswith("a2d-"):
        raise ForkLeftError(
            f"model_type {kind!r} is used for two families: block diffusion (BD3LM, OPDLM) and masked diffusion with "
            "full attention (MDLM), and nothing in config.json tells them apart; say which one: family bd3lm or mdlm "
            "(--family; in Python and in recipes family)"
        )
    if kind == "Dream" and "block_size" in config:
        raise ForkLeftError(
            f"model_type 'Dream' with a block_size ({config['block_size']}) is not Dream 7B but a block-diffusion "
            "descendant of it; describe it with a Family(…) of its own"
        )
    for record in _RECORDS:
        if kind in record.model_types:
            return record
    raise ForkLeftError(
        f"config.json has model_type {kind!r}, which is none of the known student families; if it is one under another "
        f"name, say which (--family; in Python and in recipes family): {names}"
    )


def is_diffusion(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of a diffusion model, of whichever family; stock ones do not tell."""
    kind = str(config.get("model_type"))
    return kind.startswith("a2d-") or any(kind in record.model_types for record in _RECORDS)


def with_block_size(family: Family, block_size: int) -> Family:
    """The family with blocks of another size. Blocks no longer than its sub-blocks are decoded whole."""
    resized = replace(family, block_size=block_size, sub_block=None)
    if family.sub_block is None or block_size <= family.sub_block:
        return resized
    return replace(resized, sub_block=family.sub_block)
