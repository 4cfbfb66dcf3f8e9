import pytest

from forkleft.errors import ForkLeftError
from forkleft.train.adapt_config import AdaptConfig


def config(tmp_path, **changes):
    return AdaptConfig(str(tmp_path), use_cpu=True, **changes)


def test_the_range_of_shares_moves_evenly(tmp_path):
    made = config(tmp_path, causal_steps=2, first_mask_shares=[0.0, 0.2], mask_shares=[0.4, 1.0], mask_share_steps=4)
    shares = [made.shares_at(update) for update in (0, 2, 3, 4, 6, 100)]
    assert [low for low, _ in shares] == pytest.approx([0, 0, 0.1, 0.2, 0.4, 0.4])
    assert [high for _, high in shares] == pytest.approx([0.2, 0.2, 0.4, 0.6, 1.0, 1.0])
    assert config(tmp_path).shares_at(0) == (0, 1)


def test_options_may_fill_the_run(tmp_path):
    shares = {"first_mask_shares": [0, 0.5], "mask_share_steps": 6, "causal_steps": 2}
    assert config(tmp_path, max_steps=8, **shares).predicts_next
    # By epochs, the length shows later.
    unknown = config(tmp_path, **shares)
    unknown.check_length(8)
    with pytest.raises(ForkLeftError, match="mask_share_steps"):
        unknown.check_length(7)
    with pytest.raises(ForkLeftError, match="causal_steps"):
        unknown.check_length(2)
    assert [unknown.is_causal(update) for update in (0, 1, 2)] == [True, True, False]
    only = config(tmp_path, causal_only=True, max_steps=8)
    assert only.is_causal(7) and only.predicts_next and not config(tmp_path).predicts_next


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": "2/t"}, "weighting must be one of uniform, 1/t"),
        ({"long_rows": "wrap"}, "long_rows must be one of refuse, skip, cut, split"),
        ({"mask_shares": [0.5]}, "mask_shares must be two shares from 0 to 1"),
        ({"mask_shares": [0.5, 0.2]}, "the smaller one first"),
        ({"first_mask_shares": [0, 2], "mask_share_steps": 1}, "first_mask_shares must be two shares"),
        ({"first_mask_shares": [0, 0.5]}, "belong together"),
        ({"mask_share_steps": 3}, "belong together"),
        ({"causal_weight": -1}, "causal_weight must not be negative"),
        (
            {"causal_steps": 8, "max_steps": 8},
            r"causal_steps \(8\) must be fewer than the updates of the run \(8\), or",
        ),
        (
            {"first_mask_shares": [0, 0.5], "mask_share_steps": 7, "causal_steps": 2, "max_steps": 8},
            r"mask_share_steps \(7, after causal_steps 2\) must end within the updates of the run \(8\)",
        ),
        ({"causal_only": True, "causal_weight": 0.5}, "causal_only leaves nothing for causal_weight to decide"),
        ({"bad_rows": "mend"}, "bad_rows must be one of refuse, skip"),
        ({"max_length": 1}, "max_length must be at least 2"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1"),
        ({"tokens_per_batch": 0}, "tokens_per_batch must be a whole number of at least 1"),
        ({"accuracy_questions": 3}, "name the verifier"),
        ({"verifier": "none"}, "verifier"),
        ({"fp16": True}, "fp16"),
    ],
)
def test_bad_values(tmp_path, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        config(tmp_path, **changes)
