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
    Console(file=out, width=120).print(doctor.table([good, bad], student))
    assert "holds" in out.getvalue() and "broken" in out.getvalue() and "[odd]" in out.getvalue()
    assert main(["doctor", "--device", "cpu", "--dtype", "float32"]) == 0
    assert "Everything holds here." in capsys.readouterr().out
    monkeypatch.setattr(doctor, "examine", lambda student, begin: [bad])
    with pytest.raises(SystemExit, match="1"):
        main(["doctor", "--device", "cpu"])
    assert "Something is broken here" in capsys.readouterr().out
