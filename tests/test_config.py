import dataclasses

import pytest

from forkleft.config import ForkLeftConfig
from forkleft.errors import ForkLeftError
from forkleft.objective.lessons import ObjectiveSettings


def test_the_defaults_are_the_designs(tmp_path):
    config = ForkLeftConfig(str(tmp_path), use_cpu=True)
    assert (config.rho, config.mu, config.delta, config.rank_weight) == (0.25, 0.1, 0.1, 0.1)
    assert (config.learning_rate, config.weight_decay, config.max_grad_norm) == (1e-6, 0.0, 1.0)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.999)
    assert (config.passes, config.max_new_tokens, config.teacher_max_new_tokens) == (32, 1024, 2048)
    assert config.per_device_train_batch_size == 32
    assert config.objective_settings() == ObjectiveSettings(budget=1024)


def test_every_field_of_ours_says_what_it_is():
    for field in dataclasses.fields(ForkLeftConfig):
        assert field.metadata.get("help") or field.name not in ForkLeftConfig.__annotations__, field.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 2.0}, "rho .* expected 0 to 1, found 2.0"),
        ({"view": "left"}, "view must be one of prefix, target_masked"),
        ({"rollout_order": "hottest"}, "rollout_order must be one of high_entropy, .*found 'hottest'"),
        ({"verifier": "maths"}, "unknown verifier kind 'maths'; there are math, choice, lab"),
        ({"verifier": "choice", "letters": "1234"}, "expected capital letters of the offered choices, found '1234'"),
        ({"long_prompts": "cut"}, "long_prompts must be one of refuse, skip"),
        ({"passes": 0}, "passes must be at least 1, found 0"),
        ({"max_new_tokens": 0}, "budget must be at least 1 token"),
        ({"trace_steps": -1}, "trace_steps must not be negative"),
        ({"fp16": True}, "use bf16"),
        ({"remove_unused_columns": True}, "remove_unused_columns would remove the questions"),
    ],
)
def test_bad_values(tmp_path, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        ForkLeftConfig(str(tmp_path), use_cpu=True, **changes)
