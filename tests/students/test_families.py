import pytest

from forkleft.errors import ForkLeftError
from forkleft.students import KNOWN_FAMILIES, Family
from forkleft.students.families import named_family, recognise, with_block_size


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("edlm", "efficient-dlm"),
        ("sdar", "sdar"),
        ("sdar_moe", "sdar"),
        ("Fast_dLLM_Qwen", "fast-dllm-v2"),
        ("Dream", "dream"),
        ("llada", "llada"),
    ],
)
def test_a_model_type_tells_the_family(model_type, name):
    assert recognise({"model_type": model_type}) is KNOWN_FAMILIES[name] is named_family(name)


def test_the_facts_of_the_families():
    """Design, section 3."""
    assert {name: record.family for name, record in KNOWN_FAMILIES.items()} == {
        "efficient-dlm": Family("block", 32, "prompt_end"),
        "sdar": Family("block", 4, "absolute"),
        "bd3lm": Family("block", 4, "prompt_end_backward"),
        "mdlm": Family("full", 32),
        "fast-dllm-v2": Family("block", 32, "absolute", "shifted", sub_block=8),
        "dream": Family("full", 32, head="shifted"),
        "llada": Family("full", 32),
    }
    assert all(record.family.name == name for name, record in KNOWN_FAMILIES.items())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "a2d-qwen3"}, r"BD3LM, OPDLM\) .*MDLM\).*family bd3lm or mdlm .--family"),
        ({"model_type": "a2d-llama"}, "'a2d-llama' is used for two families"),
        (
            {"model_type": "qwen3"},
            "autoregressive checkpoint: expected a diffusion.*`forkleft convert`.*--family",
        ),
        ({"model_type": "Dream", "block_size": 32}, r"'Dream' with a block_size \(32\) is not Dream 7B"),
        ({"model_type": "gpt2"}, "'gpt2', which is none of the known student families.*efficient-dlm, sdar, bd3lm"),
        ({}, "model_type None, which is none"),
        ({"model_type": ["sdar"]}, "which is none of the known"),
    ],
)
def test_what_cannot_be_recognised(config, message):
    with pytest.raises(ForkLeftError, match=message):
        recognise(config)


def test_blocks_of_another_size():
    fast = KNOWN_FAMILIES["fast-dllm-v2"].family
    assert with_block_size(fast, 64).sub_block == 8
    assert with_block_size(fast, 64).name == "fast-dllm-v2"
    assert with_block_size(fast, 8).sub_block is None
    assert with_block_size(Family("full", 32), 16) == Family("full", 16)
    with pytest.raises(ForkLeftError, match="block_size must be a whole number of at least 1, found '4'"):
        with_block_size(fast, "4")
    with pytest.raises(ForkLeftError, match="sub_block must divide the block_size of 20, found 8"):
        with_block_size(fast, 20)
