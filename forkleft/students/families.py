"""The student families that ForkLeft knows by name, and how `config.json` shows which family a checkpoint is of.

To add a family is to add an entry to `KNOWN_FAMILIES`. What an entry says is public knowledge about the family
(`docs/models.md` gives the sources and the gaps). Mask and stop ids belong to each checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from forkleft.errors import AutoregressiveError, ForkLeftError, did_you_mean
from forkleft.students.family import Family


@dataclass(frozen=True)
class Decoding:
    """How a student writes outside of training, in the terms of `generate`; tokens are taken by argmax.

    order: which positions come first. passes: how many a block may take (None: one position a pass). threshold: also
    commit every position that is more confident than this. whole_budget: fill the whole response budget as one window,
    for families whose sampler has no blocks (full attention only).
    """

    order: str = "confidence"
    passes: int | None = None
    threshold: float | None = None
    whole_budget: bool = False

    def __str__(self) -> str:
        """For people: what differs from the default, or the default itself."""
        parts = [] if self.order == "confidence" else [self.order]
        if self.passes is not None:
            parts.append(f"{self.passes} passes a block")
        elif self.threshold is None:
            parts.append("one token a pass")
        if self.threshold is not None:
            parts.append(f"threshold {self.threshold:g}")
        if self.whole_budget:
            parts.append("one window")
        return ", ".join(parts)


@dataclass(frozen=True)
class KnownFamily:
    """What ForkLeft knows about a family.

    family: its facts, with the usual block size. model_types: the `model_type`s that only this family uses.
    block_size_field: the field of `config.json` that gives a checkpoint's own block size, if there is one.
    mask_token: the mask if neither tokenizer nor configuration names it. adds_mask: the family's own tools add that
    token to a tokenizer that lacks it. decoding: the settings that its authors show, without the temperature.
    """

    family: Family
    model_types: tuple[str, ...] = ()
    block_size_field: str | None = None
    mask_token: str | None = None
    adds_mask: bool = False
    decoding: Decoding = Decoding()


_FAMILIES = (
    KnownFamily(Family("block", 32, "prompt_end", name="efficient-dlm"), ("edlm",), decoding=Decoding(threshold=0.9)),
    KnownFamily(
        Family("block", 4, "absolute", name="sdar"),
        ("sdar", "sdar_moe"),
        "block_size",
        "<|MASK|>",
        decoding=Decoding(threshold=0.85),
    ),
    KnownFamily(Family("block", 4, "prompt_end_backward", name="bd3lm"), mask_token="<|mask|>", adds_mask=True),
    KnownFamily(
        Family("full", 32, name="mdlm"), mask_token="<|mask|>", adds_mask=True, decoding=Decoding(whole_budget=True)
    ),
    KnownFamily(
        Family("block", 32, "absolute", "shifted", sub_block=8, name="fast-dllm-v2"),
        ("Fast_dLLM_Qwen",),
        "bd_size",
        "|<MASK>|",
        decoding=Decoding(threshold=0.9),
    ),
    KnownFamily(
        Family("full", 32, head="shifted", name="dream"),
        ("Dream",),
        mask_token="<|mask|>",
        decoding=Decoding("low_entropy", whole_budget=True),
    ),
    KnownFamily(Family("full", 32, name="llada"), ("llada",), mask_token="<|mdm_mask|>"),
)
KNOWN_FAMILIES: Mapping[str, KnownFamily] = {str(known.family.name): known for known in _FAMILIES}

_AUTOREGRESSIVE = ("llama", "qwen2", "qwen3", "qwen3_moe")


def named_family(name: str) -> KnownFamily:
    """The known family of this name. Raises ForkLeftError, listing the known names, if there is none."""
    if name not in KNOWN_FAMILIES:
        raise ForkLeftError(
            f"unknown family {name!r}; there are {', '.join(KNOWN_FAMILIES)}{did_you_mean(name, KNOWN_FAMILIES)}"
        )
    return KNOWN_FAMILIES[name]


def recognise(config: Mapping[str, Any]) -> KnownFamily:
    """The family of a `config.json`. Raises ForkLeftError if it could be several families, or none."""
    kind = config.get("model_type")
    names = ", ".join(KNOWN_FAMILIES)
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
    for known in _FAMILIES:
        if kind in known.model_types:
            return known
    raise ForkLeftError(
        f"config.json has model_type {kind!r}, which is none of the known student families; if it is one under another "
        f"name, say which (--family; in Python and in recipes family): {names}"
    )


def is_diffusion(config: Mapping[str, Any]) -> bool:
    """Whether a `config.json` shows a diffusion model, of any family. False for stock ones, which do not show it."""
    kind = str(config.get("model_type"))
    return kind.startswith("a2d-") or any(kind in known.model_types for known in _FAMILIES)


def with_block_size(family: Family, block_size: int) -> Family:
    """The family with another block size. Blocks no longer than its sub-blocks are decoded whole."""
    resized = replace(family, block_size=block_size, sub_block=None)
    if family.sub_block is None or block_size <= family.sub_block:
        return resized
    return replace(resized, sub_block=family.sub_block)
