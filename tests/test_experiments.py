import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from studies import made_up_results

from experiments.__main__ import main, page
from experiments.claims import Claim, claims_table, difference, judge, read_claims, verdict
from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import Estimate
from forkleft.report.studies import show_study
from forkleft.study.effects import Effect
from forkleft.study.results import save_results

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"


def found(value, low, high):
    return Effect({}, Estimate(value, low, high), (), None)


@pytest.mark.parametrize(
    ("effect", "p", "expected"),
    [
        (found(0.03, 0.01, 0.05), 0.02, "supported"),
        (found(-0.03, -0.05, -0.01), 0.02, "not supported"),
        (found(0.0, -0.008, 0.008), 0.9, "not supported"),
        (found(0.004, -0.01, 0.02), 0.6, "undecided at this scale"),
        # Seeds that agree, but too few of them for the test.
        (found(0.03, 0.01, 0.05), 0.0625, "undecided at this scale"),
    ],
)
def test_the_rule(effect, p, expected):
    assert verdict(effect, p) == expected


def test_claims_are_judged_by_their_figures():
    results = made_up_results(steps={25: 0.9})
    claims = [
        Claim("order", "paper", "made-up", ("L-high",), ("L-low",)),
        Claim("view", "paper", "made-up", ("L-high", "L-low"), ("B-high", "B-low")),
        Claim("the other way", "ours", "made-up", ("B-high",), ("L-high@0",)),
        Claim("late", "ours", "made-up", ("L-high",), ("L-high@25",)),
        Claim("elsewhere", "ours", "missing", ("a",), ("b",)),
    ]
    judged = judge(claims, {"made-up": results}, resamples=200)
    assert [row.claim.says for row in judged] == ["order", "view", "the other way", "late"]

    def mean(arm, step=None):
        return np.mean([list(v.values()) for v in results.of_arm(arm, "static", step).values()])

    values = [row.difference.mean.value for row in judged]
    assert values[0] == pytest.approx(mean("L-high") - mean("L-low"))
    assert values[1] == pytest.approx((mean("L-high") + mean("L-low") - mean("B-high") - mean("B-low")) / 2)
    assert values[2] == pytest.approx(mean("B-high") - mean("L-high", 0))
    assert values[3] == pytest.approx(mean("L-high") - mean("L-high", 25))
    # Holm: the smallest of four p is multiplied by four.
    assert min(row.p for row in judged) == pytest.approx(4 * min(row.difference.p for row in judged))
    assert judged[1].verdict == "supported"
    lines = claims_table(judged)
    assert len(lines) == 6 and lines[3].startswith("| view | paper | `made-up` | 8 | +") and "**supported**" in lines[3]


def test_an_arm_that_is_not_there():
    with pytest.raises(ForkLeftError, match="made-up has no arm 'L-hihg'; its arms are L-high"):
        difference(Claim("", "", "made-up", ("L-hihg",), ("L-low",)), made_up_results(), resamples=10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{says: x, source: y, study: z, above: [a]}]", "the claim 'x' lacks below"),
        ("[{says: x, arms: [a]}]", "a claim has says, source.*found arms"),
    ],
)
def test_claims_that_cannot_be_read(tmp_path, text, message):
    (tmp_path / "claims.yaml").write_text(text)
    with pytest.raises(ForkLeftError, match=message):
        read_claims(tmp_path / "claims.yaml")


@pytest.fixture
def small(tmp_path):
    """A folder as `experiments` is, with one made-up study."""
    folder = tmp_path / "experiments"
    (folder / "made-up").mkdir(parents=True)
    save_results(folder / "made-up" / "results.json", made_up_results(items=20))
    (folder / "claims.yaml").write_text("[{says: s, source: paper, study: made-up, above: [L-high], below: [B-low]}]")
    views = {"positions": 1000, "target_masked_right": 990, "prefix_right": 970, "disagreements": 40}
    views |= {"target_masked_only": 30, "prefix_only": 6, "neither": 4}
    (folder / "probe.json").write_text(json.dumps({"student-a": views}))
    return folder


def test_the_page_is_filled(small):
    (small / "page.md").write_text(
        "# R\n\n{{claims}}\n\n{{table made-up Differences}}\n\n{{figure made-up accuracy}}\n\n{{probe}}\n"
    )
    text = page(small)
    assert "| s | paper | `made-up` | 8 |" in text and "| L-high − L-low | 8 |" in text
    assert "![made-up, accuracy](../experiments/made-up/accuracy.svg)" in text
    assert "| student-a | 1,000 | 99.0% | 97.0% | 4.0% | 75.0% | 15.0% | 10.0% |" in text
    assert (small / "made-up" / "accuracy.svg").is_file() and "{{" not in text


def test_a_place_that_nothing_fills(small):
    (small / "page.md").write_text("{{tabel made-up Differences}}\n")
    with pytest.raises(ForkLeftError, match="nothing called 'tabel made-up Differences'"):
        page(small)


def test_results_with_holes_are_not_taken(tmp_path):
    (tmp_path / "made-up").mkdir()
    results = made_up_results(items=20, holes=[("L-low, seed 9", "failed", "forkleft train")])
    save_results(tmp_path / "made-up" / "results.json", results)
    with pytest.raises(ForkLeftError, match="made-up lacks 1 cells; finish it"):
        main(["--take", str(tmp_path)])


def test_the_committed_page_is_made_from_the_committed_results(tmp_path):
    copy = Path(shutil.copytree(EXPERIMENTS, tmp_path / "experiments", ignore=shutil.ignore_patterns("*.svg", "*.png")))
    assert page(copy) == (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    for folder in copy.iterdir():
        if (folder / "results.json").is_file():
            results, _ = show_study(folder)
            assert not results.holes
            assert (folder / "table.md").read_text() == (EXPERIMENTS / folder.name / "table.md").read_text()
