import dataclasses

import pytest

from forkleft.errors import ForkLeftError
from forkleft.objective.supervision import ObjectiveSettings
from forkleft.train.config import ForkLeftConfig


def test_the_defaults_are_the_designs(tmp_path):
    config = ForkLeftConfig(str(tmp_path), use_cpu=True)
    assert (config.rho, config.mu, config.delta, config.rank_weight) == (0.25, 0.1, 0.1, 0.1)
    assert (config.learning_rate, config.weight_decay, config.max_grad_norm) == (1e-6, 0.0, 1.0)
    assert (config.adam_beta1, config.adam_beta2) == (0.9, 0.999)
    assert (config.passes, config.max_new_tokens, config.teacher_max_new_tokens) == (32, 1024, 2048)
    assert config.per_device_train_batch_size == 32
    assert config.objective_settings() == ObjectiveSettings(budget=1024)


def test_the_folder_and_the_order_have_values_of_their_own(tmp_path):
    config = ForkLeftConfig(str(tmp_path), use_cpu=True, seed=5)
    assert (config.output_path, config.answer_file) == (tmp_path, tmp_path / "teacher_answers.jsonl")
    assert (config.order_seed, ForkLeftConfig(str(tmp_path), use_cpu=True, data_seed=7).order_seed) == (5, 7)


def test_every_field_of_ours_says_what_it_is():
    for field in dataclasses.fields(ForkLeftConfig):
        assert field.metadata.get("help") or field.name not in ForkLeftConfig.__annotations__, field.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rho": 2.0}, "rho .* expected 0 to 1, found 2.0"),
        ({"view": "left"}, "view must be one of prefix, target_masked"),
        ({"rollout_order": "hottest"}, "rollout_order must be one of high_entropy, .*found 'hottest'"),
        ({"verifier": "maths"}, "unknown verifier kind 'maths'; there are math, opdlm, choice, lab, exact"),
        ({"verifier": "choice", "letters": "1234"}, "expected capital letters of the offered choices, found '1234'"),
        ({"eval_decoding": "fast"}, "eval_decoding must be one of static, native, found 'fast'"),
        ({"long_prompts": "cut"}, "long_prompts must be one of refuse, skip"),
        ({"passes": 0}, "passes must be a whole number of at least 1, found 0"),
        ({"max_new_tokens": 0}, "budget must be at least 1 token"),
        ({"trace_steps": -1}, "trace_steps must not be negative"),
        ({"fp16": True}, "use bf16"),
        ({"remove_unused_columns": True}, "remove_unused_columns would remove the questions"),
        ({"learning_rate": -1e-6}, "learning_rate must not be negative, found -1e-06"),
        ({"learning_rate": float("nan")}, "learning_rate must not be negative, found nan"),
        ({"weight_decay": -0.1}, "weight_decay must not be negative"),
        ({"adam_beta2": 1.0}, "adam_beta2 must be at least 0 and below 1, found 1.0"),
        (
            {"per_device_train_batch_size": 0},
            "per_device_train_batch_size must be a whole number of at least 1, found 0",
        ),
        ({"max_steps": 0}, "max_steps must be at least 1, found 0; -1, the default, leaves it to num_train_epochs"),
        ({"num_train_epochs": 0}, "num_train_epochs must be above 0, found 0"),
        ({"report_to": "no-such-tracker"}, "report_to names 'no-such-tracker', which cannot be used here: .*leave it"),
        ({"save_at": [0, 3]}, "save_at must hold updates from 1 on, found 0$"),
        ({"eval_at": [0]}, "eval_at must hold .*; eval_on_start evaluates before the first"),
        ({"save_at": [3, 9, 11], "max_steps": 8}, "save_at must hold updates from 1 to 8, the last, found 9, 11"),
        ({"questions_per_update": 0}, "questions_per_update must be a multiple of the processes"),
        (
            {"questions_per_update": 12, "per_device_train_batch_size": 5},
            "12 gives each of 1 process.* 12 questions, which batches of 5 do not divide; .* one of 1, 2, 3, 4, 6, 12",
        ),
        (
            {"questions_per_update": 12, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "gradient_accumulation_steps is 2, but questions_per_update 12 makes it 3; leave out one",
        ),
    ],
)
def test_bad_values(tmp_path, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        ForkLeftConfig(str(tmp_path), use_cpu=True, **changes)


def test_a_tracker_that_is_not_installed(tmp_path, monkeypatch):
    def missing(*_):
        raise RuntimeError("it is not installed")

    monkeypatch.setattr("forkleft.train.run_config.get_available_reporting_integrations", list)
    monkeypatch.setattr("forkleft.train.run_config.get_reporting_integration_callbacks", lambda names: [missing])
    with pytest.raises(ForkLeftError, match=r"names 'wandb', .*: it is not installed; leave it out, or install it"):
        ForkLeftConfig(str(tmp_path), use_cpu=True, report_to=["wandb"])


@pytest.mark.parametrize(
    ("processes", "at_once", "found"),
    [(1, 32, (32, 1)), (1, 8, (8, 4)), (2, 8, (8, 2)), (4, 8, (8, 1)), (8, 8, (4, 1)), (32, 8, (1, 1))],
)
def test_an_update_has_the_same_questions_for_any_number_of_processes(tmp_path, monkeypatch, processes, at_once, found):
    monkeypatch.setattr(ForkLeftConfig, "world_size", processes)
    settings = {"questions_per_update": 32, "per_device_train_batch_size": at_once, "use_cpu": True}
    config = ForkLeftConfig(str(tmp_path), **settings)
    assert (config.per_device_train_batch_size, config.gradient_accumulation_steps) == found
    # What follows from it may be said as well.
    again = dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), found, strict=True))
    ForkLeftConfig(str(tmp_path), **settings | again)


def test_processes_that_do_not_divide_an_update(tmp_path, monkeypatch):
    monkeypatch.setattr(ForkLeftConfig, "world_size", 3)
    with pytest.raises(ForkLeftError, match="must be a multiple of the processes, which are 3, found 32; change"):
        ForkLeftConfig(str(tmp_path), questions_per_update=32, use_cpu=True)


def test_processes_that_would_not_work_together(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ForkLeftError, match="started as 2 processes, but without a GPU"):
        ForkLeftConfig(tmp_path)
