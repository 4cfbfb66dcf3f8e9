import pytest

from forkleft.evaluate.statistics import contrast, equal_weight_mean, gain_of_table, mcnemar, smallest_gain
from forkleft.study.noise import compare_counts, compare_section
from forkleft.study.paper import read_paper

PAPER = read_paper()


@pytest.fixture(scope="module")
def main_run():
    return compare_counts(PAPER, "2000 updates", "EDLM-4B")


def test_the_main_run(main_run):
    assert (main_run.up, main_run.level, main_run.down) == (10, 0, 0)
    assert main_run.mean == pytest.approx(4.93, abs=0.005)
    assert main_run.sign_p == 2 / 2**10
    assert main_run.cautious == pytest.approx((1.38, 8.50), abs=0.01)
    assert main_run.bold == pytest.approx((2.92, 7.19), abs=0.01)
    assert {one.benchmark: one.verdict for one in main_run.changes} == {
        "GSM8K": "open",
        "MATH500": "clear",
        "AIME24": "noise",
        "AIME25": "noise",
        "LMB-H": "noise",
        "GPQA-D": "noise",
        "MLogiQA": "clear",
        "CEval": "open",
        "MMLU": "clear",
        "MT-AIME": "open",
    }
    assert [main_run.count(verdict) for verdict in ("clear", "open", "noise")] == [3, 3, 4]


def test_a_change_has_both_readings(main_run):
    one = main_run.changes[1]
    assert (one.benchmark, one.items) == ("MATH500", 500)
    assert one.gain == pytest.approx(7.0)
    assert one.bold == pytest.approx(100 * 6 / 500)
    assert one.cautious == pytest.approx(100 * smallest_gain(363, 500, nothing_lost=False) / 500)
    assert (one.before.value, one.after.value) == pytest.approx((72.6, 79.6))


def test_a_verdict_is_what_mcnemar_says(main_run):
    for one in main_run.changes[:-1]:
        before, after = PAPER.counts["EDLM-4B"][one.benchmark], PAPER.counts["2000 updates"][one.benchmark]
        lost = -(-before * (one.items - after) // one.items)
        told = [mcnemar(losses, losses + after - before) <= 0.05 for losses in (0, lost)]
        assert one.verdict == {(False, False): "noise", (True, False): "open", (True, True): "clear"}[*told]


def test_translations_are_items_or_one_item(main_run):
    one = main_run.changes[-1]
    assert (one.benchmark, one.items) == ("MT-AIME", 1650)
    assert one.bold == pytest.approx(100 * 6 / 1650)
    # 141 of 1650 are 2.6 of 30.
    assert one.cautious == pytest.approx(100 * smallest_gain(3, 30, nothing_lost=False) / 30)


def test_a_loss_is_a_gain_read_backwards(main_run):
    back = compare_counts(PAPER, "EDLM-4B", "2000 updates")
    assert back.mean == pytest.approx(-main_run.mean)
    assert back.cautious == pytest.approx([-end for end in reversed(main_run.cautious)])
    assert back.bold == pytest.approx([-end for end in reversed(main_run.bold)])
    assert (back.up, back.down, back.sign_p) == (0, 10, main_run.sign_p)
    assert [one.verdict for one in back.changes] == [one.verdict for one in main_run.changes]


def test_means_are_those_of_the_statistics():
    found = compare_counts(PAPER, "B-low", "EDLM-4B")
    tables, independent = [], []
    for name, items in PAPER.items.items():
        before, after = PAPER.counts["EDLM-4B"][name], PAPER.counts["B-low"][name]
        lost, gained = max(before - after, 0), max(after - before, 0)
        tables.append(gain_of_table(before - lost, lost, gained, items - before - gained))
        independent.append(contrast([(1, PAPER.accuracy("B-low", name)), (-1, PAPER.accuracy("EDLM-4B", name))]))
    for ends, estimates in ((found.bold, tables), (found.cautious, independent)):
        mean = equal_weight_mean(estimates)
        assert ends == pytest.approx((100 * mean.low, 100 * mean.high))
        assert found.mean == pytest.approx(100 * mean.value)


def test_only_what_both_have_is_compared():
    found = compare_counts(PAPER, "Q3-8B", "Q3-4B")
    assert len(found.changes) == 9
    assert found.up + found.level + found.down == 9


def test_sections():
    names = [(one.after, one.before) for one in compare_section(PAPER, "second-family")]
    assert names == [("SDAR-4B 500", "SDAR-4B")]
    assert compare_section(PAPER, "diagnostics") == []
    columns = {name for section in PAPER.sections.values() for pair in section.get("compare", []) for name in pair}
    assert columns <= PAPER.counts.keys()
