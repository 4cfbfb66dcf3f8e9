import pytest
import torch
from exact import assert_exact, assert_no_worse
from naive import all_mask_log_probs, plain_logits, prefix_log_probs, target_masked_log_probs
from tiny import ARCHITECTURES, FAMILIES, MASK, PAD, family_name, plain_copy, tiny_student

from forkleft.errors import ForkLeftError
from forkleft.objective import readouts
from forkleft.objective.readouts import all_mask_hidden, prefix_hidden, target_masked_hidden
from forkleft.prompts import Reading
from forkleft.students import Family

BUDGET = 14
# Ragged prompts, some a multiple of the block; nothing, something and everything selected; a last short block.
READINGS = [
    Reading("a", [5, 9, 2], [7, 3, 1, 30, 12, 11, 9, 8, 2, 20, 21], [0, 3, 4, 7, 10]),
    Reading("b", [7, 1, 3, 3, 8, 30, 2, 11], [1, 2, 3, 4, 5, 6], list(range(6))),
    Reading("c", [4, 4, 6], [9, 9, 2, 37], []),
    Reading("d", [6], [13, 37], [1]),
    Reading("e", [3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4], [13, 2, 8]),
]
# A view and, where it is not the default, its geometry.
VIEWS = ("prefix", "prefix canvas", "target_masked", "target_masked canvas")


def of_view(view, prefix, target_masked):
    """The function of a view, and its geometry."""
    name, _, geometry = view.partition(" ")
    return {"prefix": prefix, "target_masked": target_masked}[name], geometry or "truncated"


def log_probs(student, readings, view, budget=BUDGET):
    hidden, geometry = of_view(view, prefix_hidden, target_masked_hidden)
    return student.logits(hidden(student, readings, budget=budget, geometry=geometry)).log_softmax(-1)


def naive_log_probs(model, family, readings, view, budget=BUDGET):
    read, geometry = of_view(view, prefix_log_probs, target_masked_log_probs)
    rows = [
        read(model, family, reading.prompt, reading.response, i, budget=budget, geometry=geometry)
        for reading in readings
        for i in reading.positions
    ]
    return torch.stack(rows)


def gradients(model, rows):
    """Of a loss in which every log-probability has a weight of its own, by parameter; zeros where there is none."""
    valid = rows.isfinite()
    weights = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(rows.dtype)
    (rows[valid] * weights[valid]).sum().backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}


def assert_same_gradients(student, model, found, expected):
    ours, theirs = gradients(student.model, found), gradients(model, expected)
    for name, gradient in theirs.items():
        assert_exact(ours[name], gradient, name)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_values_and_gradients_equal_one_forward_a_position(family, view, checkpointing):
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    if checkpointing:
        student.model.train()
        student.model.gradient_checkpointing_enable()
    found = log_probs(student, READINGS, view)
    expected = naive_log_probs(model, family, READINGS, view)
    assert_exact(found, expected)
    assert_same_gradients(student, model, found, expected)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_architecture(architecture, view):
    for family in (FAMILIES[0], FAMILIES[3], FAMILIES[4], FAMILIES[7]):
        student = tiny_student(family, architecture, seed=2, dtype=torch.float64)
        model = plain_copy(student)
        found, expected = log_probs(student, READINGS, view), naive_log_probs(model, family, READINGS, view)
        assert_exact(found, expected)
        assert_same_gradients(student, model, found, expected)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[7]], ids=family_name)
def test_float32_is_as_exact_as_one_forward_a_position(family, view):
    student, precise = tiny_student(family), plain_copy(tiny_student(family, dtype=torch.float64))
    model = plain_copy(student)
    ours, exact = log_probs(student, READINGS, view), naive_log_probs(precise, family, READINGS, view)
    plain = naive_log_probs(model, family, READINGS, view)
    assert_no_worse(ours, plain, exact)
    found, theirs = gradients(student.model, ours), gradients(model, plain)
    for name, gradient in gradients(precise, exact).items():
        assert_no_worse(found[name], theirs[name], gradient, name)


@pytest.mark.parametrize("family", [FAMILIES[0], FAMILIES[3], FAMILIES[7]], ids=family_name)
def test_under_autocast(family):
    student = tiny_student(family)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = log_probs(student, READINGS, "prefix")
        plain = naive_log_probs(plain_copy(student), family, READINGS, "prefix")
    assert found.dtype is torch.float32
    precise = plain_copy(tiny_student(family, dtype=torch.float64))
    assert_no_worse(found, plain, naive_log_probs(precise, family, READINGS, "prefix"))
    found.amax(-1).sum().backward()
    assert all(p.grad.isfinite().all() for p in student.model.parameters() if p.grad is not None)


def test_many_replicas_fill_several_rows():
    """More replica tokens than share a row: folding changes nothing."""
    family = Family("block", 16, "absolute")
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    response = torch.randint(0, 37, (100,), generator=torch.Generator().manual_seed(1)).tolist()
    readings = [Reading("long", list(range(20)), response, list(range(100))), READINGS[1]]
    found = log_probs(student, readings, "prefix", budget=100)
    expected = naive_log_probs(model, family, readings, "prefix", budget=100)
    assert_exact(found, expected)
    assert_same_gradients(student, model, found, expected)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_all_mask_probe(family):
    student = tiny_student(family, dtype=torch.float64)
    hidden = all_mask_hidden(student, READINGS, budget=BUDGET)
    assert not hidden.requires_grad
    expected = [
        all_mask_log_probs(plain_copy(student), family, reading.prompt, i, budget=BUDGET)
        for reading in READINGS
        for i in reading.positions
    ]
    assert_exact(student.logits(hidden).log_softmax(-1), torch.stack(expected))


def test_full_attention_in_the_readout_of_a_block_student():
    """The option of the design: truncated prefix and mask query, everything seeing everything."""
    family, full = Family("block", 4), Family("full", 4)
    student = tiny_student(family, dtype=torch.float64)
    hidden = prefix_hidden(student, READINGS, budget=BUDGET, attention="full")
    expected = naive_log_probs(plain_copy(student), full, READINGS, "prefix")
    assert_exact(student.logits(hidden).log_softmax(-1), expected)


def test_a_prefix_readout_ignores_target_and_suffix():
    student = tiny_student(Family("block", 4), dtype=torch.float64)
    one = Reading("one", [5, 9, 2], [7, 3, 1, 30, 12, 11], [4])
    two = Reading("two", [5, 9, 2], [7, 3, 1, 30, 8, 2, 33, 1], [4])
    found = log_probs(student, [one, two], "prefix").detach()
    assert_exact(found[0], found[1])
    assert (log_probs(student, [one, two], "target_masked").detach().diff(dim=0).nan_to_num().abs()).max() > 1e-3


def test_excluded_ids_have_no_probability():
    found = log_probs(tiny_student(Family("block", 4), dtype=torch.float64), READINGS, "prefix").exp()
    assert found[:, [MASK, PAD]].max() == 0
    assert_exact(found.sum(-1), torch.ones(len(found), dtype=torch.float64))


def test_nothing_selected():
    student = tiny_student(Family("block", 4))
    for hidden in (
        prefix_hidden(student, [READINGS[2]], budget=BUDGET),
        target_masked_hidden(student, [], budget=BUDGET),
        all_mask_hidden(student, [READINGS[2]], budget=BUDGET),
    ):
        assert hidden.shape == (0, 32)
        assert student.logits(hidden).shape == (0, 40)


def test_the_head_is_applied_to_read_rows_only():
    student = tiny_student(Family("block", 4))
    rows = []
    student.model.get_output_embeddings().register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    log_probs(student, READINGS, "prefix")
    assert rows == [sum(len(reading.positions) for reading in READINGS)]


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        (Reading("x", [], [1], [0]), "question x: the prompt is empty"),
        (Reading("x", [MASK], [1], [0]), "question x: the prompt contains the mask"),
        (Reading("x", [1], [1, MASK], [0]), r"question x: the response holds 1 id\(s\) outside the vocabulary .*: 39"),
        (Reading("x", [1], [1, 2], [2]), r"question x: positions \[2\] are outside the response, which has 2"),
        (Reading("x", [1], [1, 2], [-1]), r"question x: positions \[-1\]"),
        (Reading("x", [1], [1] * 15, [0]), "question x: a response of 15 tokens exceeds the budget of 14"),
        (Reading("x", [1] * 120, [1], [0]), "question x: a prompt of 120 tokens"),
    ],
)
def test_bad_input(reading, message):
    student = tiny_student(Family("block", 4))
    for read in (prefix_hidden, target_masked_hidden, all_mask_hidden):
        with pytest.raises(ForkLeftError, match=message):
            read(student, [READINGS[0], reading], budget=BUDGET)


def test_a_readout_that_is_not_finite_names_the_question():
    for family in (Family("block", 4), Family("full", 4)):
        student = tiny_student(family)
        with torch.no_grad():
            student.model.get_input_embeddings().weight[13] = float("nan")  # stands in question d alone
        for read in (prefix_hidden, target_masked_hidden):
            with pytest.raises(ForkLeftError, match="question d: the student's readout is not finite"):
                read(student, READINGS, budget=BUDGET)


def test_full_attention_is_read_in_several_forwards(monkeypatch):
    student = tiny_student(Family("full", 4), dtype=torch.float64)
    whole = log_probs(student, READINGS, "prefix")
    monkeypatch.setattr(readouts, "_SEQUENCE_TOKENS", 40)
    assert_exact(log_probs(student, READINGS, "prefix"), whole)


def test_unknown_options():
    student = tiny_student(Family("block", 4))
    with pytest.raises(ForkLeftError, match="geometry must be one of truncated, canvas, found 'canvass'"):
        prefix_hidden(student, READINGS, budget=BUDGET, geometry="canvass")
    with pytest.raises(ForkLeftError, match="attention must be one of native, full, found 'eager'"):
        prefix_hidden(student, READINGS, budget=BUDGET, attention="eager")


def test_naive_and_stock_forwards_agree():
    """The oracle itself, against a forward without any mask of ours: full attention is `is_causal=False`."""
    student = tiny_student(Family("full", 4), dtype=torch.float64)
    model = plain_copy(student)
    model.config.is_causal = False
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    for layer in model.base_model.layers:
        layer.self_attn.is_causal = False
    stock = model(input_ids=torch.tensor([ids])).logits[0]
    assert_exact(plain_logits(plain_copy(student), Family("full", 4), ids, 3)[:, :37], stock[:, :37])
