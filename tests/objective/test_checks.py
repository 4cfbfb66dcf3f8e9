import pytest
import torch
from tiny import FAMILIES, family_name, tiny_model, tiny_student

from forkleft.objective import checks
from forkleft.rollout.forward import CachedForward
from forkleft.students import KNOWN_FAMILIES, Family, Student
from forkleft.students.attention import PackedLayout

# Those that run everywhere, and those of FlexAttention.
READOUTS, GRADIENTS, ROLLOUTS, NEIGHBOURS, LOSSES = (check.name for check in checks.CHECKS if not check.cuda_only)
FLEX = [check.name for check in checks.CHECKS if check.cuda_only]
RUN = {check.name: check.run for check in checks.CHECKS}
# With blocks as large as real ones.
LARGE = [KNOWN_FAMILIES["efficient-dlm"].family, KNOWN_FAMILIES["fast-dllm-v2"].family]


def stand_in(family, dtype=torch.float32):
    student = checks.stand_in(dtype, "cpu")
    return Student(student.model, family, student.vocabulary)


def broken(student):
    return [finding.name for finding in examined(student) if not finding.holds]


def examined(student):
    """The findings that have numbers."""
    return [finding for finding in checks.examine(student) if finding.skipped is None]


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float32) for family in FAMILIES),
        (FAMILIES[0], torch.float64),
        *((family, torch.bfloat16) for family in (FAMILIES[0], FAMILIES[3], FAMILIES[7])),
    ],
    ids=lambda value: family_name(value) if isinstance(value, Family) else str(value),
)
def test_everything_holds_for_every_family(family, dtype):
    findings = examined(tiny_student(family, dtype=dtype))
    assert len(findings) == 5
    assert all(finding.holds for finding in findings), findings
    # What is called rounding is small.
    limit = {torch.float64: 1e-3, torch.float32: 1e-3, torch.bfloat16: 2.0}[dtype]
    assert max(finding.bound for finding in findings) < limit, findings


@pytest.mark.parametrize("family", LARGE, ids=lambda family: family.name)
def test_everything_holds_for_large_blocks(family):
    findings = examined(stand_in(family, torch.bfloat16))
    assert all(finding.holds for finding in findings), findings


@pytest.mark.parametrize(
    ("family", "dtype"), [(Family("block", 8), torch.float32), *((family, torch.bfloat16) for family in LARGE)]
)
def test_a_cache_that_forgets_is_found(monkeypatch, family, dtype):
    hidden = CachedForward.hidden

    def forgetful(self, *arguments):
        for keys in self._keys:
            keys.zero_()
        return hidden(self, *arguments)

    monkeypatch.setattr(CachedForward, "hidden", forgetful)
    difference, bound = RUN[ROLLOUTS](stand_in(family, dtype))
    assert difference > bound


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_ignores_the_masks_is_found(monkeypatch, dtype):
    """It looks at nothing but the token itself."""

    def blind(self, query, key, value, scale, last):
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)

    monkeypatch.setattr(PackedLayout, "attend_rows", blind)
    assert broken(stand_in(Family("block", 8), dtype)) == [READOUTS, GRADIENTS]


def test_rows_that_leak_into_each_other_are_found(monkeypatch):
    """The first row of a batch is read by all of them."""
    hidden = CachedForward.hidden

    def leaking(self, rows, *arguments):
        found = hidden(self, rows, *arguments)
        return found if len(rows) == 1 else found + 0.1 * found[:1]

    monkeypatch.setattr(CachedForward, "hidden", leaking)
    difference, bound = RUN[NEIGHBOURS](stand_in(Family("block", 8)))
    assert difference > bound


def test_wrong_losses_and_errors_are_found(monkeypatch):
    head_rows = checks.head_rows

    def wrong(*arguments, **settings):
        found = head_rows(*arguments, **settings)
        return type(found)(found.nll_S, found.confidence_S, found.entropy_S, found.kl_K * 1.01, found.teacher_entropy_K)

    monkeypatch.setattr(checks, "head_rows", wrong)
    assert broken(stand_in(Family("block", 8))) == [LOSSES]

    def missing(*arguments, **settings):
        raise RuntimeError("no kernel for this device")

    monkeypatch.setattr(checks, "head_rows", missing)
    finding = checks.examine(stand_in(Family("block", 8)))[-1]
    assert not finding.holds
    assert finding.meaning == "RuntimeError: no kernel for this device"


def test_nan_is_broken():
    student = stand_in(Family("block", 8))
    with torch.no_grad():
        student.model.lm_head.weight[3] = float("nan")
    assert broken(student) == [READOUTS, GRADIENTS, ROLLOUTS, NEIGHBOURS, LOSSES]


def test_what_learns_still_learns_afterwards():
    student = Student.from_model(tiny_model(), FAMILIES[0], 39, [37])
    student.model.lm_head.weight.requires_grad_(False)
    checks.examine(student)
    assert [name for name, p in student.model.named_parameters() if not p.requires_grad] == ["lm_head.weight"]


def test_the_checks_of_flex_attention_say_why_they_are_skipped():
    skipped = [finding for finding in checks.examine(stand_in(Family("block", 8))) if finding.skipped]
    assert [finding.name for finding in skipped] == FLEX and len(FLEX) == 2
    assert all(not finding.holds and "CUDA only" in finding.skipped for finding in skipped)


@pytest.mark.parametrize("dense", [False, True])
def test_the_checks_of_flex_attention_look_at_the_other_way(monkeypatch, dense):
    """On a CPU both ways are dense; here it is seen which one a check asks for, and that it is left as it was."""
    student, asked = stand_in(Family("block", 8)), []
    student.use_dense_attention(dense)
    attend = PackedLayout.attend

    def noted(self, *tensors, dense, last):
        asked.append(dense)
        return attend(self, *tensors, dense=dense, last=last)

    monkeypatch.setattr(PackedLayout, "attend", noted)
    for name in FLEX:
        difference, bound = RUN[name](student)
        assert difference <= bound
    assert set(asked) == {not dense}
    assert student.dense_attention is dense


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA: FlexAttention is compiled there only")
def test_flex_attention_on_a_gpu():
    """Never run by us: there was no GPU."""
    findings = checks.examine(checks.stand_in(torch.float32, "cuda"))
    assert all(finding.holds for finding in findings), findings
