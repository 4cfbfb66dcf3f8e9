import pytest
import torch
from exact import assert_exact
from naive import naive_answer, teacher_log_probs
from tiny import MASK, PAD, STOP, VOCABULARY, tiny_model

from forkleft.errors import ForkLeftError
from forkleft.lab.models import load_model
from forkleft.lab.questions import held_out
from forkleft.prompts import Reading
from forkleft.teacher import Teacher, local


def lab_teacher(name="teacher-weak", **settings):
    """In float64: its answers do not hang on how a near tie is rounded."""
    loaded = load_model(name)
    return Teacher(
        loaded.model.double(), loaded.tokenizer, stop_ids=loaded.model.generation_config.eos_token_id, **settings
    )


def conversations(count):
    items = held_out("chain-2", count) + held_out("chain-5", count)
    return [[{"role": "user", "content": item.prompt}] for item in items]


def test_answers_equal_a_loop_without_batches():
    teacher = lab_teacher(batch_size=3)
    stop = set(teacher.stop_ids)
    asked = conversations(4)
    for messages, answer in zip(asked, teacher.answers(asked, max_new_tokens=40), strict=True):
        text = f"<|user|>{messages[0]['content']}<|assistant|>"
        ids = teacher.tokenizer.encode(text, add_special_tokens=False)
        start = len(ids)
        while len(ids) - start < 40 and ids[-1] not in stop:
            ids.append(teacher.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
        assert answer.text == teacher.tokenizer.decode(ids[start:], skip_special_tokens=True)
        assert answer.stopped == (ids[-1] in stop)


def test_an_answer_is_handed_over_when_it_ends_while_others_go_on():
    """Chains of 2 steps end long before those of 5 in the same batch; the answers are the same."""
    teacher, asked, kept = lab_teacher(batch_size=8), conversations(4), []
    forwards = []
    teacher.model.register_forward_hook(lambda *others: forwards.append(None))
    found = teacher.answers(asked, max_new_tokens=60, keep=lambda *one: kept.append((*one, len(forwards))))
    assert sorted((number, answer) for number, answer, _ in kept) == list(enumerate(found))
    assert {number for number, *_ in kept[:4]} == {0, 1, 2, 3}
    assert kept[0][2] < kept[-1][2]
    assert found == lab_teacher(batch_size=8).answers(asked, max_new_tokens=60)


def test_prompts_of_like_length_share_a_batch_and_long_ones_are_not_left_to_the_end(monkeypatch):
    monkeypatch.setattr(local, "_BATCHES_SORTED", 2)
    teacher, sizes = lab_teacher(batch_size=2), []

    def write(prompts, budget, ended, *, at_once):
        sizes.append([len(prompt) for prompt in prompts])
        for row in range(len(prompts)):
            ended(row, [teacher.stop_ids[0]])

    monkeypatch.setattr(teacher, "_write", write)
    long, short = ([{"role": "user", "content": text}] for text in ("a=1;b=a+1;b?", "a=1;a?"))
    teacher.answers([long, short] * 4, max_new_tokens=1)
    low, high = min(sizes), max(sizes)
    assert low[0] == low[1] < high[0] == high[1]
    assert sizes == [low, high, low, high]


def test_a_budget_that_is_too_short():
    for keep in (None, lambda number, answer: None):
        answers = lab_teacher().answers(conversations(2), max_new_tokens=5, keep=keep)
        assert not any(answer.stopped for answer in answers)


def test_checkpoints_that_like_to_sample_or_to_penalise_still_answer_greedily():
    teacher, strange = lab_teacher(), lab_teacher()
    strange.model.generation_config.update(
        do_sample=True, temperature=5.0, top_k=3, top_p=0.5, repetition_penalty=3.0, no_repeat_ngram_size=2
    )
    asked = conversations(3)
    assert strange.answers(asked, max_new_tokens=40) == teacher.answers(asked, max_new_tokens=40)


@pytest.mark.parametrize("architecture", ["qwen2", "llama", "qwen3_moe"])
def test_hidden_states_give_the_distributions_of_one_forward_a_position(architecture):
    model = tiny_model(architecture, vocab_size=VOCABULARY + 2, dtype=torch.float64)
    teacher = Teacher(model, None, stop_ids=[STOP], batch_size=2)
    asked = [
        Reading("q", [5, 9, 2], [7, 3, 1, 30, STOP], [0, 2, 4]),
        Reading("q", [7], [1, 2, 3], [2]),
        Reading("q", [3, 1, 4, 1], naive_answer(model, [3, 1, 4, 1], budget=6), [1, 0]),
        Reading("q", [3, 3], [9, 9], []),
    ]
    for reading, hidden_SE in zip(asked, teacher.hidden(asked), strict=True):
        assert len(hidden_SE) == len(reading.positions)
        logits_SV = (hidden_SE @ teacher.head_weight.T)[:, :VOCABULARY].index_fill(
            1, torch.tensor([MASK, PAD]), -torch.inf
        )
        for i, found in zip(reading.positions, logits_SV.log_softmax(-1), strict=True):
            assert_exact(found, teacher_log_probs(model, reading.prompt, reading.response, i))


def test_a_teacher_is_frozen():
    teacher = lab_teacher()
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    (hidden,) = teacher.hidden([Reading("q", [1], [2, 3], [1])])
    assert not hidden.requires_grad


def test_identity_follows_weights_and_stop_ids():
    one, two = lab_teacher(), lab_teacher()
    assert one.identity == two.identity
    changed = lab_teacher()
    with torch.no_grad():
        changed.model.model.layers[1].mlp.up_proj.weight += 1e-3
    assert changed.identity != one.identity
    loaded = load_model("teacher-weak")
    assert Teacher(loaded.model, loaded.tokenizer, stop_ids=[1]).identity != one.identity


def test_damaged_weights_are_told_as_such():
    teacher = Teacher(tiny_model(), None, stop_ids=[STOP])
    with torch.no_grad():
        teacher.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(ForkLeftError, match=r"logits of the teacher .* are not finite"):
        teacher.hidden([Reading("q", [1], [2, 3], [1])])


def test_logits_that_are_more_than_a_product_are_refused():
    teacher = Teacher(tiny_model(), None, stop_ids=[STOP])
    teacher.model.lm_head.register_forward_hook(lambda module, inputs, out: 30 * torch.tanh(out / 3))
    with pytest.raises(ForkLeftError, match="changes its logits behind the output head"):
        teacher.hidden([Reading("q", [1], [2, 3], [1])])
