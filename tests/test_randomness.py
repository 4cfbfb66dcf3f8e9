import torch

from forkleft.randomness import ids_key, keyed_generator


def draws(*key):
    return torch.rand(8, generator=keyed_generator(*key)).tolist()


def test_the_key_decides_the_numbers():
    assert draws(1, "q", "sample") == draws(1, "q", "sample")
    keys = [(1, "q", "sample"), (2, "q", "sample"), (1, "r", "sample"), (1, "q", "order"), ("1", "q", "sample")]
    assert len({tuple(draws(*key)) for key in keys}) == len(keys)


def test_parts_do_not_run_together():
    assert draws("a/b", "c") != draws("a", "b/c")
    assert ids_key([1, 23]) != ids_key([12, 3])


def test_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    draws("x")
    assert torch.rand(1) == expected
