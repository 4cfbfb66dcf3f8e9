import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_examples_run_as_printed(capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, "README.md", "exec"), {})
        assert "Trajectory(tokens=" in capsys.readouterr().out
