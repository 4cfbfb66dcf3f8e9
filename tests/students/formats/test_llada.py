import pytest
from checkpoints_on_disk import ROWS, write_checkpoint

from forkleft.errors import ForkLeftError
from forkleft.students.formats import (
    stock_config,
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_type": "sequential"}, r"block_type = 'sequential', .*\(expected 'llama'\)"),
        ({"activation_type": "swiglu"}, "activation_type = 'swiglu'"),
        ({"layer_norm_type": "default"}, "layer_norm_type = 'default'"),
        ({"include_qkv_bias": True}, "include_qkv_bias = True"),
        ({"scale_logits": True}, "scale_logits = True"),
        ({"alibi": True}, "alibi = True"),
        ({"rope": None}, "rope = None"),
        ({"weight_tying": None}, "weight_tying = None"),
        ({"mlp_hidden_size": None}, "lacks mlp_hidden_size"),
        ({"d_model": "x"}, "d_model = 'x', expected a whole number above 0"),
        ({"clip_qkv": 8.0}, "clip_qkv = 8.0"),
        ({"multi_query_attention": True}, "multi_query_attention = True"),
        ({"residual_dropout": 0.1}, "residual_dropout = 0.1"),
    ],
)
def test_a_llada_that_is_no_llama_is_refused(tmp_path, changes, message):
    config = write_checkpoint(tmp_path, "llada").config
    with pytest.raises(ForkLeftError, match=message):
        stock_config(config | changes)


def test_llada_moe_uses_the_same_name(tmp_path):
    with pytest.raises(ForkLeftError, match=r"no d_model: it is not a dense LLaDA \(LLaDA-MoE uses the same"):
        stock_config({"model_type": "llada", "hidden_size": 32, "num_experts": 4})


def test_lladas_embedding_may_have_more_rows_than_tokens(tmp_path):
    config = write_checkpoint(tmp_path, "llada").config
    assert stock_config(config | {"vocab_size": 268}).vocab_size == ROWS
    assert stock_config(config | {"embedding_size": None}).vocab_size == ROWS
