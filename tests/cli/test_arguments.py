import sys

import pytest
from commands import ROOT, run

from forkleft.cli import arguments
from forkleft.cli.main import main
from forkleft.rollout.orders import ORDERS


def test_a_device_that_is_not_there(capsys):
    code, _, err = run(capsys, "generate", "--model", "lab:student-block", "--prompt", "a", "--device", "abacus")
    assert code == 2
    assert "there is no device 'abacus' here" in err
    assert run(capsys, "generate", "--model", "x", "--prompt", "a", "--order", "best")[0] == 2


def test_every_command_that_loads_a_model_takes_a_chat_template(capsys, tmp_path, monkeypatch):
    loaded = []
    monkeypatch.setattr("forkleft.students.load_student", lambda *at, **said: loaded.append(said) or 1 / 0)
    monkeypatch.setattr("forkleft.evaluate.evaluation.load_student", lambda *at, **said: loaded.append(said) or 1 / 0)
    template = ("--chat-template", "{{ messages }}")
    model = ("--model", "lab:student-block", "--device", "cpu", *template)
    for words in (
        ("generate", *model, "--prompt", "a"),
        ("doctor", *model),
        ("eval", *model, "--benchmark", "lab-chain-2", "--output", str(tmp_path)),
    ):
        with pytest.raises(ZeroDivisionError):
            main(words)
        assert loaded.pop()["chat_template"] == "{{ messages }}"
    handed = []
    monkeypatch.setattr("forkleft.evaluate.harness.main", lambda *given, **said: handed.append((given[0], said)) or 0)
    assert run(capsys, "lm-eval", "--tasks", "x", *template, "--limit", "2")[0] == 0
    assert handed == [(["--tasks", "x", "--limit", "2"], {"chat_template": "{{ messages }}"})]


def test_a_gguf_file_is_unpacked_without_a_bar(capsys, monkeypatch):
    from transformers import modeling_gguf_pytorch_utils

    from forkleft.cli import arguments

    monkeypatch.setattr(modeling_gguf_pytorch_utils, "tqdm", None)
    arguments.hide_loading_bars()
    assert list(modeling_gguf_pytorch_utils.tqdm([1, 2, 3], desc="Converting")) == [1, 2, 3]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(arguments, "_LONG_SECONDS", -1.0)
    assert list(modeling_gguf_pytorch_utils.tqdm([1, 2, 3], desc="Converting")) == [1, 2, 3]
    assert capsys.readouterr().err == "unpacking the tensors of the GGUF file: 0 of 3 done\n"


def test_the_orders_of_the_command_line_are_those_of_the_rollout():
    assert set(arguments.ORDERS) == set(ORDERS)


def test_a_command_says_what_it_does_before_it_loads(capsys, monkeypatch):
    """Every command that trains: the first process of several, where PyTorch is still to come."""
    told = []
    monkeypatch.setattr("forkleft.cli.recipe.say_loading", lambda what: told.append(what) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "--config", str(ROOT / "recipes" / "lab.yaml")])
    assert told == [f"forkleft train: {ROOT / 'recipes' / 'lab.yaml'}"]
    arguments.say_loading("nothing to wait for")
    assert capsys.readouterr().err == ""
    monkeypatch.delitem(sys.modules, "torch")
    arguments.say_loading("forkleft train: lab.yaml")
    assert capsys.readouterr().err == "forkleft train: lab.yaml; loading PyTorch\n"
    monkeypatch.setenv("RANK", "1")
    arguments.say_loading("forkleft train: lab.yaml")
    assert capsys.readouterr().err == ""
