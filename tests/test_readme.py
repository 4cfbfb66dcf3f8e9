import re
import tomllib

from documents import ROOT, python_blocks, run_block

README = ROOT / "README.md"


def test_python_examples_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    training, writing = python_blocks("README.md")
    assert len(training.strip().splitlines()) <= 11
    run_block(training, "README.md")
    assert (tmp_path / "runs" / "first" / "model.safetensors").is_file()
    capsys.readouterr()
    run_block(writing, "README.md")
    assert re.search(r"#\d", capsys.readouterr().out)


def test_the_extras_that_are_named_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = re.findall(r"pip install '\.\[(.*?)\]'", README.read_text(encoding="utf-8"))
    assert set(named.split(",")) == settings["optional-dependencies"].keys() - {"dev"}
