import itertools
from types import SimpleNamespace

import pytest
import torch
from exact import assert_exact
from tiny import MASK, tiny_model, tiny_student

from forkleft.students import Family, Student
from forkleft.students.attention import PackedLayout, Replica, Stream, forkleft_attention, may_attend

STREAMS = [
    Stream([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 1, 1], [Replica([3, MASK], 2, 0), Replica([MASK], 4, 1)]),
    Stream([7, 8, 9], [0, 0, 0]),
    Stream([1, 2, 3, 4], [0, 0, 1, 1], [Replica([3, 4, MASK], 2, 1)] * 80),
]


def test_the_rule_in_words():
    """Every pair of tokens, in plain Python."""
    tokens = []
    for question, stream in enumerate(STREAMS[:2]):
        tokens += [(question, None, block) for block in stream.blocks]
        for number, replica in enumerate(stream.replicas):
            tokens += [(question, number, replica.block) for _ in replica.ids]
    columns = [
        torch.tensor([token[0] for token in tokens]),
        torch.tensor([0 if token[1] is None else 1 + token[1] for token in tokens]),
        torch.tensor([token[2] for token in tokens]),
    ]
    found = may_attend(tuple(c[:, None] for c in columns), tuple(c[None, :] for c in columns))
    for (a, query), (b, key) in itertools.product(enumerate(tokens), repeat=2):
        if query[0] != key[0]:
            expected = False
        elif key[1] is not None:  # a replica is seen by itself only
            expected = query[1] == key[1]
        elif query[1] is None:
            expected = key[2] <= query[2]
        else:
            expected = key[2] < query[2]
        assert found[a, b] == expected, (query, key)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_folded_rows_equal_flex_attention():
    """The two ways to compute one rule, with grouped heads; FlexAttention runs unfused here, as on any device."""
    layout = PackedLayout(STREAMS)
    n = len(layout.ids_N)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, heads, n, 16, generator=generator, dtype=torch.float64) for heads in (4, 2, 2))
    rows = layout.attend_rows(query, key, value, 0.25)
    flex = layout.attend_flex(query, key, value, 0.25)
    assert rows.shape == (1, n, 4, 16)
    assert_exact(rows, flex)


@pytest.mark.parametrize("tokens", [[8], [0, 5, 7, 30, 12], [3, 9]], ids=["a replica", "all kinds", "clean only"])
def test_only_tokens_that_are_read_ask_in_the_last_layer(tokens):
    """Their outputs and all gradients are those of the whole attention; the outputs of the others are zero."""
    layout = PackedLayout(STREAMS)
    n = len(layout.ids_N)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, n, 16) for heads in (4, 2, 2)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]
    whole = layout.attend_rows(*inputs, 0.25)
    rows_S = layout.read(tokens)
    assert rows_S.tolist() == tokens
    read = layout.attend_rows(*inputs, 0.25, last=True)
    assert read.shape == whole.shape
    assert_exact(read[:, rows_S], whole[:, rows_S])
    others = sorted(set(range(n)) - set(tokens))
    assert not read[:, others].any()
    for found, expected in zip(
        torch.autograd.grad(read[:, rows_S].square().sum(), inputs),
        torch.autograd.grad(whole[:, rows_S].square().sum(), inputs),
        strict=True,
    ):
        assert_exact(found, expected)


def test_positions_repeat_in_replicas():
    layout = PackedLayout(STREAMS[:1])
    assert layout.ids_N.tolist() == [1, 2, 3, 4, 5, 6, 3, MASK, MASK]
    assert layout.positions_N.tolist() == [0, 1, 2, 3, 4, 5, 2, 3, 4]
    assert (layout.clean_index, layout.replica_index) == ([0], [[6, 8]])


def test_plain_use_of_the_model_stays_intact():
    """A student's module still generates and masks padding as the stock model does."""
    stock = tiny_model(dtype=torch.float64)
    ids = torch.tensor([[38, 38, 5, 9, 2], [4, 5, 6, 7, 8]])
    seen = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    before = stock(input_ids=ids, attention_mask=seen).logits
    student = tiny_student(Family("block", 4), dtype=torch.float64)
    after = student.model(input_ids=ids, attention_mask=seen).logits
    assert_exact(before[seen.bool()], after[seen.bool()])
    stock_written = stock.generate(ids, attention_mask=seen, do_sample=False, max_new_tokens=5)
    assert torch.equal(
        student.model.generate(ids, attention_mask=seen, do_sample=False, max_new_tokens=5), stock_written
    )


@pytest.mark.parametrize("dense", [False, True])
def test_flex_attention_is_for_cuda_and_can_be_switched_off(monkeypatch, dense):
    """Which way is taken; a tensor only says that it is on a GPU."""
    student, taken = tiny_student(Family("block", 4)), []
    student.use_dense_attention(dense)
    assert Student(student.model, student.family, student.vocabulary).dense_attention is dense
    monkeypatch.setattr("forkleft.students.attention._compiled", lambda: ())
    for name in ("attend_flex", "attend_rows"):
        monkeypatch.setattr(PackedLayout, name, lambda self, *tensors, name=name, last=False: taken.append(name))
    layout, there = PackedLayout(STREAMS), SimpleNamespace(device=torch.device("cuda"))
    module = SimpleNamespace(config=student.model.config, layer_idx=0)
    forkleft_attention(module, there, None, None, None, 1.0, forkleft_layout=layout)
    assert taken == ["attend_rows" if dense else "attend_flex"]
