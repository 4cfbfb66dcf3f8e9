import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from reports import made_up_run

from forkleft.cli import main, runs
from forkleft.cli.runs import end_message
from forkleft.cli.sources import rows_of
from forkleft.errors import StoppedError
from forkleft.train.recipes import Recipe

LAB = str(Path(__file__).parents[2] / "recipes" / "lab.yaml")
QUICK = ["--max_steps", "1", "--train_questions", "4", "--questions_per_update", "4", "--passes", "4"]
QUICK += ["--showcase_questions", "1"]
QUICK += ["--eval_strategy", "no", "--use_cpu", "--dataloader_pin_memory", "false"]


def test_a_recipe_trains_and_its_result_loads_as_a_student(tmp_path, capsys):
    from forkleft import generate, load_student

    output = tmp_path / "run"
    words = ["train", "--config", LAB, *QUICK, "--output_dir", str(output), "--save_steps", "1"]
    assert main(["answer", *words[1:]]) == 0
    assert "4 questions, 4 answered right (100.0%); 4 new answers in" in " ".join(capsys.readouterr().out.split())
    assert main(words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {output}/report.html"
    names = ("metrics.jsonl", "curves.png", "traces.jsonl", "showcase.jsonl", "report.html", "README.md", "config.json")
    assert {*names, "checkpoint-1"} <= {path.name for path in output.iterdir()}
    kept = (output / "recipe.yaml").read_text()
    for folder in (output, output / "checkpoint-1"):
        student = load_student(folder)
        assert student.family == load_student("lab:student-block").family
        (written,) = generate(student, [student.tokenizer.encode("a=7;b=a+5;b?")], max_new_tokens=16)
        assert written.text
    # The answers were there: asking again would have appended.
    assert len((output / "teacher_answers.jsonl").read_text().splitlines()) == 4
    assert main([*words, "--rho", "0.9"]) == 2
    assert "holds a finished run" in capsys.readouterr().err
    assert main([*words, "--resume_from_checkpoint", "true"]) == 0
    assert (output / "recipe.yaml").read_text() == kept
    again = tmp_path / "again"
    assert main(["train", "--config", str(output / "recipe.yaml"), "--output_dir", str(again)]) == 0
    assert (again / "model.safetensors").read_bytes() == (output / "model.safetensors").read_bytes()


def test_a_run_ends_with_the_path_of_its_report(tmp_path, capsys, caplog, monkeypatch):
    folder = made_up_run(tmp_path / "run")
    runs.end(folder)
    assert capsys.readouterr().out.splitlines()[-1] == f"report: {folder}/report.html"
    assert (folder / "report.html").is_file()

    def fails(paths):
        raise RuntimeError("no room")

    # The run itself is not failed by that.
    monkeypatch.setattr(runs, "write_report", fails)
    runs.end(folder)
    assert "report:" not in capsys.readouterr().out
    assert "the run is complete, but its report could not be written: no room" in caplog.text


def test_the_end_names_what_there_is_in_80_columns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/a")
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").touch()
    assert end_message(folder) == "runs/a: the model, its card and metrics.jsonl"
    (folder / "curves.png").touch()
    for step in (2, 4, 10):
        (folder / f"checkpoint-{step}").mkdir()
    assert end_message(folder).splitlines() == [
        "runs/a: the model, its card, metrics.jsonl, curves.png, checkpoint-2,",
        "  checkpoint-4 and checkpoint-10",
    ]


@pytest.mark.parametrize("file", [None, "small-q8.gguf"])
def test_a_teacher_of_a_gguf_file_has_its_name(monkeypatch, file):
    """Whether the file is named itself, or its folder and it."""
    model = SimpleNamespace(config=SimpleNamespace(name_or_path="models"))
    monkeypatch.setattr(runs, "load_teacher", lambda *given, **settings: SimpleNamespace(model=model))
    said = Recipe(teacher="models" if file else "models/small-q8.gguf", teacher_gguf_file=file)
    assert runs.teacher_of(said, None).model.config.name_or_path == "models/small-q8.gguf"


@pytest.mark.slow
def test_a_recipe_names_a_verifier_of_the_user_s(tmp_path, capsys, monkeypatch):
    code = "from forkleft import Verifier\n\ndef mine(responses, answers):\n"
    (tmp_path / "my_judges.py").write_text(code + "    return Verifier('exact').judge(responses, answers)\n")
    recipe, output = tmp_path / "mine.yaml", tmp_path / "run"
    recipe.write_text(Path(LAB).read_text().replace("verifier: exact", "verifier: my_judges:mine"))
    words = ["--config", str(recipe), *QUICK, "--output_dir", str(output), "--trust-verifier"]
    assert main(["train", *words]) == 2
    assert "cannot take the verifier my_judges:mine: ModuleNotFoundError" in capsys.readouterr().err
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["answer", *words]) == 0
    assert "4 questions, 4 answered right (100.0%)" in " ".join(capsys.readouterr().out.split())
    assert main(["train", *words]) == 0
    assert "| verifier | my_judges:mine |" in (output / "README.md").read_text()
    assert "verifier: my_judges:mine\n" in (output / "recipe.yaml").read_text()
    # The recipe of the run is a file like any other, also when the run goes on.
    again = ["train", "--config", str(output / "recipe.yaml"), "--resume_from_checkpoint", "true", "--max_steps", "2"]
    assert main(again) == 2
    assert f"{output}/recipe.yaml names the verifier my_judges:mine, whose code would run" in capsys.readouterr().err
    assert main([*again, "--trust-verifier"]) == 0
    assert json.loads((output / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 2


def test_a_stopped_run_says_what_its_recipe_needs(tmp_path):
    said = {"verifier": "my_judges:mine", "trust_remote_code": True}
    with pytest.raises(StoppedError) as stopped, runs.saying_how_to_resume("train", tmp_path, said):
        raise StoppedError("stopped", step=3, number=15)
    assert str(stopped.value) == (
        f"stopped; to go on: forkleft train --config {tmp_path}/recipe.yaml --resume_from_checkpoint true "
        "--trust-verifier --trust-remote-code"
    )


@pytest.mark.parametrize(
    ("here", "processes", "expected"),
    [
        ("1", "1", "forkleft"),
        ("4", "4", "torchrun --standalone --nproc-per-node 4 -m forkleft"),
        (
            "4",
            "8",
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nproc-per-node 4 -m forkleft",
        ),
    ],
)
def test_a_stopped_run_of_several_processes_says_how_they_were_started(
    tmp_path, monkeypatch, here, processes, expected
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    monkeypatch.setenv("WORLD_SIZE", processes)
    resumed = f"to go on: {expected} train --config"
    with pytest.raises(StoppedError, match=resumed), runs.saying_how_to_resume("train", tmp_path, {}):
        raise StoppedError("stopped", step=3, number=15)


@pytest.mark.slow
def test_a_run_of_the_paper_as_shipped_starts_and_its_result_is_evaluated_without_options(tmp_path, capsys):
    """A recipe of Efficient-DLM, with tiny models in the formats of the real ones."""
    from checkpoints_on_disk import write_autoregressive, write_checkpoint

    from forkleft.evaluate.evaluation import load_evaluated

    written = write_checkpoint(tmp_path / "student", "efficient-dlm", tied=True)
    write_autoregressive(tmp_path / "teacher")
    (tmp_path / "rows.jsonl").write_text('{"problem": "1+1?", "answer": "2", "solution": "2"}\n')
    template = Path(LAB).parent / "templates" / "efficient-dlm.jinja"
    output = tmp_path / "run"
    words = ["--config", str(Path(LAB).parent / "edlm-4b-qwen3-30b.yaml"), "--output_dir", str(output)]
    words += ["--student", str(written.folder), "--mask_token", written.settings["mask_token"]]
    words += ["--teacher", str(tmp_path / "teacher"), "--teacher_device_map=", "--teacher_dtype", "float32"]
    words += ["--train_data", str(tmp_path / "rows.jsonl"), "--fsdp", "false", "--bf16", "false", "--use_cpu"]
    words += ["--max_new_tokens", "16", "--teacher_max_new_tokens", "16", "--passes", "2", "--verifier", "lab"]
    words += ["--prompt_template", "{question}".join("''"), "--dataloader_pin_memory", "false"]
    words += [
        "--max_steps",
        "1",
        "--save_steps",
        "1",
        "--save_at",
        "[]",
        "--per_device_train_batch_size",
        "1",
        "--trace_steps",
        "0",
    ]
    assert main(["answer", *words]) == 0
    assert main(["train", *words]) == 0
    for folder in (output, output / "checkpoint-1"):
        model = load_evaluated(folder)
        assert model.tokenizer.chat_template == template.read_text()
        assert model.vocabulary.stop_ids[0] == written.stop_ids[0]
        assert model.family.name == "efficient-dlm"
    capsys.readouterr()
    data = tmp_path / "gsm8k.jsonl"
    data.write_text('{"id": "q", "question": "1+1?", "answer": "2"}\n')
    asked = ["eval", "--benchmark", "gsm8k", "--data", str(data), "--max-new-tokens", "8", "--device", "cpu"]
    assert main([*asked, "--model", str(output), "--output", str(tmp_path / "after")]) == 0
    # The base has no template: the row of the main table before training needs the same.
    base = [*asked, "--model", str(written.folder), "--mask-token", written.settings["mask_token"]]
    assert main([*base, "--output", str(tmp_path / "base")]) == 2
    assert "--chat-template" in capsys.readouterr().err
    assert main([*base, "--output", str(tmp_path / "base"), "--chat-template", str(template)]) == 0
    told = [json.loads((tmp_path / name / "gsm8k" / "summary.json").read_text()) for name in ("base", "after")]
    assert len({one["configuration"]["model"]["chat_template"] for one in told}) == 1
    records = [(tmp_path / name / "gsm8k" / "records.jsonl").read_text() for name in ("base", "after")]
    assert len({json.loads(text)["prompt"] for text in records}) == 1


def test_answers_are_asked_for_the_questions_that_training_asks(tmp_path, capsys):
    data = tmp_path / "rows.jsonl"
    rows = [{"question": "a=4;b=a+a;c=6*b;d=c+9;d?", "answer": "7"}, {"question": "a=4;" * 200 + "a?", "answer": "4"}]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["answer", "--config", LAB, *QUICK, "--train_data", str(data), "--output_dir", str(tmp_path / "run")]
    words += ["--verifier", "lab", "--columns="]
    assert main(words) == 2
    assert "exceed the student's context of 512" in capsys.readouterr().err
    assert main([*words, "--long_prompts", "skip"]) == 0
    assert "1 questions, 1 answered right (100.0%); 1 new answers in" in " ".join(capsys.readouterr().out.split())


def test_answering_is_told_in_plain_lines_where_there_is_no_terminal(tmp_path, capsys, monkeypatch):
    """The first answer and the last, and that the teacher is at work while none comes."""
    from forkleft import progress
    from forkleft.teacher import Answer, Teacher

    monkeypatch.setattr(progress, "_PULSE_SECONDS", 0.01)
    monkeypatch.setattr(progress, "_LONG_SECONDS", 0.05)
    told = []

    def answers(teacher, conversations, *, max_new_tokens, keep):
        for number in range(len(conversations)):
            time.sleep(0.5 if number == 0 else 0.0)
            told.append(capsys.readouterr().out)
            keep(number, Answer("#0", stopped=True))

    monkeypatch.setattr(Teacher, "answers", answers)
    assert main(["answer", "--config", LAB, *QUICK, "--output_dir", str(tmp_path)]) == 0
    told.append(capsys.readouterr().out)
    assert re.fullmatch(r"question 1 of 4  0:00:\d\d gone  teacher \d+ s\n", told[0])
    # Within seconds of the line before nothing more is said, but for the last one.
    assert told[1:4] == ["", "", ""]
    assert re.match(r"question 4 of 4  0:00:\d\d gone\n4 questions, ", told[4])


@pytest.mark.slow
def test_several_processes_answer_and_tell_once(tmp_path):
    """Three for two questions: one has nothing to do."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "--master-port", "0"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "-m", "forkleft"]
    words = ["answer", "--config", LAB, *QUICK, "--train_questions", "2", "--output_dir", str(tmp_path)]
    done = subprocess.run([*launch, *words], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    told = " ".join(done.stdout.split())
    assert told.count("questions,") == 1
    assert "2 questions, 2 answered right (100.0%); 2 new answers in" in told


def test_a_server_answers_without_the_teachers_weights(tmp_path, capsys, monkeypatch):
    """It is told what ends the answers of both models."""
    from forkleft import progress
    from forkleft.cli import runs
    from forkleft.teacher import Answer, AnswerServer

    asked = []

    def answers(server, conversations, *, max_new_tokens, keep):
        asked.append(server)
        for number in range(len(conversations)):
            keep(number, Answer("#0", stopped=True))

    monkeypatch.setattr(AnswerServer, "answers", answers)
    monkeypatch.setattr(AnswerServer, "check", lambda server: None)
    monkeypatch.setenv("FORKLEFT_ANSWERS_API_KEY", "secret-7\n")
    monkeypatch.setattr(progress, "_PLAIN_SECONDS", -1.0)
    loaded = runs.teacher_of
    teachers = []
    monkeypatch.setattr(
        runs, "teacher_of", lambda *given, **how: teachers.append(loaded(*given, **how)) or teachers[-1]
    )
    words = ["answer", "--config", LAB, *QUICK, "--answers_url", "http://localhost:9/v1", "--answers_model", "strong"]
    words += ["--answers_timeout", "20", "--answers_attempts", "2", "--answers_concurrency", "3"]
    assert main([*words, "--output_dir", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert [f"question {k} of 4  " in told for k in (1, 2, 3, 4)] == [True] * 4
    assert "4 new answers in" in told
    (server,) = asked
    assert (server.model, server.stop) == ("strong", ("<|endoftext|>", "<|im_end|>"))
    assert (server.timeout, server.attempts, server.concurrency, server.api_key) == (20.0, 2, 3, "secret-7")
    assert [teacher.model.device.type for teacher in teachers] == ["meta"]
    assert "secret-7" not in told + "".join(path.read_text() for path in tmp_path.iterdir())


@pytest.fixture
def served_teacher():
    """The teacher of the lab's recipe on a server that restarts now and then."""
    from state_servers import FakeVllm, serving

    from forkleft.lab.models import model_path
    from forkleft.students.autoregressive import load_causal_lm

    fake = FakeVllm(load_causal_lm(model_path("teacher-strong"))[0], name="lab:teacher-strong")
    with serving(fake) as url:
        yield fake, url


def losses_of(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["kl"], row["teacher_entropy"], row["grad_norm"]) for row in rows if "loss" in row]


@pytest.mark.slow
def test_a_teacher_on_a_server_teaches_the_same(tmp_path, capsys, monkeypatch, served_teacher):
    """Answers first, without its server; then the training, without anybody who answers."""
    from state_servers import hang_up

    fake, url = served_teacher
    monkeypatch.setenv("FORKLEFT_TEACHER_API_KEY", "secret-7\n")
    words = ["--config", LAB, *QUICK, "--max_steps", "3", "--trace_steps", "2", "--supervision", "opd"]
    words += ["--save_strategy", "no", "--per_device_train_batch_size", "2"]
    assert main(["train", *words, "--output_dir", str(tmp_path / "local")]) == 0
    words += ["--answer_cache", str(tmp_path / "answers.jsonl"), "--output_dir", str(tmp_path / "remote")]
    remote = ["train", *words, "--teacher_url", url]
    assert main(remote) == 2
    told = capsys.readouterr().err
    assert "4 of 4 questions have no answer of the teacher in" in told
    assert "forkleft answer with the same recipe" in told
    assert main(["answer", *words, "--teacher_url", "http://127.0.0.1:9"]) == 0
    assert main([*remote, "--check"]) == 0
    assert f"on {url}, except its output head" in capsys.readouterr().out
    fake.asked.clear()
    # The last is in the middle of an update; the first two may fail within the same request.
    fake.faults = [lambda *request: False] * 4 + [hang_up] * 2 + [lambda *request: False] * 12 + [hang_up]
    assert main(remote) == 0
    assert not fake.faults
    assert set(fake.keys) == {"Bearer secret-7"}
    ours, theirs = losses_of(tmp_path / "remote"), losses_of(tmp_path / "local")
    assert len(ours) == 3
    for row, other in zip(ours, theirs, strict=True):
        assert row == pytest.approx(other, rel=1e-3)
    rows = [json.loads(line) for line in (tmp_path / "remote" / "metrics.jsonl").read_text().splitlines()]
    assert all("seconds_wait" in row for row in rows if "loss" in row)
    written = "".join(
        path.read_text()
        for path in (tmp_path / "remote").iterdir()
        if path.suffix != ".safetensors" and path.suffix != ".png" and path.is_file()
    )
    assert "secret-7" not in written + capsys.readouterr().out


@pytest.mark.slow
def test_a_question_that_the_server_cannot_read_ends_the_run_by_name(tmp_path, capsys, served_teacher):
    from state_servers import refuse

    fake, url = served_teacher
    words = ["--config", LAB, *QUICK, "--supervision", "opd", "--output_dir", str(tmp_path), "--teacher_url", url]
    assert main(["answer", *words]) == 0
    fake.change = lambda hidden_TE: 2 * hidden_TE
    assert main(["train", *words]) == 2
    assert "does not serve the teacher: expected hidden states that came out of" in capsys.readouterr().err
    fake.change = lambda hidden_TE: hidden_TE
    # Four texts are read at the beginning, and once more before the responses of the first update.
    fake.faults = [lambda *request: False] * 8 + [refuse(400, "out of vocabulary")] * 4
    assert main(["train", *words, "--teacher_concurrency", "1"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(rf"question \S+ \(\w+\): no hidden states from {url} .*HTTP 400: .*out of vocabulary", told)


def test_a_server_with_less_room_than_the_questions_need(tmp_path, capsys, served_teacher):
    fake, url = served_teacher
    fake.context = 70
    words = ["--config", LAB, *QUICK, "--output_dir", str(tmp_path), "--teacher_url", url]
    assert main(["train", *words, "--check"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(r"a response of up to 64 exceed the teacher server's context of 70; shorten", told)


@pytest.mark.slow
def test_a_server_that_answers_may_be_gone_once_all_answers_are_there(tmp_path, capsys, monkeypatch, served_teacher):
    """First a server that generates, then, on the same machine, one that reads."""
    from forkleft.teacher import AnswerServer, load_teacher

    fake, url = served_teacher
    teacher = load_teacher("lab:teacher-strong")

    def answers(server, conversations, **settings):
        return teacher.answers(conversations, **settings)

    words = ["--config", LAB, *QUICK, "--output_dir", str(tmp_path), "--teacher_url", url]
    words += ["--answers_url", "http://127.0.0.1:9/v1"]
    assert main(["train", *words]) == 2
    assert "cannot reach http://127.0.0.1:9/v1" in capsys.readouterr().err
    with monkeypatch.context() as patched:
        patched.setattr(AnswerServer, "answers", answers)
        patched.setattr(AnswerServer, "check", lambda server: None)
        assert main(["answer", *words]) == 0
    assert not fake.asked
    assert main(["train", *words]) == 0


@pytest.mark.slow
def test_adapters_are_saved_apart_or_merged(tmp_path, capsys, monkeypatch):
    """Apart, they are used like any model, from any folder; merged afterwards, they are what merging at once gives."""
    monkeypatch.chdir(tmp_path)
    words = ["train", "--config", LAB, *QUICK, "--save_strategy", "no", "--lora_rank", "2"]
    assert main([*words, "--output_dir", "runs/apart"]) == 0
    apart, merged = tmp_path / "runs" / "apart", tmp_path / "runs" / "merged"
    assert (apart / "adapter_model.safetensors").exists()
    assert not (apart / "model.safetensors").exists()
    # A pickle, of use to nobody.
    assert not (apart / "training_args.bin").exists()
    assert main([*words, "--merge_adapters", "--output_dir", "runs/merged"]) == 0
    assert (merged / "model.safetensors").exists()
    assert not (merged / "adapter_model.safetensors").exists()
    # As the card says, and as it stands there.
    capsys.readouterr()
    (code,), (command,) = (
        re.findall(rf"```{kind}\n(.*?)```", (apart / "README.md").read_text(), re.DOTALL) for kind in ("python", "bash")
    )
    exec(code, {})
    written = capsys.readouterr().out
    assert "forkleft merge" not in (merged / "README.md").read_text()
    assert main(shlex.split(command)[1:]) == 0
    assert "runs/apart-whole: a whole model, the adapters of" in capsys.readouterr().out
    for path in (tmp_path / "runs" / "apart-whole").iterdir():
        assert path.read_bytes() == (merged / path.name).read_bytes(), path.name
    monkeypatch.chdir("/")
    for folder in (apart, merged):
        model = ["--model", str(folder), "--device", "cpu"]
        assert main(["generate", *model, "--prompt", "a=7;b=a+5;c=b-a;c?", "--max-new-tokens", "64"]) == 0
        assert capsys.readouterr().out == written
        words = ["--benchmark", "lab-chain-2", "--limit", "4", "--output", str(tmp_path / "results" / folder.name)]
        assert main(["eval", *model, *words]) == 0
    capsys.readouterr()
    assert main(["compare", *(str(tmp_path / "results" / name) for name in ("apart", "merged")), "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["items"], row["only_a"], row["only_b"]) == (4, 0, 0)
    assert main(["doctor", "--model", str(apart), "--device", "cpu"]) == 0


def test_a_run_on_the_questions_that_another_had_on_a_route(tmp_path, capsys):
    routes = tmp_path / "routes.jsonl"
    words = ["answer", "--config", LAB, *QUICK, "--train_ids", str(routes), "--train_route", "LEFTOPD"]
    words += ["--output_dir", str(tmp_path)]
    ids = [row["id"] for row in rows_of("lab:train", None, "train", 4, None, seed=1)]
    told = ["LEFTOPD", "CE", "CE", "LEFTOPD"]
    routes.write_text(json.dumps({"step": 1, "ids": ids, "routes": told}) + "\n")
    assert main(words) == 0
    assert "2 questions, 2 answered right" in capsys.readouterr().out
    routes.write_text(json.dumps({"step": 1, "ids": [*ids, "elsewhere"], "routes": [*told, "LEFTOPD"]}) + "\n")
    assert main(words) == 2
    assert "1 of 3 ids are not in the data: elsewhere" in capsys.readouterr().err
    assert main([*words, "--train_ids="]) == 2
    assert "train_route is of the routes.jsonl that train_ids names" in capsys.readouterr().err


@pytest.mark.slow
def test_columns_are_those_of_one_data_set(tmp_path, monkeypatch):
    rows = [{"problem": "a=4;b=a+a;b?", "answer": "8"}]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["train", "--config", LAB, *QUICK, "--save_strategy", "no", "--eval_at", "[1]"]
    ours, theirs = ["--train_data", str(data), "--columns", "{question: problem}"], ["--eval_data", str(data)]
    assert main([*words, *ours, "--eval_questions", "2", "--output_dir", str(tmp_path / "one")]) == 0
    theirs += ["--eval_columns", "{question: problem}"]
    assert main([*words, *theirs, "--output_dir", str(tmp_path / "two")]) == 0
