from dataclasses import replace
from pathlib import Path

from rich.console import Console

from forkleft.evaluate.benchmarks import BENCHMARKS
from forkleft.evaluate.listing import list_benchmarks


def test_the_list_tells_where_data_is(tmp_path, monkeypatch):
    (tmp_path / "aime24.jsonl").write_text("{}\n" * 30 + "\n")
    (tmp_path / "aime25.jsonl").write_text("{}\n" * 21)
    (tmp_path / "mmlu_test.jsonl.gz").write_text("{}\n")
    monkeypatch.setenv("FORKLEFT_DATA", str(tmp_path))
    path = tmp_path / "told"
    with path.open("w") as file:
        list_benchmarks(BENCHMARKS.values(), console=Console(file=file, width=200))
    rows = {line.split()[0]: line for line in path.read_text().splitlines() if line.split()[:1]}
    assert set(BENCHMARKS) <= set(rows)
    assert rows["aime24"].rstrip().endswith("at hand")
    assert rows["aime25"].rstrip().endswith("at hand, 21 of 30")
    assert rows["mmlu"].rstrip().endswith("at hand, damaged")
    assert "hub: openai/gsm8k" in rows["gsm8k"]
    assert all(part in rows["mt-aime2024"] for part in ("generated", "1650", "4096", "hub: amphora/MCLM"))
    assert all(part in rows["mmlu"] for part in ("slot", "14042", "MIT"))


def test_what_a_file_of_others_says_is_no_markup(tmp_path):
    said = BENCHMARKS["aime24"]
    mine = replace(said, name="mine", licence="[/red] [link=http://h]MIT", hub=replace(said.hub, path="[/x]"))
    path = tmp_path / "told"
    with path.open("w") as file:
        # A short name: a line of the caption must not break in it.
        list_benchmarks([mine], console=Console(file=file, width=200), folder=Path("[/bold]"))
    assert all(text in path.read_text() for text in ("[/red] [link=http://h]MIT", "hub: [/x]", "[/bold]"))
