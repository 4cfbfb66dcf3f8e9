import json

import pytest
from commands import run


def test_a_study_is_planned_run_and_shown(capsys, tmp_path, monkeypatch):
    from functools import partial

    from studies import PROGRAM, study_file

    from forkleft.study import runner

    monkeypatch.setattr(runner, "run_cells", partial(runner.run_cells, program=PROGRAM))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls.jsonl"))
    words = ("study", "run", str(study_file(tmp_path)), "--output", str(tmp_path / "root"))
    code, out, err = run(capsys, *words, "--dry-run")
    assert code == 0, err
    assert "small: 8 cells" in out and not (tmp_path / "root").exists()
    code, out, err = run(
        capsys, *words, "--print-commands", "--seeds", "1", "--launcher", "torchrun --nproc-per-node 2"
    )
    assert code == 0, err
    assert out.count("torchrun --nproc-per-node 2 -m forkleft train --config ") == 2
    monkeypatch.setenv("FAKE", json.dumps({"fail": "train", "in": '"label": "L-low, seed 2"'}))
    code, out, _ = run(capsys, *words, "--jobs", "2")
    assert code == 1
    assert "L-low, seed 2: FAILED, train ended with code 2: this cannot be" in out
    assert "Holes" in out and "1 cell missing" in out
    monkeypatch.delenv("FAKE")
    code, out, err = run(capsys, *words, "--jobs", "2")
    assert code == 0, err
    assert "Holes" not in out and "4 arms" not in out and "2 arms, 2 seeds" in out
    table = (tmp_path / "root" / "small" / "table.md").read_text()
    # From the results alone, where the cells are gone.
    (tmp_path / "kept").mkdir()
    (tmp_path / "root" / "small" / "results.json").rename(tmp_path / "kept" / "results.json")
    code, out, err = run(capsys, "study", "show", str(tmp_path / "kept"), "--markdown")
    assert (code, out.strip()) == (0, table.strip()), err
    code, out, _ = run(capsys, "study", "show", str(tmp_path / "kept"), "--json")
    (found,) = json.loads(out)
    assert code == 0 and found["study"] == "small" and found["comparisons"][0]["name"] == "L-high − L-low"
    assert (tmp_path / "kept" / "accuracy.png").exists()


def test_a_study_runs_code_that_its_files_name_only_if_told(capsys, tmp_path, monkeypatch):
    from studies import study_file

    (tmp_path / "judges_of_the_study.py").write_text("def mine(responses, answers): return [True] * len(answers)\n")
    monkeypatch.syspath_prepend(tmp_path)
    said = {"max_steps": 10, "eval_strategy": "no", "verifier": "judges_of_the_study:mine", "trust_remote_code": True}
    file = study_file(tmp_path, set=said, seeds=[1])
    words = ("study", "run", str(file), "--output", str(tmp_path / "root"), "--print-commands")
    for flags, missing in (([], "--trust-verifier"), (["--trust-verifier"], "--trust-remote-code")):
        code, out, err = run(capsys, *words, *flags)
        assert (code, out) == (2, "") and f"{file} " in err and err.endswith(f"if you trust it add {missing}\n")
    assert not (tmp_path / "root").exists()
    code, out, err = run(capsys, *words, "--trust-verifier", "--trust-remote-code")
    assert code == 0, err
    commands = [line for line in out.splitlines() if not line.startswith("#")]
    assert commands and all("--trust-remote-code" in line for line in commands)
    for line in commands:
        assert ("--trust-verifier" in line) == (" eval " not in line)
    # The line as it stands is obeyed, and without its flags the recipe of the cell is refused.
    train = next(line for line in commands if " train " in line).partition(" -m forkleft ")[2].split()
    code, _, err = run(capsys, *train, "--check", "--use_cpu", "--dataloader_pin_memory", "false")
    assert code == 0, err
    code, _, err = run(capsys, *train[:3], "--check")
    assert code == 2 and "recipe.yaml names the verifier judges_of_the_study:mine" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "none.yaml", "--output", "o"], "there is no study none.yaml"),
        (["run", "STUDY", "--output", "o", "--jobs", "0"], "--jobs must be at least 1, found 0"),
        (["run", "STUDY", "--output", "o", "--seeds", "9"], "has no seed 9"),
        (["run", "STUDY", "--output", "o", "--set", "rhoo=1"], "there is no option 'rhoo'; did you mean rho?"),
        (["run", "STUDY", "--output", "o", "--benchmark", "gsm9k"], "there is no benchmark 'gsm9k'"),
        (["show", "none"], "there is no study in none"),
    ],
)
def test_studies_that_cannot_be(capsys, tmp_path, words, message):
    from studies import study_file

    file = str(study_file(tmp_path))
    code, _, err = run(capsys, "study", *(file if word == "STUDY" else word for word in words))
    assert code == 2
    assert message in err
