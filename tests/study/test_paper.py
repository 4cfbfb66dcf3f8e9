import itertools
from fractions import Fraction
from importlib.resources import files

import pytest
import yaml

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS
from forkleft.evaluate.statistics import wilson_interval
from forkleft.study.paper import EACH, WHOLE, Figure, read_paper, recompute, rounded

PAPER = read_paper()
DATA = yaml.safe_load(files("forkleft.study").joinpath("paper.yaml").read_text(encoding="utf-8"))
FIGURES = {name: recompute(PAPER, name) for name in PAPER.sections}


def figure(section, what, benchmark=None):
    (found,) = (one for one in FIGURES[section] if (one.what, one.benchmark) == (what, benchmark))
    return found


# The data


def test_every_table_has_the_ten_benchmarks_with_counts_within_their_items():
    assert list(DATA["items"].values()) == [1319, 500, 30, 30, 45, 198, 800, 1346, 14042, 1650]
    for name, table in DATA["tables"].items():
        assert list(table["rows"]) == list(DATA["items"]), name
        assert table["columns"][0] == "items"
        for benchmark, (items, *counts) in table["rows"].items():
            assert items == DATA["items"][benchmark]
            assert len(counts) == len(table["columns"]) - 1
            assert all(0 <= count <= items for count in counts if count is not None)
    assert {name for name, column in PAPER.counts.items() if len(column) < 10} == {
        *("Q3-4B", "Q2.5-7B", "Q3-8B-I", "Math7B-I")
    }
    assert all(column.keys() == PAPER.items.keys() for column in PAPER.published.values())
    names = [name for table in DATA["tables"].values() for name in table["columns"][1:]]
    assert len(names) == len({*names}) == 28 and not {*names} & PAPER.published.keys()


def test_the_items_are_those_of_our_benchmarks():
    ours = ("gsm8k", "math500", "aime24", "aime25", "livemathbench-hard", "gpqa-diamond", "mlogiqa", "ceval", "mmlu")
    assert [BENCHMARKS[name].items for name in (*ours, "mt-aime2024")] == list(PAPER.items.values())
    assert PAPER.items["MT-AIME"] == 55 * PAPER.questions["MT-AIME"]


# Right answers over all benchmarks, summed by a program from the paper's source, not from this file.
SUMS = {"EDLM-4B": 12958, "100 updates": 13045, "250 updates": 13231, "500 updates": 13464, "1000 updates": 13736}
SUMS |= {"2000 updates": 13957, "B-low": 12928, "B-high": 13032, "L-low": 13426, "L-high": 13957}
SUMS |= {"OPD": 13649, "SFT": 13752, "SFT+OPD": 13925}
SUMS |= {"Q3-30B": 14486, "Q3-8B": 13716, "Q3-4B": 12377, "Q2.5-7B": 13018, "EDLM-8B": 14060}
SUMS |= {"Q3-8B-I": 13281, "Math7B-I": 10075}
SUMS |= {"4/4": 13567, "4/7": 13627, "4/8": 13728, "4/30": 13957, "8/8": 14321, "8/30": 14542}
SUMS |= {"SDAR-4B": 13026, "SDAR-4B 500": 14099}


def test_the_columns_add_up():
    assert {name: sum(column.values()) for name, column in PAPER.counts.items()} == SUMS


def test_the_main_run_is_the_same_in_three_tables():
    assert PAPER.counts["2000 updates"] == PAPER.counts["L-high"] == PAPER.counts["4/30"]


def test_routes_and_probe_add_up():
    for benchmark, counts in PAPER.routes.items():
        assert sum(counts.values()) == PAPER.items[benchmark]
        assert counts["both"] + counts["teacher only"] == PAPER.counts["Q3-30B"][benchmark]
        assert counts["both"] + counts["student only"] == PAPER.counts["EDLM-4B"][benchmark]
    probe = PAPER.probe
    assert probe["bidirectional only"] + probe["prefix only"] + probe["neither"] == probe["disagreements"]
    assert probe["disagreements"] < probe["positions"]


def test_every_formula_is_used():
    about = {"what", "place", "printed", "benchmarks", "note"}
    used = [{*entry} - about for section in DATA["sections"].values() for entry in section["figures"]]
    assert {*itertools.chain(*used)} == EACH.keys() | WHOLE.keys()
    assert all(len(one) == 1 for one in used)


# The figures


def test_two_printed_figures_do_not_follow_from_the_counts():
    printed = [one for figures in FIGURES.values() for one in figures if one.printed is not None]
    assert len(printed) == 222
    assert [(one.what, one.benchmark, one.printed) for one in printed if not one.agrees] == [
        ("4/30: smallest margin of seven", None, "MMLU"),
        ("8/30 behind OPDLM-8B, items", "GPQA-D", "2"),
    ]


def test_each_printed_percentage_is_its_count_to_the_printed_digits():
    found = 0
    for section in DATA["sections"].values():
        for entry in section["figures"]:
            if "accuracy" in entry and "printed" in entry:
                for benchmark, printed in zip(
                    entry.get("benchmarks", PAPER.items), entry["printed"].split(), strict=True
                ):
                    exact = 100 * PAPER.counts[entry["accuracy"]][benchmark] / PAPER.items[benchmark]
                    # Half a unit of the last digit, which floats cannot hold exactly.
                    assert abs(float(printed) - exact) < 0.005 + 1e-9
                    found += 1
    assert found == 65


def naive_mean(benchmarks=None, **weights):
    """In floats, from the file: the mean over benchmarks of the weighted accuracies."""
    total = 0.0
    for benchmark in benchmarks or DATA["items"]:
        for name, weight in weights.items():
            (table,) = (table for table in DATA["tables"].values() if name in table["columns"])
            row = table["rows"][benchmark]
            total += weight * 100 * row[table["columns"].index(name)] / row[0]
    return total / len(benchmarks or DATA["items"])


SEVEN = ["GSM8K", "MATH500", "GPQA-D", "MLogiQA", "CEval", "MMLU", "MT-AIME"]


@pytest.mark.parametrize(
    ("section", "what", "pinned", "naive"),
    [
        ("order-view", "interaction, pp", 1.99, {"L-high": 1, "L-low": -1, "B-high": -1, "B-low": 1}),
        ("order-view", "view effect, pp", 3.80, {"L-high": 0.5, "L-low": 0.5, "B-high": -0.5, "B-low": -0.5}),
        ("order-view", "order effect, pp", 1.63, {"L-high": 0.5, "L-low": -0.5, "B-high": 0.5, "B-low": -0.5}),
        ("order-view", "view effect, high entropy first, pp", 4.79, {"L-high": 1, "B-high": -1}),
        ("order-view", "view effect, low entropy first, pp", 2.80, {"L-low": 1, "B-low": -1}),
        ("checkpoint-curve", "100 updates: mean gain, pp", 0.43, {"100 updates": 1, "EDLM-4B": -1}),
        ("checkpoint-curve", "250 updates: mean gain, pp", 1.81, {"250 updates": 1, "EDLM-4B": -1}),
        ("checkpoint-curve", "500 updates: mean gain, pp", 2.78, {"500 updates": 1, "EDLM-4B": -1}),
        ("checkpoint-curve", "1000 updates: mean gain, pp", 3.95, {"1000 updates": 1, "EDLM-4B": -1}),
        ("shared-subset", "SFT: mean gain, pp", 4.48, {"SFT": 1, "EDLM-4B": -1}),
        ("shared-subset", "SFT+OPD: mean gain, pp", 3.91, {"SFT+OPD": 1, "EDLM-4B": -1}),
        ("shared-subset", "OPD: mean gain, pp", 3.16, {"OPD": 1, "EDLM-4B": -1}),
        ("shared-subset", "SFT+OPD minus SFT: mean, pp", -0.57, {"SFT+OPD": 1, "SFT": -1}),
        ("shared-subset", "the same, seven largest sets, pp", 0.45, {"benchmarks": SEVEN, "SFT+OPD": 1, "SFT": -1}),
        ("second-family", "mean gain, pp", 1.32, {"SDAR-4B 500": 1, "SDAR-4B": -1}),
    ],
)
def test_means_and_effects(section, what, pinned, naive):
    value = float(figure(section, what).value)
    assert value == pytest.approx(naive_mean(**naive), abs=1e-9)
    assert round(value, 2) == pinned


def test_three_items_put_sft_before_sft_and_opd():
    """What the note says: an item each on AIME24, AIME25 and LMB-H is 0.89 pp of the mean over ten."""
    assert [PAPER.counts["SFT"][one] - PAPER.counts["SFT+OPD"][one] for one in ("AIME24", "AIME25", "LMB-H")] == [1] * 3
    assert round((100 / 30 + 100 / 30 + 100 / 45) / 10, 2) == 0.89
    assert figure("shared-subset", "SFT above OPD: benchmarks").value == 10


def test_the_sdar_row_repeats_three_counts_of_another_model():
    assert figure("second-family", "large counts that are those of B-high").value == 3
    large = [one for one in PAPER.items if PAPER.items[one] > 100]
    assert [one for one in large if PAPER.counts["SDAR-4B"][one] == PAPER.counts["B-high"][one]] == [
        *("MLogiQA", "MMLU", "MT-AIME")
    ]
    # No other two models share that many, or the count of MMLU. The main run stands in three tables.
    models = {name: column for name, column in PAPER.counts.items() if name not in ("2000 updates", "4/30")}
    for (a, first), (b, second) in itertools.combinations(models.items(), 2):
        if {a, b} != {"SDAR-4B", "B-high"}:
            assert sum(first.get(one) == second.get(one, -1) for one in large) <= 2
            assert first["MMLU"] != second["MMLU"]


def test_the_smallest_margin_at_4b_is_not_that_of_mmlu():
    margins = {
        one: float(PAPER.percent("4/30", one) - max(PAPER.percent(other, one) for other in OTHERS)) for one in LED
    }
    assert min(margins, key=margins.get) == "AIME25"
    assert (round(margins["AIME25"], 2), round(margins["MMLU"], 2)) == (0.73, 1.15)
    assert figure("published", "4/30: smallest margin of seven").value == "AIME25"
    assert figure("published", "8/30: smallest margin of seven").value == "MMLU"


LED = ["MATH500", "AIME24", "AIME25", "MLogiQA", "CEval", "MMLU", "MT-AIME"]
OTHERS = ["SDAR-Chat-4B", "OPDLM-4B"]


def test_gaps_in_items():
    assert float(figure("published", "8/30 behind OPDLM-8B, items", "GPQA-D").value) == pytest.approx(0.361 * 198 - 70)
    assert float(figure("published", "4/30 behind SDAR-Chat-4B, items", "GSM8K").value) == pytest.approx(
        0.899 * 1319 - 1124
    )


def test_intervals():
    one = figure("main", "accuracy before, %", "MATH500")
    assert one.interval == pytest.approx([100 * end for end in wilson_interval(363, 500)])
    # 55 translations of a question are one item.
    one = figure("main", "accuracy before, %", "MT-AIME")
    assert one.interval == pytest.approx([100 * end for end in wilson_interval(141 / 55, 30)])
    assert figure("main", "benchmarks up").interval is None
    for figures in FIGURES.values():
        assert all(one.interval[0] <= one.value <= one.interval[1] for one in figures if one.interval)


# What can go wrong


@pytest.mark.parametrize(
    ("value", "digits", "expected"),
    [("45.625", 2, "45.63"), ("-45.625", 2, "-45.63"), ("0.005", 2, "0.01"), ("1.994", 2, "1.99"), ("2.5", 0, "3")],
)
def test_halves_are_rounded_away_from_zero(value, digits, expected):
    assert rounded(Fraction(value), digits) == Fraction(expected)


@pytest.mark.parametrize(
    ("printed", "value", "agrees"),
    [
        ("+2.50", Fraction(3300, 1319), True),
        ("2.51", Fraction(3300, 1319), False),
        ("-0.50", Fraction(-1, 2), True),
        ("0.50", Fraction(-1, 2), False),
        ("yes", "yes", True),
        ("MMLU", "AIME25", False),
        (None, Fraction(1), None),
    ],
)
def test_a_figure_agrees_to_its_printed_digits(printed, value, agrees):
    assert Figure("a figure", None, None, printed, value, None, None).agrees is agrees


def test_an_unknown_section():
    with pytest.raises(ForkLeftError, match="no table 'mian'; there are main, checkpoint-curve, order-view"):
        recompute(PAPER, "mian")
