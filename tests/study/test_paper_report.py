import json
import re
from pathlib import Path

import pytest

from forkleft.cli import main
from forkleft.study.noise import compare_counts
from forkleft.study.paper import read_paper, recompute

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setenv("COLUMNS", "80")
    code = main(["paper", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def lines_with(text, *words):
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_everything_in_eighty_columns(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    # Nothing was cut, and what is not whole is folded.
    assert "…" not in out
    for name in read_paper().sections:
        assert lines_with(out, f"{name}: ")
    assert re.search(r"222 printed figures recomputed: 220 agree, 2 do not", " ".join(out.split()))
    # A column of a table that agrees is one line, a disagreement is marked, with the digits that show it.
    assert lines_with(out, "accuracy before, %", "10 figs", "same", "✓", "table 1")
    assert lines_with(out, "4/30: smallest margin of seven", "MMLU", "AIME25", "✗")
    assert lines_with(out, "8/30 behind OPDLM-8B", " 2 ", "1.48", "✗")
    # The two facts.
    assert lines_with(out, "SFT: mean gain, pp", "4.48", "not printed")
    assert lines_with(out, "SFT+OPD: mean gain, pp", "3.91", "not printed")
    assert lines_with(out, " OPD: mean gain, pp", "3.16", "not printed")
    assert lines_with(out, "MLogiQA 369, MMLU 10041 and MT-AIME 144")
    # The noise.
    assert lines_with(out, "2000 updates – EDLM-4B", "+4.93", "1.4, 8.5", "2.9, 7.2", "10/0/0", "0.002", "3/3/4")
    assert lines_with(out, "MATH500", "72.6 (68.5–76.3)", "79.6 (75.8–82.9)", "+7.00", "1.20", "5.60", "clear")


def test_a_table_shows_every_figure(capsys, monkeypatch):
    _, out, _ = run(capsys, monkeypatch, "--table", "order-view", "--table", "second-family")
    assert max(map(len, out.splitlines())) <= 80
    assert lines_with(out, "gain, pp: GPQA-D", "+4.55", "✓", "-4.7, 13.7", "fig. 7")
    assert lines_with(out, "interaction, pp", "+1.99", "-3.0, 6.9", "§4.3, fig. 4")
    assert lines_with(out, "L-high – L-low, %, and the smallest gain")
    assert not lines_with(out, "shared-subset")


def test_json(capsys, monkeypatch):
    _, out, _ = run(capsys, monkeypatch, "--json", "--table", "main")
    (section,) = json.loads(out).values()
    (one,) = (one for one in section["figures"] if (one["what"], one["benchmark"]) == ("accuracy before, %", "MLogiQA"))
    assert one["printed"] == "45.63" and one["value"] == 45.625 and one["agrees"] is True
    assert one["place"] == "table 1, §4.2, abstract"
    (comparison,) = section["comparisons"]
    assert comparison["mean"] == pytest.approx(4.93, abs=0.005)
    assert comparison["changes"][1]["before"]["value"] == pytest.approx(72.6)
    assert comparison["changes"][1]["verdict"] == "clear"


def test_markdown(capsys, monkeypatch):
    _, out, _ = run(capsys, monkeypatch, "--markdown", "--table", "shared-subset")
    assert "| SFT: mean gain, pp | – | 4.48 |  | 0.9, 8.0 | not printed |" in out
    table = [line for line in out.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in table} == {7, 8}
    assert "## Shared-subset: " in out and "**Note.** by the paper's own mean" in out


def test_an_unknown_table(capsys, monkeypatch):
    code, out, err = run(capsys, monkeypatch, "--table", "order-veiw")
    assert (code, out) == (2, "")
    assert "there is no table 'order-veiw'; there are main, checkpoint-curve, order-view" in err


# The page


def rows_of(page):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]


def test_the_tables_of_the_page_are_what_the_command_prints():
    paper, rows = read_paper(), rows_of(PAGE.read_text(encoding="utf-8"))
    for change in compare_counts(paper, "2000 updates", "EDLM-4B").changes:
        figures = (f"{change.gain:+.2f}", f"{change.bold:.2f}", f"{change.cautious:.2f}", change.verdict)
        assert [change.benchmark, *figures] in rows
    pairs = {
        "L-high – base": ("L-high", "EDLM-4B"),
        "L-high – B-high (view)": ("L-high", "B-high"),
        "L-high – L-low (order)": ("L-high", "L-low"),
        "SFT+OPD – SFT": ("SFT+OPD", "SFT"),
        "4B student, Qwen3-30B – Qwen3-8B teacher": ("4/30", "4/8"),
        "4B student, Qwen3-8B – Qwen2.5-7B teacher": ("4/8", "4/7"),
        "SDAR-4B, 500 updates – base": ("SDAR-4B 500", "SDAR-4B"),
    }
    for name, (after, before) in pairs.items():
        one = compare_counts(paper, after, before)
        intervals = ("{:.1f}, {:.1f}".format(*ends) for ends in (one.cautious, one.bold))
        assert [name, f"{one.mean:+.2f}", *intervals, f"{one.up}/{one.level}/{one.down}"] in rows
    (interaction,) = (one for one in recompute(paper, "order-view") if one.what == "interaction, pp")
    ends = "{:.1f}, {:.1f}".format(*interaction.interval)
    assert ["interaction of the two", f"{float(interaction.value):+.2f}", ends, "", ""] in rows
    assert len(rows) == 2 + 10 + 2 + 8


def test_the_page_says_how_many_agree():
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    paper = read_paper()
    printed = [one for name in paper.sections for one in recompute(paper, name) if one.printed]
    assert f"{sum(one.agrees for one in printed)} of {len(printed)}: all percentages" in page
    columns = {tuple(sorted(column.items())) for column in paper.counts.values()}
    assert f"right answers of {len(columns)} models" in page
