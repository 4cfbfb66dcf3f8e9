import io

import pytest
import torch
from rich.console import Console
from tiny import FAMILIES, family_name, tiny_student

from forkleft import doctor
from forkleft.cli import main
from forkleft.rollout.forward import CachedForward
from forkleft.students.attention import PackedLayout


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_everything_holds_for_every_family(family):
    student = tiny_student(family, dtype=torch.float64)
    findings = doctor.examine(student)
    assert len(findings) == 5
    assert all(one.holds for one in findings), findings


def test_broken_masks_are_found(monkeypatch):
    """Attention that looks at nothing but the token itself."""

    def blind(self, query, key, value, scale):
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1).transpose(1, 2)

    monkeypatch.setattr(PackedLayout, "attend_rows", blind)
    broken = [one.name for one in doctor.examine(doctor.stand_in(torch.float32, "cpu")) if not one.holds]
    assert broken == ["packed readouts = one forward a position", "gradients of packed readouts"]


def test_a_broken_cache_is_found(monkeypatch):
    """A cache that forgets its keys from one forward to the next."""
    hidden = CachedForward.hidden

    def forgetful(self, *arguments):
        for keys in self._keys:
            keys.zero_()
        return hidden(self, *arguments)

    monkeypatch.setattr(CachedForward, "hidden", forgetful)
    broken = [one.name for one in doctor.examine(doctor.stand_in(torch.float32, "cpu")) if not one.holds]
    assert "cached rollouts = whole canvas every pass" in broken


def test_low_precision_is_judged_by_its_own_bound():
    student = doctor.stand_in(torch.bfloat16, "cpu")
    findings = doctor.examine(student)
    assert all(one.holds for one in findings), findings
    assert max(one.difference for one in findings) > 1e-4


def test_the_table_and_the_command(capsys, monkeypatch):
    student = doctor.stand_in(torch.float32, "cpu")
    out = io.StringIO()
    good, bad = (
        doctor.Finding(name, difference, 0.1, "why") for name, difference in (("a", 0.01), ("b", float("nan")))
    )
    Console(file=out, width=120).print(doctor.table([good, bad], student))
    assert "holds" in out.getvalue() and "broken" in out.getvalue()
    assert main(["doctor", "--device", "cpu", "--dtype", "float32"]) == 0
    assert "Everything holds here." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "examine", lambda student: [bad])
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--device", "cpu"])
    assert "Something is broken here" in capsys.readouterr().out
