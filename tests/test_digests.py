import torch
from tiny import tiny_model

from forkleft.digests import fingerprint


def test_other_weights_configuration_or_words_give_another_fingerprint():
    model = tiny_model()
    first = fingerprint(model, ["a"])
    assert fingerprint(tiny_model(), ["a"]) == first
    assert fingerprint(model, ["b"]) != first
    assert fingerprint(tiny_model(seed=1), ["a"]) != first
    assert fingerprint(tiny_model(rms_norm_eps=1e-3), ["a"]) != first


def test_where_a_model_was_loaded_from_does_not_matter():
    model, other = tiny_model(), tiny_model()
    other.config._name_or_path, other.config.transformers_version = "elsewhere", "0"
    assert fingerprint(model) == fingerprint(other)


def test_parameters_out_of_memory_count_by_their_shape():
    with torch.device("meta"):
        one, other = tiny_model(), tiny_model(intermediate_size=64)
    assert fingerprint(one) != fingerprint(other)
