import torch
from tiny import tiny_model

from forkleft.digests import differences, fingerprint, json_digest, text_digest


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


def test_the_digest_of_a_value_stays_what_it_was():
    """It stands in files on users' disks."""
    digest = "92237a0b4bddecf37e911b12a24e6aeb57a5e197bda8489efd01a837677cb5b0"
    assert json_digest({"b": [1, 2.5, None, True], "a": {"ä": "ö"}}) == digest
    assert json_digest({"a": {"ä": "ö"}, "b": (1, 2.5, None, True)}) == digest
    assert text_digest("ä") == "33e6d73fee82904c8d7afb78de1154d1e8dc2a0edb08120e63df5b9385c2d9cc"


def test_of_what_differs_the_innermost_entry_is_named():
    old = {"a": 1, "b": {"c": 2, "d": {"e": [3]}, "gone": 0}, "same": {"x": None}}
    new = {"new": 5, "a": 1, "b": {"c": 2.5, "d": {"e": [3, 4]}}, "same": {"x": None}}
    found = [("b.c", 2, 2.5), ("b.d.e", [3], [3, 4]), ("b.gone", 0, None), ("new", None, 5)]
    assert list(differences(old, new)) == found
    assert list(differences(old, old)) == []
    assert list(differences({"a": {"b": 1}}, {"a": 1})) == [("a", {"b": 1}, 1)]
