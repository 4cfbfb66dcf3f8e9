import io

import pytest
import torch
from rich.console import Console

from forkleft.cli import main
from forkleft.objective import checks
from forkleft.report import doctor


def test_the_table_and_the_command(capsys, monkeypatch):
    student = checks.stand_in(torch.float32, "cpu")
    out = io.StringIO()
    good, bad = checks.Finding("a", 0.01, 0.1, "why"), checks.Finding("b", float("nan"), 0.1, "[odd]")
    nothing = float("nan")
    left_out = checks.Finding("c", nothing, nothing, "what for", skipped="no such device")
    Console(file=out, width=120).print(doctor.table([good, bad, left_out], student))
    assert "holds" in out.getvalue() and "broken" in out.getvalue() and "[odd]" in out.getvalue()
    assert "skipped" in out.getvalue() and "no such device" in out.getvalue()
    assert main(["doctor", "--device", "cpu", "--dtype", "float32"]) == 0
    assert "Everything holds here." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "examine", lambda student, begin: [bad])
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--device", "cpu"])
    assert "Something is broken here" in capsys.readouterr().out


def test_the_table_says_its_units_and_keeps_checks_apart():
    student = checks.stand_in(torch.float32, "cpu")
    out = io.StringIO()
    found = [checks.Finding("rows", 0.01, 0.1, "why"), checks.Finding("gradients", 0.01, 0.1, "what for")]
    Console(file=out, width=120).print(doctor.table(found, student))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("rows"))
    assert lines[first].split()[1:5] == ["1.0e-02", "nats", "1e-01", "nats"]
    assert (lines[first + 1], lines[first + 2]) == ("why", "")
    assert lines[first + 3].split()[:3] == ["gradients", "1.0e-02", "relative"]
    told = next(line for line in out.getvalue().splitlines() if line.strip().startswith("Largest difference"))
    assert len(told) - len(told.lstrip()) <= 2


@pytest.mark.parametrize(("dtype", "bound", "told"), [("bfloat16", 3.0, True), ("bfloat16", 0.5, False)])
def test_bounds_that_nothing_could_break_are_told(capsys, monkeypatch, dtype, bound, told):
    monkeypatch.setattr(doctor, "examine", lambda student, begin: [checks.Finding("rows", 0.01, bound, "why")])
    doctor.doctor(checks.stand_in(getattr(torch, dtype), "cpu"))
    printed = " ".join(capsys.readouterr().out.split())
    sentence = "in bfloat16 rounding alone reaches this far for this model; run it in float32"
    assert (sentence in printed) is told


def test_a_teacher_on_a_server_is_compared_with_the_same_in_memory(capsys, monkeypatch):
    from state_servers import FakeVllm, serving

    from forkleft.lab.models import model_path
    from forkleft.students.autoregressive import load_causal_lm

    monkeypatch.setenv("FORKLEFT_TEACHER_API_KEY", "secret-7")
    fake = FakeVllm(load_causal_lm(model_path("teacher-weak"))[0])
    with serving(fake) as url:
        words = ["doctor", "--device", "cpu", "--teacher", "lab:teacher-weak", "--teacher-url", url]
        assert main([*words, "--teacher-model", "teacher"]) == 0
        told = capsys.readouterr().out
        assert "The server gives the same teacher." in told
        assert told.count("holds") == 2
        assert set(fake.keys) == {"Bearer secret-7"}
        # Quantised a little: everything fits, but it is not the same.
        with torch.no_grad():
            for layer in fake.model.base_model.layers:
                layer.mlp.down_proj.weight.mul_(1.01)
        with pytest.raises(SystemExit, match="1"):
            main([*words, "--teacher-model", "teacher"])
        assert "The server gives another teacher" in capsys.readouterr().out
        assert main(words) == 2
        assert "serves 'teacher', expected 'lab:teacher-weak'" in capsys.readouterr().err
        assert main(words[:5]) == 2
        assert "expected --teacher and --teacher-url" in capsys.readouterr().err
        assert main([*words, "--model", "lab:student-block"]) == 2
        assert "found both" in capsys.readouterr().err
    assert main([*words, "--teacher-model", "teacher"]) == 2
    assert "cannot reach" in capsys.readouterr().err
