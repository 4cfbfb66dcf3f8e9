import pytest
from tiny import STOP
from trainer_runs import make_trainer

from forkleft import prompts
from forkleft.errors import ForkLeftError
from forkleft.train.data import Example
from forkleft.train.prepare import reference_ids, with_ids


@pytest.fixture
def trainer(tmp_path):
    return make_trainer(tmp_path, max_steps=2)


def test_every_question_has_its_ids_for_both_models(trainer):
    tokenizer = trainer.student.tokenizer
    for example in trainer.train_dataset:
        assert list(example.prompt) == prompts.prompt_ids(tokenizer, example.messages)
        assert list(example.teacher_prompt) == prompts.prompt_ids(trainer.teacher.tokenizer, example.messages)
        assert list(example.reference_ids) == [*tokenizer.encode(example.reference), STOP]


def test_nothing_is_rendered_again_in_an_update(trainer, monkeypatch):
    """But for the teacher's own answers: both models share a tokenizer here, and it renders each question once."""
    rendered = []
    render = trainer.student.tokenizer.apply_chat_template

    def counted(messages, **settings):
        rendered.append(messages[0]["content"])
        return render(messages, **settings)

    monkeypatch.setattr(trainer.student.tokenizer, "apply_chat_template", counted)
    trainer.train()
    # Two updates of four questions.
    assert len(rendered) == len(set(rendered)) == 8


def test_a_reference_is_cut_to_the_budget_and_stops_only_if_it_is_whole(trainer):
    assert list(reference_ids(trainer.student, "xyz", 4))[-1] == STOP
    assert STOP not in reference_ids(trainer.student, "xyz", 3)
    assert STOP not in reference_ids(trainer.student, "xyz", 4, stops=False)


def test_questions_that_cannot_be_asked_are_named(trainer):
    long = Example("q", ({"role": "user", "content": "a" * 200},), "1", None)
    with pytest.raises(ForkLeftError, match=r"question q: a prompt of 200 tokens .* exceed the student's context"):
        with_ids(trainer.student, trainer.teacher, [long], trainer.args)
    trainer.args.long_prompts = "skip"
    with pytest.raises(ForkLeftError, match="no question of 1 can be asked"):
        with_ids(trainer.student, trainer.teacher, [long], trainer.args)
