import re

import yaml
from trainer_runs import ROWS, make_trainer

from forkleft import generate, load_student, load_teacher
from forkleft.students.student import Origin, Student
from forkleft.train.card import model_card


def test_a_run_leaves_a_card_beside_its_weights(tmp_path):
    trainer = make_trainer(
        tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, trainer={"eval_dataset": ROWS[:3]}
    )
    trainer.train()
    page = (tmp_path / "README.md").read_text()
    assert metadata(page)["library_name"] == "forkleft"
    for text in (
        "1 of 4 questions, 12 in all",
        "0.5, 0.02, 0.1, 0.1",
        "high_entropy, 2 passes a block",
        "% of 3, at update 1, static decoding",
        "0.001, constant",
    ):
        assert text in page


def metadata(page):
    assert page.startswith("---\n")
    return yaml.safe_load(page.split("---\n")[1])


def card_of(trainer, source, **settings):
    student = trainer.student
    origin = None if source is None else Origin(source, None, {})
    student = Student(student.model, student.family, student.vocabulary, student.tokenizer, origin)
    return model_card(student, trainer.teacher, trainer.args, 12, trainer.state, **settings)


def test_the_base_model_is_named_where_others_can_find_it(tmp_path):
    trainer = make_trainer(tmp_path)
    page = card_of(trainer, "JetLM/SDAR-4B-Chat@main")
    assert metadata(page)["base_model"] == "JetLM/SDAR-4B-Chat"
    assert "`JetLM/SDAR-4B-Chat` taught by `Qwen2ForCausalLM`" in page
    (tmp_path / "own" / "student").mkdir(parents=True)
    page = card_of(trainer, str(tmp_path / "own" / "student"))
    assert "base_model" not in metadata(page)
    assert "`student` taught by" in page
    assert str(tmp_path / "own") not in page


def test_models_of_the_lab_are_named_as_they_are_loaded(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.teacher = load_teacher("lab:teacher-strong")
    page = card_of(trainer, "lab:student-block")
    assert "`lab:student-block` taught by `lab:teacher-strong` with" in page
    assert "base_model" not in metadata(page)


def test_a_gguf_teacher_is_named_by_its_file(tmp_path):
    trainer = make_trainer(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small-q8.gguf").touch()
    for name, text in (
        (str(tmp_path / "models" / "small-q8.gguf"), "small-q8.gguf"),
        ("owner/models/small-q8.gguf", "owner/models/small-q8.gguf"),
    ):
        trainer.teacher.model.config.name_or_path = name
        assert f"taught by `{text}` with" in card_of(trainer, "lab:student-block")


def test_what_the_hub_is_told(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.create_model_card(license="apache-2.0", tags="maths", dataset="owner/data", finetuned_from="owner/base")
    header = metadata((tmp_path / "README.md").read_text())
    assert (header["license"], header["datasets"], header["base_model"]) == ("apache-2.0", "owner/data", "owner/base")
    assert header["tags"][-1] == "maths"
    assert "forkleft" in header["tags"]


def test_the_code_in_the_card_runs_as_it_stands_where_the_training_was_started(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_trainer('runs/it\'s "one"', max_steps=1, prompt_template="ask\n{question}\t{}").train()
    capsys.readouterr()
    (code,) = re.findall(r"```python\n(.*?)```", next(tmp_path.glob("runs/*/README.md")).read_text(), re.DOTALL)
    exec(code, {})
    student = load_student(next(tmp_path.glob("runs/*")))
    prompt = student.tokenizer.encode("ask\na=7;b=a+5;c=b-a;c?\t{}", add_special_tokens=False)
    assert capsys.readouterr().out == generate(student, [prompt], max_new_tokens=12)[0].text + "\n"


def test_the_question_in_the_card_is_of_the_kind_that_the_student_learned(tmp_path):
    trainer = make_trainer(tmp_path)
    kinds = {"math": "How many", "opdlm": "How many", "choice": "\\nA. 4\\nB. 6", "lab": "a=7;", "exact": "a=7;"}
    for verifier, text in kinds.items():
        trainer.args.verifier = verifier
        (question,) = re.findall(r"question = (.*)", card_of(trainer, None))
        assert text in question
        assert f"| verifier | {verifier} |" in card_of(trainer, None)


def test_a_model_of_the_hub_is_named_so(tmp_path):
    trainer = make_trainer(tmp_path / "run", hub_model_id="someone/model")
    # Nothing is uploaded unless it is asked for.
    page = card_of(trainer, None, adapters=True)
    assert f'load_student("{tmp_path / "run"}")' in page and "someone/model" not in page
    page = card_of(trainer, "owner/base", hub_id="someone/model", adapters=True)
    assert 'load_student("someone/model")' in page
    assert "adapters of `owner/base`" in page
    assert "forkleft merge --model someone/model --output model-whole\n" in page
    assert "where the training was started" not in page and str(tmp_path) not in page
