import json
from pathlib import Path

import pytest
import torch
from commands import run

from forkleft import load_student
from forkleft.cli import adapt, main, runs, sources
from forkleft.lab.models import model_path

ROWS = [{"question": "a=1;b=a+a;b?", "answer": "2", "solution": "b=1+1=2;#2"}] * 2
RECIPE = """
student: STUDENT
train_data: lab:train
train_questions: 16
output_dir: OUTPUT
max_new_tokens: 64
verifier: lab
prompt_template: "{question}"
max_steps: 2
per_device_train_batch_size: 4
use_cpu: true
dataloader_pin_memory: false
disable_tqdm: true
"""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "student"
    words = ["--model", str(model_path("teacher-weak")), "--family", "sdar", "--mask-token", "<|mask|>"]
    assert main(["convert", *words, "--block-size", "8", "--output", str(folder)]) == 0
    return folder


@pytest.fixture
def recipe(tmp_path, converted):
    path = tmp_path / "adapt.yaml"
    path.write_text(RECIPE.replace("STUDENT", str(converted)).replace("OUTPUT", str(tmp_path / "run")))
    return path


def test_a_converted_student_is_refused_adapted_and_then_trained(tmp_path, capsys, recipe, converted):
    assert not load_student(converted).adapted
    lab = str(Path(__file__).parents[2] / "recipes" / "lab.yaml")
    words = ["--config", lab, "--teacher", "lab:teacher-weak", "--max_steps", "1", "--train_questions", "2"]
    words += ["--questions_per_update", "2", "--eval_strategy", "no", "--use_cpu", "--passes", "2"]
    words += ["--dataloader_pin_memory", "false", "--showcase_questions", "0", "--save_strategy", "no"]
    train = ["train", *words, "--output_dir", str(tmp_path / "trained")]
    code, _, err = run(capsys, *train, "--student", str(converted))
    assert code == 2 and "was never taught to denoise" in err and "forkleft adapt, docs/your-own-model.md" in err
    allowed = [*train, "--student", str(converted), "--allow_unadapted", "--check"]
    assert run(capsys, *allowed)[0] == 0

    code, out, _ = run(capsys, "adapt", "--config", str(recipe))
    assert code == 0 and "metrics.jsonl, curves.png" in " ".join(out.split())
    folder = tmp_path / "run"
    assert load_student(folder).adapted
    assert {"README.md", "curves.png", "recipe.yaml", "metrics.jsonl"} <= {path.name for path in folder.iterdir()}
    assert "adapted" not in (folder / "forkleft_student.json").read_text()
    assert run(capsys, *train, "--student", str(folder))[0] == 0


def test_the_recipe_that_a_run_leaves_repeats_it(tmp_path, capsys, recipe):
    assert run(capsys, "adapt", "--config", str(recipe), "--stream", "--train_questions", "6")[0] == 0
    again = tmp_path / "again"
    assert run(capsys, "adapt", "--config", str(tmp_path / "run" / "recipe.yaml"), "--output_dir", str(again))[0] == 0
    assert (again / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    code, _, err = run(capsys, "adapt", "--config", str(recipe))
    assert code == 2 and "holds a finished run" in err


def test_a_check_says_what_would_run(tmp_path, capsys, recipe, monkeypatch):
    def load(*given, weights=True, loader=runs.load_student, **settings):
        assert not weights, "the model was loaded"
        return loader(*given, weights=weights, **settings)

    monkeypatch.setattr(runs, "load_student", load)
    more = ["--eval_data", "lab:chain-2", "--eval_questions", "5", "--eval_strategy", "steps", "--eval_steps", "1"]
    code, out, _ = run(capsys, "adapt", "--config", str(recipe), "--check", "--causal_steps", "1", *more)
    assert code == 0
    text = " ".join(out.split())
    assert "blocks of 8, anchor absolute, same head" in text
    assert "data 16 rows of lab:train, questions 5 rows of lab:chain-2 for evaluation" in text
    assert "updates 2, the first 1 of next-token prediction, 0.5 times through the data" in text
    assert "4 rows at a time" in text and not (tmp_path / "run").exists()
    code, out, _ = run(capsys, "adapt", "--config", str(recipe), "--check", "--stream", "--tokens_per_batch", "500")
    text = " ".join(out.split())
    assert code == 0 and "lab:train, read while training, questions" in text and "up to 500 tokens at a time" in text


@pytest.mark.parametrize(("words", "downloads"), [([], True), (["--stream"], False)])
def test_a_stream_downloads_only_the_held_out_rows_that_it_takes(capsys, recipe, monkeypatch, words, downloads):
    asked = []

    def hub_rows(source, subset, split, *, streaming):
        asked.append((source, subset, split, streaming))
        return iter(ROWS * 9)

    monkeypatch.setattr(sources, "_hub_rows", hub_rows)
    held_out = ["--eval_data", "owner/name", "--eval_subset", "all", "--eval_questions", "3"]
    code, out, _ = run(capsys, "adapt", "--config", str(recipe), "--check", *held_out, *words)
    assert code == 0 and "3 rows of owner/name for evaluation" in " ".join(out.split())
    assert asked == [("owner/name", "all", "test", not downloads)]


def test_adapters_are_adapted_when_they_are_loaded_again(tmp_path, capsys, recipe, converted):
    """Their base says that it was never adapted; what is beside them counts."""
    assert run(capsys, "adapt", "--config", str(recipe), "--lora_rank", "2")[0] == 0
    folder = tmp_path / "run"
    assert (folder / "adapter_config.json").is_file() and not (folder / "model.safetensors").exists()
    loaded, base = load_student(folder), load_student(converted)
    assert loaded.adapted and not base.adapted
    pairs = zip(loaded.model.parameters(), base.model.parameters(), strict=True)
    assert any(not torch.equal(one, two) for one, two in pairs)


@pytest.mark.parametrize("length", [["--max_steps", "4"], ["--max_steps", "-1", "--num_train_epochs", "1"]])
def test_a_run_that_would_never_denoise_is_refused(capsys, recipe, length):
    """16 rows, 4 an update: an epoch has 4 updates."""
    code, _, err = run(capsys, "adapt", "--config", str(recipe), "--check", "--causal_steps", "4", *length)
    assert code == 2 and "causal_steps (4) must be fewer than the updates of the run (4)" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train_data", "nowhere.jsonl"], "train_data: expected a JSON Lines file, found none"),
        (["--train_data", "TORN", "--stream"], "train_data: TORN, line 2: expected a JSON object"),
        (["--stream", "--max_steps", "-1"], "no known length; say with max_steps"),
        (["--verifier="], "train_data: the data has answers"),
        (["--teacher", "lab:teacher-weak"], "--teacher: there is no such option"),
        (["--max_new_tokens", "8"], "do not fit into the budget of 8"),
        (["--tokens_per_batch", "10"], "tokens_per_batch is 10, but a row has"),
        (["--eval_strategy", "epoch"], "eval_strategy asks for evaluations, and there is no eval_data"),
        (["--lora_rank", "2", "--lora_targets", "[no_proj]"], "the adapters cannot be made"),
        (["--student", "lab:teacher-weak"], "autoregressive"),
    ],
)
def test_a_mistake_costs_no_training(tmp_path, capsys, recipe, words, message):
    torn = tmp_path / "torn.jsonl"
    torn.write_text(json.dumps(ROWS[0]) + "\n" + json.dumps(ROWS[1])[:-9])
    words = [word.replace("TORN", str(torn)) for word in words]
    code, _, err = run(capsys, "adapt", "--config", str(recipe), *words)
    assert code == 2 and message.replace("TORN", str(torn)) in err and "Traceback" not in err


def test_a_checkpoint_without_a_mask_token(tmp_path, capsys, recipe, converted):
    """A plain autoregressive folder: adapt names what is missing, as every command that loads a student does."""
    code, _, err = run(capsys, "adapt", "--config", str(recipe), "--student", str(model_path("teacher-weak")))
    assert code == 2 and "forkleft convert" in err


def test_options_and_a_missing_recipe(capsys):
    code, out, _ = run(capsys, "adapt", "--options")
    assert code == 0 and "causal_steps" in out and "mask_shares" in out and "rollout_order" not in out
    code, _, err = run(capsys, "adapt")
    assert code == 2 and adapt._EXAMPLE in err
