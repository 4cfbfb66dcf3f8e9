import pytest
import torch
from naive import read
from tiny import FAMILIES, STOP, family_name, plain_copy, tiny_model, tiny_student, tiny_tokenizer

from forkleft.errors import ForkLeftError
from forkleft.prompts import Reading
from forkleft.study.agreement import agreement
from forkleft.teacher import Teacher
from forkleft.train.prepare import sharing_vocabulary

READINGS = [
    Reading("a", [5, 9, 2], [7, 3, 1, 30, 12, STOP], range(6)),
    Reading("b", [6, 1], [2, 11, STOP], range(3)),
]


def pair(family):
    tokenizer = tiny_tokenizer()
    teacher = Teacher(tiny_model("qwen2", seed=9, dtype=torch.float64), tokenizer, stop_ids=[STOP])
    student = tiny_student(family, tokenizer=tokenizer, dtype=torch.float64)
    return sharing_vocabulary(student, teacher), teacher


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[-1]], ids=family_name)
def test_agreement_equals_one_forward_a_position(family):
    student, teacher = pair(family)
    prompts = [[4, *reading.prompt] for reading in READINGS]
    found = agreement(student, teacher, READINGS, prompts, budget=8, batch_size=1)
    model, kl, same = plain_copy(student), [], []
    for reading, prompt in zip(READINGS, prompts, strict=True):
        for i in reading.positions:
            before = [*reading.prompt, *reading.response[:i]]
            ids = [*before, 39] if family.head == "same" else before
            s = read(model, family, ids, len(reading.prompt), len(before))
            t = teacher.model(input_ids=torch.tensor([[*prompt, *reading.response[:i]]])).logits[0, -1]
            t = t.masked_fill(s.isinf(), -torch.inf).log_softmax(-1)
            kl.append(sum(p.exp() * (p - q) for p, q in zip(t, s, strict=True) if p > -torch.inf).item())
            same.append(bool(t.argmax() == s.argmax()))
    assert found.ids == ["a"] * 6 + ["b"] * 3
    assert found.kl == pytest.approx(kl, rel=1e-10, abs=1e-12)
    assert found.same == same
    assert found.mean_kl.value == pytest.approx(sum(kl) / 9)
    assert found.share_same.low <= found.share_same.value <= found.share_same.high


def test_a_model_agrees_with_itself():
    """A causal model read with a shifted head and blocks of one is its own teacher."""
    from forkleft.students import Family

    tokenizer = tiny_tokenizer()
    student = tiny_student(Family("block", 1, "absolute", "shifted"), tokenizer=tokenizer, dtype=torch.float64)
    teacher = Teacher(plain_copy(student), tokenizer, stop_ids=[STOP])
    found = agreement(sharing_vocabulary(student, teacher), teacher, READINGS, [r.prompt for r in READINGS], budget=8)
    assert max(found.kl) < 1e-12 and all(found.same)


def test_nothing_to_compare():
    student, teacher = pair(FAMILIES[0])
    with pytest.raises(ForkLeftError, match="no position to compare at"):
        agreement(student, teacher, [], [], budget=8)
