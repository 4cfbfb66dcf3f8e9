import math

import pytest
import torch
from exact import assert_exact, assert_no_worse

from forkleft.errors import ForkLeftError
from forkleft.objective import head
from forkleft.objective.head import TeacherRows, head_rows
from forkleft.objective.losses import mixture

ROWS, WIDTH, TEACHER_WIDTH, WORDS = 11, 6, 5, 40
EXCLUDED = torch.zeros(WORDS, dtype=torch.bool).index_fill_(0, torch.tensor([0, 1, 3, 38, 39]), True)
VALID = [u for u in range(WORDS) if not EXCLUDED[u]]
MERGED = (7, 8, 20)


def random(*shape, seed, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(dtype=torch.float64):
    """Both heads have more rows than the vocabulary has words."""
    hidden = random(ROWS, WIDTH, seed=0, dtype=dtype).requires_grad_()
    weight = random(WORDS + 3, WIDTH, seed=1, dtype=dtype).requires_grad_()
    teacher = TeacherRows(
        random(ROWS, TEACHER_WIDTH, seed=2, dtype=dtype), random(WORDS + 1, TEACHER_WIDTH, seed=3, dtype=dtype)
    )
    targets = torch.tensor(
        [VALID[k] for k in torch.randperm(len(VALID), generator=torch.Generator().manual_seed(4))[:ROWS]]
    )
    return hidden, weight, targets, teacher


def full_rows(hidden, weight, targets, teacher, merged=()):
    """The same numbers from the table of all logits, word by word."""
    logp, log_t = (
        (rows @ head[:WORDS].T).to(torch.promote_types(rows.dtype, torch.float32)).masked_fill(EXCLUDED, -math.inf)
        for rows, head in ((hidden, weight), (teacher.hidden_KE, teacher.weight_VE))
    )
    logp, log_t = logp.log_softmax(-1), log_t.log_softmax(-1)
    rest = [u for u in VALID if u not in merged]
    kl = sum(log_t[:, u].exp() * (log_t[:, u] - logp[:, u]) for u in rest)
    if merged:
        t, p = (x[:, list(merged)].logsumexp(-1) for x in (log_t, logp))
        kl = kl + t.exp() * (t - p)
    return {
        "nll_S": -logp[torch.arange(len(targets)), targets],
        "confidence_S": logp.max(dim=-1).values,
        "entropy_S": -sum(logp[:, u].exp() * logp[:, u] for u in VALID),
        "kl_K": kl,
        "teacher_entropy_K": -sum(log_t[:, u].exp() * log_t[:, u] for u in VALID),
    }


@pytest.fixture(
    params=[(1, WORDS), (4, WORDS), (4, 9), (3, 2), (ROWS, 1), (1, 1), (2 * ROWS, 2 * WORDS)],
    ids=lambda tile: f"{tile[0]}x{tile[1]}",
)
def tile(request, monkeypatch):
    """Rows and words of a tile. Some tiles have no word of 𝒱, the first among them."""
    rows, words = request.param
    monkeypatch.setattr(head, "_CPU_NUMBERS", rows * words)
    monkeypatch.setattr(head, "_TILE_WORDS", words)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("merged", [(), MERGED], ids=["apart", "merged"])
def test_equals_full_logits(merged):
    """All numbers of all rows, and gradients with a weight of its own for each."""
    hidden, weight, targets, teacher = inputs()
    rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher, merged_ids=merged)
    expected = full_rows(hidden, weight, targets, teacher, merged)
    for name, value in expected.items():
        assert_exact(getattr(rows, name), value, name)
    ours, theirs = gradients(vars(rows), hidden, weight), gradients(expected, hidden, weight)
    for one, two in zip(ours, theirs, strict=True):
        assert_exact(one, two)
    assert not rows.entropy_S.requires_grad
    assert not rows.teacher_entropy_K.requires_grad


def gradients(values, hidden, weight):
    """Of a loss in which every live number of every row has a weight of its own."""
    live = ("nll_S", "confidence_S", "kl_K")
    weights = [random(ROWS, seed=k).to(hidden.dtype) for k in range(len(live))]
    loss = sum((values[name] * each).sum() for name, each in zip(live, weights, strict=True))
    return torch.autograd.grad(loss, (hidden, weight))


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("merged", [(), MERGED], ids=["apart", "merged"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_as_exact_as_full_logits(merged, dtype):
    """All numbers, and the gradients, against float64 on the same operands."""
    hidden, weight, targets, teacher = inputs(dtype)
    rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher, merged_ids=merged)
    plain = full_rows(hidden, weight, targets, teacher, merged)
    precise = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    exact = full_rows(*precise, targets, TeacherRows(*(x.double() for x in vars(teacher).values())), merged)
    for name, value in exact.items():
        assert getattr(rows, name).dtype is torch.float32
        assert_no_worse(getattr(rows, name), plain[name], value, name, dtype=dtype)
    ours, theirs = (gradients(values, hidden, weight) for values in (vars(rows), plain))
    for one, two, three in zip(ours, theirs, gradients(exact, *precise), strict=True):
        assert_no_worse(one, two, three)


@pytest.mark.usefixtures("tile")
def test_without_a_teacher():
    hidden, weight, targets, teacher = inputs()
    rows, expected = head_rows(hidden, weight, targets, EXCLUDED), full_rows(hidden, weight, targets, teacher)
    for name in ("nll_S", "confidence_S", "entropy_S"):
        assert_exact(getattr(rows, name), expected[name], name)
    assert rows.kl_K.shape == (0,)
    ours = torch.autograd.grad((rows.nll_S + 2 * rows.confidence_S).sum(), (hidden, weight))
    theirs = torch.autograd.grad((expected["nll_S"] + 2 * expected["confidence_S"]).sum(), (hidden, weight))
    for one, two in zip(ours, theirs, strict=True):
        assert_exact(one, two)


@pytest.mark.usefixtures("tile")
def test_a_teacher_for_the_first_rows_only():
    hidden, weight, targets, teacher = inputs()
    some = TeacherRows(teacher.hidden_KE[:5], teacher.weight_VE)
    rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=some)
    expected = full_rows(hidden, weight, targets, teacher)
    assert_exact(rows.kl_K, expected["kl_K"][:5])
    assert_exact(rows.nll_S, expected["nll_S"])
    ours = torch.autograd.grad(rows.kl_K.sum() + rows.nll_S[3:].sum(), (hidden, weight))
    theirs = torch.autograd.grad(expected["kl_K"][:5].sum() + expected["nll_S"][3:].sum(), (hidden, weight))
    for one, two in zip(ours, theirs, strict=True):
        assert_exact(one, two)


def test_gradcheck():
    hidden, weight, targets, teacher = inputs()

    def live(hidden, weight):
        rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher, merged_ids=MERGED)
        return rows.nll_S, rows.confidence_S, rows.kl_K

    assert torch.autograd.gradcheck(live, (hidden, weight))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_gradient_identities_of_the_paper(alpha):
    """∇_z = p − [αt + (1−α)e_y]. With the identity as head, hidden states are logits."""
    logits, teacher_logits = random(5, WORDS, seed=0).requires_grad_(), random(5, WORDS, seed=1)
    targets = torch.tensor([2, 5, 9, 30, 37])
    eye = torch.eye(WORDS, dtype=torch.float64)
    rows = head_rows(logits, eye, targets, EXCLUDED, teacher=TeacherRows(teacher_logits, eye))
    mixture(rows.kl_K, rows.nll_S, alpha).sum().backward()
    p, t = (z.detach().masked_fill(EXCLUDED, -math.inf).softmax(-1) for z in (logits, teacher_logits))
    one_hot = eye[targets]
    assert_exact(logits.grad, p - (alpha * t + (1 - alpha) * one_hot), tolerance=1e-14)


def test_kl_is_positive_and_zero_only_at_equality():
    hidden, weight, targets, _ = inputs()
    same = head_rows(hidden, weight, targets, EXCLUDED, teacher=TeacherRows(hidden.detach(), weight.detach()))
    assert_exact(same.kl_K, torch.zeros_like(same.kl_K))
    for seed in range(20):
        other = TeacherRows(random(ROWS, WIDTH, seed=seed + 50), weight.detach())
        assert (head_rows(hidden, weight, targets, EXCLUDED, teacher=other).kl_K > 1e-3).all()
    # What lies outside 𝒱 is no difference.
    outside = weight.detach().clone()
    outside[[0, 1, 3, 38, 39, 41]] += 100.0
    again = head_rows(hidden, weight, targets, EXCLUDED, teacher=TeacherRows(hidden.detach(), outside))
    assert torch.equal(again.kl_K, same.kl_K)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("word", [5, 36])
def test_teacher_without_mass_somewhere(dtype, word):
    """Probabilities that underflow to 0 in the teacher or in the student leave everything finite."""
    eye = torch.eye(WORDS, dtype=dtype)
    sharp = torch.zeros(2, WORDS, dtype=dtype)
    sharp[:, word] = 1000.0
    hidden = torch.zeros(2, WORDS, dtype=dtype)
    hidden[0, word], hidden[1, 6] = 1000.0, 1000.0
    hidden.requires_grad_()
    for merged in ((), MERGED):
        rows = head_rows(
            hidden, eye, torch.tensor([word, word]), EXCLUDED, teacher=TeacherRows(sharp, eye), merged_ids=merged
        )
        for found in (rows.kl_K, rows.nll_S):
            assert found.tolist() == [0, 1000]
        for found in (rows.entropy_S, rows.teacher_entropy_K, rows.confidence_S):
            assert found.tolist() == [0, 0]
        (grad,) = torch.autograd.grad(rows.kl_K.sum(), hidden)
        expected = torch.zeros(2, WORDS, dtype=dtype)
        expected[1, 6], expected[1, word] = 1, -1
        assert torch.equal(grad, expected)


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_not_hidden(number):
    """A row of either model, or a word of the head; other rows stay as they are."""
    hidden, weight, targets, teacher = inputs()
    right = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher)
    with torch.no_grad():
        hidden[2, 1] = teacher.hidden_KE[4, 3] = number
    rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher)
    broken = {"nll_S": [2], "confidence_S": [2], "entropy_S": [2], "kl_K": [2, 4], "teacher_entropy_K": [4]}
    for name, where in broken.items():
        found = getattr(rows, name)
        assert found.isfinite().logical_not().nonzero().flatten().tolist() == where
        others = [row for row in range(ROWS) if row not in where]
        assert_exact(found[others], getattr(right, name)[others])
    with torch.no_grad():
        weight[20] = number
    assert not head_rows(hidden, weight, targets, EXCLUDED).nll_S.isfinite().any()


@pytest.mark.usefixtures("tile")
@pytest.mark.parametrize("target", [0, 3, 39, WORDS, WORDS + 2])
def test_a_target_outside_has_no_probability(target):
    hidden, weight, targets, _ = inputs()
    targets[1] = target
    nll_S = head_rows(hidden, weight, targets, EXCLUDED).nll_S
    assert nll_S.isinf().nonzero().flatten().tolist() == [1]


def test_gradients_come_back_in_the_operands_types():
    """bfloat16 products, float32 after them."""
    hidden, weight, targets, teacher = inputs(torch.float32)
    low = [x.detach().bfloat16().requires_grad_() for x in (hidden, weight)]
    coarse_teacher = TeacherRows(teacher.hidden_KE.bfloat16(), teacher.weight_VE.bfloat16())
    rows = head_rows(*low, targets, EXCLUDED, teacher=coarse_teacher)
    assert rows.kl_K.dtype is torch.float32
    (rows.kl_K + rows.nll_S).sum().backward()
    assert all(x.grad.dtype is torch.bfloat16 for x in low)
    # Under autocast the products are the same, and the gradients are as exact as the parameters.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = head_rows(hidden, weight, targets, EXCLUDED, teacher=coarse_teacher)
        plain = full_rows(hidden, weight, targets, coarse_teacher)
    assert torch.equal(cast.kl_K, rows.kl_K)
    precise = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    exact = full_rows(*precise, targets, TeacherRows(*(x.double() for x in vars(coarse_teacher).values())))
    ours, theirs = gradients(vars(cast), hidden, weight), gradients(plain, hidden, weight)
    assert all(x.dtype is torch.float32 for x in ours)
    for one, two, three in zip(ours, theirs, gradients(exact, *precise), strict=True):
        assert_no_worse(one, two, three)
    mixed = head_rows(hidden, weight.detach().bfloat16().requires_grad_(), targets, EXCLUDED)
    (gradient,) = torch.autograd.grad(mixed.nll_S.sum(), hidden)
    assert gradient.dtype is torch.float32


def test_frozen_head_and_no_rows():
    hidden, weight, targets, teacher = inputs()
    head_rows(hidden, weight.detach(), targets, EXCLUDED, teacher=teacher).kl_K.sum().backward()
    assert hidden.grad.abs().max() > 0
    empty = TeacherRows(teacher.hidden_KE[:0], teacher.weight_VE)
    rows = head_rows(hidden[:0], weight, targets[:0], EXCLUDED, teacher=empty)
    assert rows.kl_K.shape == (0,)
    (rows.kl_K + rows.nll_S).sum().backward()
    assert weight.grad.abs().max() == 0


def test_a_tile_has_few_rows_of_many_words_or_many_of_some():
    words = 151_936
    shapes = {rows: head.tile_shape(rows, words, "cpu") for rows in (0, 1, 6, 256, 512, 5000)}
    assert shapes == {
        0: (1, 30_388),
        1: (1, 30_388),
        6: (6, 30_388),
        256: (256, 3999),
        512: (512, 2026),
        5000: (512, 2026),
    }
    assert head.tile_shape(5000, words, "cuda") == (4096, 2026)
    assert head.tile_shape(7, 104, "cpu") == (7, 104)


def test_nothing_of_the_size_of_all_logits_is_kept(monkeypatch):
    monkeypatch.setattr(head, "_CPU_NUMBERS", 2 * WORDS)
    hidden, weight, targets, teacher = inputs()
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        rows = head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher)
    sizes += [value.numel() for value in vars(rows.nll_S.grad_fn).values() if isinstance(value, torch.Tensor)]
    assert sizes
    assert max(sizes) < ROWS * WORDS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h, w, y, t: (h, w, y[:-1], t), "11 rows of the student need as many targets .* found 10 and 11"),
        (lambda h, w, y, t: (h[1:], w, y[1:], t), "10 rows of the student .* found 10 and 11"),
        (
            lambda h, w, y, t: (h, w[:20], y, t),
            r"the student's head is \(20, 6\): .* at least 40 rows of width 6",
        ),
        (lambda h, w, y, t: (h, w, y, TeacherRows(t.hidden_KE, t.weight_VE[:30])), r"the teacher's head is \(30, 5\)"),
        (lambda h, w, y, t: (h, w, y, TeacherRows(t.hidden_KE, w)), r"the teacher's head is \(43, 6\): .* of width 5"),
    ],
)
def test_shapes_that_disagree(change, message):
    hidden, weight, targets, teacher = change(*inputs())
    with pytest.raises(ForkLeftError, match=message):
        head_rows(hidden, weight, targets, EXCLUDED, teacher=teacher)
