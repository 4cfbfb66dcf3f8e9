"""Mistakes are told before the models are loaded, and `--check` says what would run."""

import json
from pathlib import Path

import pytest

from forkleft.cli import main, runs
from forkleft.errors import ForkLeftError
from forkleft.train.batches import batches_of
from forkleft.train.config import ForkLeftConfig
from forkleft.train.preflight import check_options, check_updates
from forkleft.train.recipes import Recipe

LAB = str(Path(__file__).parents[2] / "recipes" / "lab.yaml")
QUICK = ["--train_questions", "8", "--questions_per_update", "4", "--eval_questions", "2", "--use_cpu"]
ROW = {"question": "a=4;b=a+a;b?", "answer": "8", "solution": "b=4+4=8;#8"}


@pytest.fixture
def no_weights(monkeypatch):
    """Loading weights is what must not happen."""
    forbid_weights(monkeypatch)


def forbid_weights(monkeypatch):
    for name in ("load_student", "load_teacher"):
        loader = getattr(runs, name)

        def load(*given, weights=True, loader=loader, **settings):
            assert not weights, "the models were loaded"
            return loader(*given, weights=weights, **settings)

        monkeypatch.setattr(runs, name, load)


def updates(config, questions):
    return check_updates(config, batches_of(config, questions))


def write_rows(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train_data", "nowhere.jsonl"], "forkleft: train_data: expected a JSON Lines file, found none at nowhere"),
        (["--eval_data", "nowhere.jsonl"], "forkleft: eval_data: expected a JSON Lines file, found none at nowhere"),
        (["--train_data", "ROWS", "--columns", "{question: problem}"], "has no column 'problem', there are question"),
        (["--train_data", "BLANK"], "expected answers, found none"),
        (["--train_data", "LONG"], "exceed the student's context of 512"),
        (["--eval_data", "ROWS", "--eval_columns", "{answer: final}"], "has no column 'final'"),
        (["--student", "lab:nobody"], "no lab model 'nobody'"),
        (["--teacher", "lab:student-block"], "lab:student-block is a diffusion model"),
        (["--teacher_dtype", "int8"], "teacher_dtype must be one of float32"),
        (["--output_dir", "FILE"], "expected a folder to write to, found a file"),
        (["--answer_cache", "FILE/answers.jsonl"], "found a file"),
        (["--resume_from_checkpoint", "true"], "no whole checkpoint to resume from"),
        (["--resume_from_checkpoint", "elsewhere/checkpoint-3"], "is no folder; name a checkpoint-N"),
        (["--answers_url", "http://127.0.0.1:9/v1"], "cannot reach http://127.0.0.1:9/v1"),
        (["--teacher_url", "http://127.0.0.1:9"], "cannot reach http://127.0.0.1:9"),
        (["--lora_rank", "2", "--lora_targets", "[no_proj]"], "the adapters cannot be made"),
        (
            ["--lora_rank", "2", "--lora_targets", "[embed_tokens]", "--merge_adapters"],
            "embed_tokens has adapters other than plain LoRA of a linear layer, which cannot be merged",
        ),
        (["--save_at", "[3, 60]"], "save_at must hold updates from 1 to 50"),
        (["--max_steps", "-1", "--num_train_epochs", "1", "--eval_at", "[3]"], "eval_at must hold updates from 1 to 2"),
        (["--eval_data="], "eval_strategy asks for evaluations, and there is no eval_data"),
        (["--lr_scheduler_kwargs", "{min_lr_ratio: 0.1}"], "the schedule cosine_with_min_lr cannot be made of"),
    ],
)
def test_a_mistake_costs_no_loading(tmp_path, capsys, no_weights, words, message):
    write_rows(tmp_path / "rows.jsonl", ROW)
    write_rows(tmp_path / "blank.jsonl", ROW | {"answer": "", "solution": ""})
    write_rows(tmp_path / "long.jsonl", ROW | {"question": "a=4;" * 200 + "a?"})
    (tmp_path / "file").touch()
    places = {"ROWS": "rows.jsonl", "BLANK": "blank.jsonl", "LONG": "long.jsonl", "FILE": "file"}
    for name, place in places.items():
        words = [word.replace(name, str(tmp_path / place)) for word in words]
    start = ["train", "--config", LAB, *QUICK, "--output_dir", str(tmp_path / "run")]
    for check in ([], ["--check"]):
        assert main([*start, *words, *check]) == 2
        errors = capsys.readouterr().err
        assert message in errors and "Traceback" not in errors


def test_a_check_says_what_would_run_and_leaves_nothing(tmp_path, capsys, no_weights):
    words = ["train", "--config", LAB, *QUICK, "--output_dir", str(tmp_path / "run"), "--save_at", "[5, 10]"]
    words += ["--per_device_train_batch_size", "2", "--lora_rank", "4"]
    assert main([*words, "--check"]) == 0
    # A long path stands on a line of its own.
    text = capsys.readouterr().out.replace(f"output\n           {tmp_path}", f"output     {tmp_path}")
    assert text.splitlines() == [
        "student    lab:student-block, 342,576 weights, adapters of rank 4 trained in",
        "           float32",
        "           block attention, blocks of 32, anchor prompt_end, same head",
        "teacher    lab:teacher-strong, 453,408 weights in float32",
        "questions  8 of lab:train, 8 with a reference solution",
        "           2 of lab:chain-4 for evaluation",
        "updates    50 of 4 questions, 25 times through the data",
        "devices    1 process on cpu, 2 questions at a time, 2 accumulation steps",
        f"output     {tmp_path / 'run'}",
        "           checkpoints after updates 5, 10, 25, 50",
        "           evaluations after updates 25, 50",
    ]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--max_steps", "3"], ["checkpoints after update 3", "evaluations after update 3"]),
        (["--save_steps", "2"], ["checkpoints every 2 updates"]),
        (["--save_steps", "7"], ["checkpoints every 7 updates and after update 50"]),
        (["--save_steps", "0.5"], ["checkpoints after updates 25, 50"]),
        (["--save_strategy", "no", "--eval_delay", "30"], ["checkpoints none", "evaluations after update 50"]),
        (["--save_strategy", "epoch", "--save_at", "[3]"], ["checkpoints after every epoch and after update 3"]),
    ],
)
def test_a_check_names_the_updates_that_there_will_be(tmp_path, capsys, no_weights, words, expected):
    assert main(["train", "--config", LAB, *QUICK, "--output_dir", str(tmp_path / "run"), *words, "--check"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in expected if line not in lines] == []


def test_bf16_without_a_gpu(tmp_path, capsys, monkeypatch, no_weights):
    """A run is refused with what to type; a check goes on, and remarks on it."""
    monkeypatch.setattr("forkleft.train.run_config.is_torch_bf16_gpu_available", lambda: False)
    words = ["train", "--config", LAB, *QUICK, "--output_dir", str(tmp_path / "run"), "--bf16", "--use_cpu", "false"]
    assert main(words) == 2
    assert "bf16: true asks for a GPU" in (errors := capsys.readouterr().err) and "--bf16 false" in errors
    assert main([*words, "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "remark     bf16: true asks for a GPU that computes in bfloat16, and there is",
        "           none here: to run here, add --bf16 false",
    ]


@pytest.mark.slow
def test_a_run_is_checked_against_the_one_in_its_folder(tmp_path, capsys, monkeypatch):
    words = ["train", "--config", LAB, *QUICK, "--max_steps", "2", "--passes", "4", "--output_dir", str(tmp_path)]
    words += ["--eval_strategy", "no", "--save_steps", "1"]
    assert main(words) == 0
    forbid_weights(monkeypatch)
    capsys.readouterr()
    assert main(words) == 2
    assert "holds a finished run; name another folder (output_dir)" in capsys.readouterr().err
    words += ["--resume_from_checkpoint", "true"]
    for other, message in (
        (["--rho", "0.25"], "rho was 0.5, is 0.25"),
        (["--train_questions", "7"], "questions was"),
        (["--max_steps", "1"], "max_steps may grow, and not shrink"),
    ):
        assert main([*words, *other]) == 2
        assert message in capsys.readouterr().err
    assert main([*words, "--max_steps", "4", "--check"]) == 0
    text = capsys.readouterr().out
    assert "goes on from checkpoint-2" in text
    assert "on another schedule than before: max_steps was 2 before" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eval_on_start": True}, "eval_on_start asks for evaluations"),
        ({"push_to_hub": True}, "push_to_hub needs a token of the hub"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "the schedule cosine_with_min_lr cannot be made"),
        ({"optim": "lomo"}, "the optimiser lomo cannot be made"),
    ],
)
def test_options_that_would_fail_later(tmp_path, monkeypatch, options, message):
    monkeypatch.setattr("forkleft.train.preflight.get_token", lambda: None)
    config = ForkLeftConfig(str(tmp_path), use_cpu=True, **options)
    with pytest.raises(ForkLeftError, match=message):
        check_options(Recipe(), config)


def test_how_many_updates_there_are(tmp_path):
    settings = {"questions_per_update": 4, "per_device_train_batch_size": 2, "num_train_epochs": 1.5, "use_cpu": True}
    config = ForkLeftConfig(str(tmp_path), **settings)
    # 3 an epoch, the last with 1 or 2 questions.
    assert [updates(config, count) for count in (9, 10, 12)] == [5, 5, 5]
    dropping = ForkLeftConfig(str(tmp_path), **settings, dataloader_drop_last=True)
    assert updates(dropping, 11) == 3
    with pytest.raises(ForkLeftError, match="3 questions do not fill one update of 4, and dataloader_drop_last"):
        updates(dropping, 3)
    assert updates(ForkLeftConfig(str(tmp_path), **settings, max_steps=7), 9) == 7
