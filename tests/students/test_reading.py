import copy

import pytest
import torch
from exact import assert_exact
from tiny import ARCHITECTURES, MASK, tiny_model, tiny_student

from forkleft.students import Family
from forkleft.students.attention import PackedLayout, Replica, Stream

STREAMS = [Stream([1, 2, 3, 4, 5, 6], [-1, -1, 0, 0, 1, 1], [Replica([3, MASK], 2, 0), Replica([MASK, MASK], 4, 1)])]
# Out of order, and one of them in the clean stream.
ROWS = [9, 7, 3]


def whole_hidden(student, layout):
    """The hidden states of all tokens, by the stock layers: no rows are named."""
    out = student.model.base_model(
        input_ids=layout.ids_N[None],
        position_ids=layout.positions_N[None],
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool),
        use_cache=False,
        forkleft_layout=layout,
    )
    return out.last_hidden_state[0]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_rows_equal_those_of_the_whole_forward(architecture, checkpointing):
    """Values and the gradient of every parameter, for each supported class."""
    student = tiny_student(Family("block", 2), architecture, dtype=torch.float64)
    if checkpointing:
        student.model.gradient_checkpointing_enable()
        student.model.train()
    layout = PackedLayout(STREAMS)
    whole = whole_hidden(student, layout)[ROWS]
    read = student.hidden(layout.ids_N, layout.positions_N, layout, layout.read(ROWS))
    assert_exact(read, whole)
    parameters = [x for name, x in student.model.named_parameters() if x.requires_grad and "lm_head" not in name]
    for found, expected in zip(
        torch.autograd.grad(read.square().sum(), parameters, allow_unused=True),
        torch.autograd.grad(whole.square().sum(), parameters, allow_unused=True),
        strict=True,
    ):
        assert (found is None) == (expected is None)
        if found is not None:
            assert_exact(found, expected)


def test_a_copy_of_the_model_reads_with_its_own_weights():
    student = tiny_student(Family("block", 2), dtype=torch.float64)
    twin = copy.deepcopy(student.model)
    with torch.no_grad():
        for parameter in twin.base_model.layers[-1].parameters():
            parameter.zero_()
    other = student.but()
    other.model = twin
    layout = PackedLayout(STREAMS)
    rows = layout.read(ROWS)
    mine, copied = (x.hidden(layout.ids_N, layout.positions_N, layout, rows) for x in (student, other))
    assert not torch.allclose(mine, copied)
    assert_exact(copied, whole_hidden(other, layout)[ROWS])


def test_the_layer_works_as_before_without_rows():
    stock = tiny_model(dtype=torch.float64)
    student = tiny_student(Family("block", 2), dtype=torch.float64)
    ids = torch.tensor([[4, 5, 6, 7, 8]])
    assert_exact(student.model(input_ids=ids).logits, stock(input_ids=ids).logits)
