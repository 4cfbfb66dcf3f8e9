import pytest

from forkleft.errors import ForkLeftError, check_choice, check_count, did_you_mean, nearest


def test_a_choice_is_one_of_the_known():
    check_choice("view", "prefix", ("prefix", "target_masked"))
    with pytest.raises(ForkLeftError, match="view must be one of prefix, target_masked, found 'left'"):
        check_choice("view", "left", ("prefix", "target_masked"))


@pytest.mark.parametrize("value", [0, -1, 1.0, "1", True, None])
def test_a_count_is_a_whole_number_from_1_on(value):
    check_count("passes", 1)
    with pytest.raises(ForkLeftError, match=f"passes must be a whole number of at least 1, found {value!r}"):
        check_count("passes", value)


def test_the_nearest_of_known_names():
    assert nearest("gsm8", ["mmlu", "gsm8k"]) == "gsm8k"
    assert nearest("aime", ["mmlu", "gsm8k"]) is None
    assert did_you_mean("gsm8", ["gsm8k"]) == "; did you mean gsm8k?"
    assert did_you_mean("aime", ["gsm8k"]) == ""
