import pytest
from naive import block_number, segment_bounds
from tiny import FAMILIES, family_name

from forkleft.errors import ForkLeftError
from forkleft.students import Family


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_blocks_equal_a_walk_along_the_sequence(family):
    """Only the order of blocks means anything: compare it for every pair of positions."""
    for prompt in range(1, 14):
        found = [family.block_of(position, prompt) for position in range(30)]
        walked = [block_number(family, position, prompt) for position in range(30)]
        for a in range(30):
            for b in range(30):
                assert (found[a] <= found[b]) == (walked[a] <= walked[b]), (prompt, a, b)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_segments_are_blocks_or_windows(family):
    for prompt in range(1, 10):
        for position in range(prompt, prompt + 20):
            assert family.segment(position, prompt) == segment_bounds(family, position, prompt, 60)


def test_the_three_anchors():
    """A prompt of 6 tokens, blocks of 4: P is the prompt, digits are blocks in order."""

    def drawn(anchor):
        blocks = [Family("block", 4, anchor).block_of(position, 6) for position in range(16)]
        return "".join(str(block - min(blocks)) for block in blocks)

    assert drawn("prompt_end") == "0000001111222233"
    assert drawn("absolute") == "0000111122223333"
    assert drawn("prompt_end_backward") == "0011112222333344"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "causal", "block_size": 4}, "attention must be one of block, full, found 'causal'"),
        ({"attention": "block", "block_size": 4, "anchor": "start"}, "anchor must be one of prompt_end, absolute"),
        ({"attention": "block", "block_size": 4, "head": "next"}, "head must be one of same, shifted, found 'next'"),
        ({"attention": "block", "block_size": 0}, "block_size must be a whole number of at least 1, found 0"),
        ({"attention": "block", "block_size": "4"}, "block_size must be a whole number of at least 1, found '4'"),
        ({"attention": "block", "block_size": True}, "block_size must be a whole number of at least 1, found True"),
        ({"attention": "block", "block_size": 8, "sub_block": 3}, "sub_block must divide the block_size of 8, found 3"),
        (
            {"attention": "block", "block_size": 8, "sub_block": 0},
            "sub_block must be a whole number of at least 1, found 0",
        ),
    ],
)
def test_bad_records(settings, message):
    with pytest.raises(ForkLeftError, match=message):
        Family(**settings)


def test_a_sub_block_is_filled_before_the_next():
    family = Family("block", 8, "absolute", "shifted", sub_block=4)
    assert family.segment(13, 6) == (8, 16) and family.window(13, 6) == (12, 16) and family.window(11, 6) == (8, 12)
    # A prompt's remainder shares the first block; its response begins inside a sub-block.
    assert family.window(6, 6) == (4, 8)
    whole = Family("block", 8, "absolute", "shifted")
    assert whole.window(13, 6) == whole.segment(13, 6) == (8, 16)


def test_a_name_is_a_label_only():
    assert Family("block", 4, name="mine") == Family("block", 4)
