import io
from dataclasses import replace

import pytest
from rich.console import Console
from studies import made_up_results, without

from forkleft.evaluate.statistics import Estimate
from forkleft.study.analysis import analyse
from forkleft.study.tables import percent, print_study, study_page, study_tables


def made(**changes):
    results = made_up_results(**changes)
    return results, analyse(results, resamples=200)


@pytest.fixture(scope="module")
def order_view():
    return made(holes=[("L-low, seed 9", "train ended with code 2: a | b", "forkleft train --config x")])


def by_title(results, analysis):
    return {table.title: table for table in study_tables(results, analysis)}


def test_the_page_says_everything_with_how_many_seeds(order_view):
    page = study_page(*order_view, figures=["accuracy.svg"])
    assert page.startswith(
        "# made-up\n\nIs it seen that an arm is better?\n\n4 arms, 8 seeds, 50 updates; 3 benchmarks "
    )
    assert "![accuracy](accuracy.svg)" in page and "**1 cell missing: see Holes.**" in page
    assert "no less than 0.008 with 8 seeds; Holm p: corrected for the 5 tests of this table" in page
    assert r"| L-low, seed 9 | train ended with code 2: a \| b | `forkleft train --config x` |" in page
    for title in ("Accuracy", "Differences", "Routes in training", "Right answers by seed", "Holes"):
        assert f"## {title}\n" in page
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert (
        len({line.count(" | ") for line in lines if line.startswith(("| arm | seeds | lab", "| L-high | 8 | "))}) <= 2
    )


def test_figures_stand_in_their_rows(order_view):
    results, analysis = order_view
    tables = by_title(results, analysis)
    row = dict(zip(tables["Accuracy"].heading, tables["Accuracy"].rows[1], strict=True))
    effect = analysis.rows["static"][1].accuracy
    assert row["arm"] == "L-high" and row["seeds"] == "8" and row["up"] == "3/3"
    assert row["lab-chain-4"].startswith(f"{100 * effect.benchmarks['lab-chain-4'].value:.1f} (")
    assert row["gain over base"].startswith("+")
    first = dict(zip(tables["Differences"].heading, tables["Differences"].rows[0], strict=True))
    assert first["difference"] == "L-high − L-low" and first["McNemar"].endswith("/8")
    ups = sum(value > 0 for value in analysis.comparisons[0].difference.by_seed)
    assert first["seeds +/−"] == f"{ups}/{8 - ups}"
    counts = tables["Right answers by seed"]
    assert counts.heading == ("benchmark", "seed", "items", "base", "L-high", "L-low", "B-high", "B-low")
    right = int(results.of_arm("L-low", "static")[3]["lab-chain-4"].sum())
    assert counts.rows[8 + 2][:3] == ("lab-chain-4", "3", "500") and counts.rows[8 + 2][5] == str(right)


def printed(results, analysis, width):
    out = io.StringIO()
    print_study(results, analysis, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_terminal_cuts_no_figure_and_no_word(order_view, width):
    ten = tuple(f"lab-chain-{k}" for k in range(3, 13))
    for made_up in (order_view, made(benchmarks=ten, seeds=(1,), items=9, steps={25: 0.5})):
        text = printed(*made_up, width)
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        for table in study_tables(*made_up):
            for row in () if table.page_only else table.rows:
                # A name in one line, an interval behind or below its figure.
                first = [line for line in lines if line.startswith(row[0])]
                assert first and all(part in text for cell in row for part in cell.split(" ("))
            assert table.page_only or all(word in text for name in table.heading for word in name.split())
    # As many tables as it takes, with the note once and air around it.
    assert text.count("Right answers in %") == 1 and "\n\nRight answers in %" in text
    assert "\n\nDifferences" in text


def test_a_name_that_others_gave_is_no_markup(order_view):
    results, analysis = order_view
    out = io.StringIO()
    print_study(replace(results, name="[/red][link=http://h]s"), analysis, Console(file=out, width=100))
    assert "\n[/red][link=http://h]s\n" in out.getvalue()


def test_benchmarks_have_a_table_of_their_own_where_there_is_no_room(order_view):
    narrow, wide = (printed(*order_view, width) for width in (80, 120))
    assert "Accuracy by benchmark\n" in narrow and "Differences by benchmark\n" in narrow
    assert "by benchmark" not in wide
    row = next(line for line in narrow.splitlines() if line.startswith("L-high − L-low"))
    assert row.split()[3:5] == ["8", by_title(*order_view)["Differences"].rows[0][5].split()[0]]


def test_holes_in_a_terminal_are_a_list_to_copy_from(order_view):
    text = printed(*order_view, 80)
    assert "Holes: 1 cell missing\n\n  L-low, seed 9: train ended with code 2: a | b\n" in text
    assert "\n    forkleft train --config x\n" in text and "`" not in text
    command = f"forkleft train --config {'long/' * 30}recipe.yaml"
    assert f"    {command}\n" in printed(*made(holes=[("a", "not run yet", command)]), 80)
    assert "| --- | --- | --- |" in study_page(*order_view)


def test_seeds_that_are_missing_and_a_single_seed():
    results = without(made_up_results(), "L-low-1", "B-low-2", "B-low-3")
    page = study_page(results, analyse(results, resamples=50))
    assert "4 arms, 6 to 8 seeds, 50 updates" in page
    assert "| lab-chain-3 | 1 | 500 |" in page and "| – |" in page
    page = study_page(*made(seeds=(1,)))
    assert "4 arms, 1 seed, 50 updates" in page and "With one seed an interval knows of items alone." in page
    assert "1.000 with 1 seed" in page


def test_nothing_was_run_yet():
    results = without(made_up_results(), *made_up_results().cells)
    page = study_page(results, analyse(results, resamples=50))
    assert "4 arms, 0 seeds" in page and "## Accuracy" not in page


def test_tables_of_other_studies():
    teachers = {"weak": ("lab:weak", 0.7), "strong": ("lab:strong", 0.95)}
    arms = {"strong": 0.75, "weak": 0.6}
    tables = by_title(*made(arms=arms, teachers=teachers, compare=(("strong", "weak"),), effects={}, seeds=(1, 2)))
    strength = tables["Teacher strength"]
    assert [row[0] for row in strength.rows] == ["lab:weak", "lab:strong"]
    assert strength.rows[0][2:4] == ("weak", "2")
    tables = by_title(*made(steps={5: 0.2, 25: 0.8}, arms={"L-high": 0.7}, compare=(), effects={}, seeds=(1, 2)))
    assert [row[:4] for row in tables["Checkpoints"].rows] == [
        ("L-high", "0", "0%", "2"),
        ("L-high", "5", "10%", "2"),
        ("L-high", "25", "50%", "2"),
        ("L-high", "50", "100%", "2"),
    ]
    assert "Differences" not in tables and "Teacher strength" not in tables
    tables = by_title(*made(decoding={"static": {}, "fast": {"passes": 4}}, seeds=(1, 2)))
    assert {"Accuracy, static", "Accuracy, fast", "Tokens a forward", "Right answers by seed, fast"} <= set(tables)
    assert tables["Differences"].rows[5][0] == "L-high − L-low, fast"
    assert tables["Tokens a forward"].rows[0] == ("static", "L-high", "4.00")


def test_students_that_take_turns_are_shown_apart():
    results, analysis = made()
    assert "By student" not in by_title(results, analysis)
    others = {"base-2": replace(results.cells["base"], label="base lab:s-2")}
    places = [replace(p, base="base-2") if p.seed % 2 == 0 else p for p in results.places]
    results = replace(results, cells=results.cells | others, places=tuple(places))
    analysis = analyse(results, resamples=200)
    table = by_title(results, analysis)["By student"]
    assert table.heading == ("", "lab:s", "lab:s-2")
    rows = {row[0]: row[1:] for row in table.rows}
    by_seed = analysis.comparisons[0].difference.by_seed
    assert rows["L-high − L-low"] == tuple(f"{100 * sum(by_seed[k::2]) / 4:+.1f} (4)" for k in (0, 1))
    assert len(rows) == 4 + 5
    # A base that was not measured on all benchmarks, and one that was not measured at all.
    less = {"base-2": replace(others["base-2"], measured=others["base-2"].measured[:1])}
    part = replace(results, cells=results.cells | less)
    table = by_title(part, analyse(part, resamples=200))["By student"]
    assert table.rows[0][2] == "–" and table.rows[-1][2].endswith("(4)")
    part = replace(results, cells={name: cell for name, cell in results.cells.items() if name != "base-2"})
    assert "By student" not in by_title(part, analyse(part, resamples=200))


def test_a_base_is_shown_beside_each_teacher():
    results, analysis = made(teachers={"L-low": ("lab:other", 0.6)})
    rows = by_title(results, analysis)["Teacher and student on the benchmarks"].rows
    begun = {row[0]: int(row[3].split(".")[0]) for row in rows if row[1] == "lab-chain-3" and "base" in row[0]}
    assert list(begun) == ["base, lab:t", "base, lab:other"]
    assert begun["base, lab:t"] > begun["base, lab:other"]


def test_a_zero_has_no_sign():
    assert percent(Estimate(-1e-9, -0.0004, 0.0), "+") == "+0.0 (+0.0, +0.0)"
