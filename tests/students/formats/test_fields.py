import pytest
from checkpoints_on_disk import qwen_config, write_checkpoint
from transformers import Qwen3Config

from forkleft.errors import ForkLeftError
from forkleft.students.formats import (
    stock_config,
    unread_fields,
)


def test_fields_that_nobody_reads(tmp_path):
    assert unread_fields(qwen_config("edlm", "EfficientDLM", False, dlm_paradigm="x", mask_token_id=3)) == [
        "dlm_paradigm"
    ]
    llada = write_checkpoint(tmp_path, "llada").config
    ordinary = unread_fields(llada)
    assert "rope_full_precision" in ordinary and "d_model" not in ordinary and "scale_logits" not in ordinary
    assert set(unread_fields(llada | {"new_trick": 1})) - set(ordinary) == {"new_trick"}
    # What Transformers itself writes is known.
    assert unread_fields(Qwen3Config().to_dict() | {"_model_name_or_path": "x", "unk_token_id": 0}) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "x"}, "hidden_size = 'x', expected a whole number above 0"),
        ({"hidden_size": 32.5}, "hidden_size = 32.5, expected a whole"),
        ({"hidden_size": True}, "hidden_size = True, expected a whole"),
        ({"vocab_size": -1}, "vocab_size = -1, expected a whole"),
        ({"num_attention_heads": 0}, "num_attention_heads = 0, expected a whole"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5}, "num_attention_heads = 5, expected a divisor of the 32"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3, expected a divisor of the 4 heads"),
        ({"num_key_value_heads": [2]}, r"num_key_value_heads = \[2\], expected a whole"),
        ({"head_dim": 7}, "head_dim = 7, expected an even number"),
        ({"hidden_act": "foo"}, "hidden_act = 'foo', expected the name of an activation"),
        ({"hidden_act": ["silu"]}, r"hidden_act = \['silu'\], expected the name"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps = 'small', expected a number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings = 'yes', expected true or false"),
        ({"pad_token_id": 320}, "pad_token_id = 320, expected one of the 320"),
        ({"eos_token_id": [1, "x"]}, r"eos_token_id = \[1, 'x'\], expected a token id or a list"),
        ({"layer_types": 5}, "layer_types = 5, expected a list of names"),
        ({"layer_types": [5]}, r"layer_types = \[5\], expected a list of names"),
        ({"rope_scaling": "yarn"}, "rope_scaling = 'yarn', expected an object or null"),
        ({"rope_scaling": {"type": "yarn"}}, "rotary embeddings of type 'yarn' without factor"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "factor = 'x', expected a number above 0"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"rotary embeddings of type \['yarn'\]"),
        ({"rope_theta": "x"}, "rope_theta = 'x', expected a number above 0"),
        ({"model_type": ["sdar"]}, r"model_type \['sdar'\] has no stock class"),
    ],
)
def test_senseless_values(changes, message):
    with pytest.raises(ForkLeftError, match=message) as error:
        stock_config(qwen_config("sdar", "SDARForCausalLM", False) | changes)
    assert str(error.value).startswith("config.json") or "model_type" in changes
