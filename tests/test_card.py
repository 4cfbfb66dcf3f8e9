import re

import yaml
from trainer_runs import ROWS, make_trainer

from forkleft import generate, load_student
from forkleft.card import model_card
from forkleft.lab.models import model_path
from forkleft.students.student import Origin, Student


def test_a_run_leaves_a_card_beside_its_weights(tmp_path):
    trainer = make_trainer(
        tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, trainer={"eval_dataset": ROWS[:3]}
    )
    trainer.train()
    page = (tmp_path / "README.md").read_text()
    assert metadata(page)["library_name"] == "forkleft"
    for told in (
        "1 of 4 questions, 12 in all",
        "0.5, 0.02, 0.1, 0.1",
        "high_entropy, 2 passes a block",
        "% of 3",
        "0.001, constant",
    ):
        assert told in page


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


def test_what_the_hub_is_told(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.create_model_card(license="apache-2.0", tags="maths", dataset="owner/data", finetuned_from="owner/base")
    told = metadata((tmp_path / "README.md").read_text())
    assert (told["license"], told["datasets"], told["base_model"]) == ("apache-2.0", "owner/data", "owner/base")
    assert told["tags"][-1] == "maths"
    assert "forkleft" in told["tags"]


def test_the_card_says_how_to_generate(tmp_path, capsys):
    page = card_of(make_trainer(tmp_path), None)
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    lab = str(model_path("student-block"))
    exec(re.sub(r'load_student\(".*?"\)', f"load_student({lab!r})", code).replace("…", "a=1;b=a+1;b?"), {})
    student = load_student(lab)
    prompt = student.tokenizer.encode("<|user|>a=1;b=a+1;b?<|assistant|>", add_special_tokens=False)
    assert capsys.readouterr().out.strip() == generate(student, [prompt], max_new_tokens=12)[0].text
