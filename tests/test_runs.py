import json
from pathlib import Path

import pytest
import yaml

from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.runs import checkpoint, rows_of

LAB = str(Path(__file__).parents[1] / "recipes" / "lab.yaml")
QUICK = ["--max_steps", "1", "--train_questions", "4", "--per_device_train_batch_size", "4", "--passes", "4"]
QUICK += ["--eval_strategy", "no", "--use_cpu", "--dataloader_pin_memory", "false"]


def test_a_recipe_trains_and_its_result_loads_as_a_student(tmp_path, capsys):
    from forkleft import generate, load_student

    output = tmp_path / "run"
    words = ["train", "--config", LAB, *QUICK, "--output_dir", str(output), "--save_steps", "1"]
    assert main(["answer", *words[1:]]) == 0
    assert "4 questions, 4 answered right (100.0%); 4 new answers in" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 0
    assert {"metrics.jsonl", "traces.jsonl", "README.md", "config.json", "checkpoint-1"} <= {
        path.name for path in output.iterdir()
    }
    kept = yaml.safe_load((output / "recipe.yaml").read_text())
    assert (kept["student"], kept["train_questions"]) == ("lab:student-block", 4)
    for folder in (output, output / "checkpoint-1"):
        student = load_student(folder)
        assert student.family == load_student(checkpoint("lab:student-block")).family
        (written,) = generate(student, [student.tokenizer.encode("a=7;b=a+5;b?")], max_new_tokens=16)
        assert written.text
    # The answers were there: asking again would have appended.
    assert len((output / "teacher_answers.jsonl").read_text().splitlines()) == 4
    assert main(words) == 2
    assert "holds checkpoints of an earlier run" in capsys.readouterr().err
    assert main([*words, "--resume_from_checkpoint", "true"]) == 0


def test_adapters_are_saved_apart_or_merged(tmp_path):
    words = ["train", "--config", LAB, *QUICK, "--save_strategy", "no", "--lora_rank", "2"]
    assert main([*words, "--output_dir", str(tmp_path / "apart")]) == 0
    assert (tmp_path / "apart" / "adapter_model.safetensors").exists()
    assert not (tmp_path / "apart" / "model.safetensors").exists()
    assert main([*words, "--merge_adapters", "--output_dir", str(tmp_path / "merged")]) == 0
    assert (tmp_path / "merged" / "model.safetensors").exists()
    assert not (tmp_path / "merged" / "adapter_model.safetensors").exists()


def test_rows_come_from_files_and_columns_are_renamed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": f"q{k}", "answer": k}) + "\n" for k in range(3)))
    rows = rows_of(str(path), None, "train", 2, {"question": "problem"}, seed=0)
    assert [(row["question"], row["answer"]) for row in rows] == [("q0", 0), ("q1", 1)]
    with pytest.raises(ForkLeftError, match="has no column 'text', there are problem, answer"):
        rows_of(str(path), None, "train", None, {"question": "text"}, seed=0)


def test_rows_of_a_folder_that_datasets_can_read(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "q", "answer": "1"}) + "\n")
    assert rows_of(str(tmp_path), None, "train", None, None, seed=0) == [{"question": "q", "answer": "1"}]
    with pytest.raises(ForkLeftError, match=r"cannot load .* from the hub"):
        rows_of(str(tmp_path), None, "no-such-split", None, None, seed=0)


def test_rows_of_the_lab():
    assert len(rows_of("lab:train", None, "train", 5, None, seed=0)) == 5
    assert len(rows_of("lab:chain-4", None, "test", None, None, seed=0)) == 500
    with pytest.raises(ForkLeftError, match="train_questions how many"):
        rows_of("lab:train", None, "train", None, None, seed=0)
    with pytest.raises(ForkLeftError, match="no data 'chain-9'; there are lab:train"):
        rows_of("lab:chain-9", None, "train", None, None, seed=0)
    with pytest.raises(ForkLeftError, match="no model 'lab:teacher'; there are lab:teacher-strong"):
        checkpoint("lab:teacher")
