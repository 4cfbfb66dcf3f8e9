"""What kind of diffusion model a student is: how it attends, where its blocks are, and where its head is read."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from forkleft.errors import ForkLeftError, check_choice, check_count

Attention = Literal["block", "full"]
Anchor = Literal["prompt_end", "absolute", "prompt_end_backward"]
Head = Literal["same", "shifted"]


@dataclass(frozen=True)
class Family:
    """The facts about a student family that the method needs.

    attention: `block`: a token sees its own block and all earlier ones; `full`: every token sees every token.
    anchor: where blocks begin (only with `block` attention). `prompt_end`: the prompt is one block, response blocks
        start after it (Efficient-DLM). `absolute`: multiples of the block size from the sequence start, so that the
        prompt's remainder shares the first response block (SDAR). `prompt_end_backward`: response blocks start after
        the prompt, prompt blocks are counted backwards from there (BD3LM, OPDLM).
    block_size: tokens a block; for `full` attention, the window that decoding fills before it moves on.
    head: `same`: the logits at a position predict that position; `shifted`: they predict the next one.
    sub_block: how many tokens of a block decoding fills before it moves on (Fast-dLLM v2); None: the whole block.
    name: of the family in `forkleft.students.families`, if it is one of those. Not compared.
    """

    attention: Attention
    block_size: int
    anchor: Anchor = "prompt_end"
    head: Head = "same"
    sub_block: int | None = None
    name: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        known = {"attention": Attention, "anchor": Anchor, "head": Head}
        for name, kind in known.items():
            check_choice(name, getattr(self, name), get_args(kind))
        check_count("block_size", self.block_size)
        if self.sub_block is not None:
            check_count("sub_block", self.sub_block)
            if self.block_size % self.sub_block:
                raise ForkLeftError(
                    f"sub_block must divide the block_size of {self.block_size}, found {self.sub_block}; "
                    "choose a block_size that is a multiple of it"
                )

    @property
    def shift(self) -> int:
        """How many positions before its target the head is read: 0 or 1."""
        return int(self.head == "shifted")

    def block_of(self, position: int, prompt_length: int) -> int:
        """The block of a sequence position (0-based, prompt first). Attention reaches equal and lower blocks.

        Blocks are numbered from the anchor; only their order matters. With full attention there is one block.
        """
        if self.attention == "full":
            return 0
        if self.anchor == "absolute":
            return position // self.block_size
        block = (position - prompt_length) // self.block_size
        return max(block, -1) if self.anchor == "prompt_end" else block

    def segment(self, position: int, prompt_length: int) -> tuple[int, int]:
        """Start and end (exclusive) of the decoding segment that holds response position `position`.

        A segment is a block or, with full attention, a window counted from the prompt's end. Under the absolute anchor
        the first segment starts inside the prompt, unless the prompt ends with a full block.
        """
        origin = 0 if self.attention == "block" and self.anchor == "absolute" else prompt_length
        start = position - (position - origin) % self.block_size
        return start, start + self.block_size

    def window(self, position: int, prompt_length: int) -> tuple[int, int]:
        """Start and end (exclusive) of what decoding fills together: the sub-block, else the segment."""
        start, end = self.segment(position, prompt_length)
        if self.sub_block is None:
            return start, end
        start = position - (position - start) % self.sub_block
        return start, start + self.sub_block
