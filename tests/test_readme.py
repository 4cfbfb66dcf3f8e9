import re
import tomllib
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_examples_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    training, writing = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(training.strip().splitlines()) <= 11
    exec(compile(training, "README.md", "exec"), {})
    assert (tmp_path / "runs" / "first" / "model.safetensors").is_file()
    capsys.readouterr()
    exec(compile(writing, "README.md", "exec"), {})
    assert re.search(r"#\d", capsys.readouterr().out)


def test_the_extras_that_are_named_exist():
    settings = tomllib.loads((README.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = re.findall(r"pip install '\.\[(.*?)\]'", README.read_text(encoding="utf-8"))
    assert set(named.split(",")) == settings["optional-dependencies"].keys() - {"dev"}
