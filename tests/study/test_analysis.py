from dataclasses import replace

import numpy as np
import pytest
from studies import FACTORS, made_up_results, without

from forkleft.evaluate.statistics import holm
from forkleft.study.analysis import analyse, factor_weights
from forkleft.study.results import Routes

ARMS = ("L-high", "L-low", "B-high", "B-low")


@pytest.fixture(scope="module")
def results():
    return made_up_results()


@pytest.fixture(scope="module")
def analysis(results):
    return analyse(results, resamples=500)


def mean(results, arm):
    return np.mean([v.mean() for by_name in results.of_arm(arm, "static").values() for v in by_name.values()])


def test_rows_are_the_base_the_arms_and_the_teacher(results, analysis):
    rows = analysis.rows["static"]
    assert [(row.kind, row.name, row.models) for row in rows] == [
        ("base", "base", 1),
        *(("arm", arm, 8) for arm in ARMS),
        ("teacher", "teacher", 1),
    ]
    for row in rows[1:5]:
        assert row.accuracy.mean.value == pytest.approx(mean(results, row.name))
        base = rows[0].accuracy.mean.value
        assert analysis.gains["static"][row.name].mean.value == pytest.approx(row.accuracy.mean.value - base)


def test_effects_are_those_of_the_paper_s_table(results, analysis):
    """Its arithmetic by hand: main effects averaged over the other factor, the interaction a difference of them."""
    lh, ll, bh, bl = (mean(results, arm) for arm in ARMS)
    expected = {
        "L-high − L-low": lh - ll,
        "L-high − B-high": lh - bh,
        "view: L − B": (lh + ll) / 2 - (bh + bl) / 2,
        "order: high − low": (lh + bh) / 2 - (ll + bl) / 2,
        "view × order": (lh - ll) - (bh - bl),
    }
    found = {one.name: one.difference.mean.value for one in analysis.comparisons}
    assert found == pytest.approx(expected)
    assert [one.holm for one in analysis.comparisons] == holm([one.difference.p for one in analysis.comparisons])
    first, *_, last = analysis.comparisons
    assert len(first.within) == 8 and last.within == ()
    by_seed = results.of_arm("L-high", "static"), results.of_arm("L-low", "static")
    only = sum(int((by_seed[0][3][name] & ~by_seed[1][3][name]).sum()) for name in results.benchmarks)
    assert first.within[2].only_first == only


def test_weights_of_the_paper_s_numbers():
    """Mean gains of its order–view table: the effects that its text prints."""
    gains = {"L-high": 4.93, "L-low": 2.31, "B-high": 0.14, "B-low": -0.50}
    found = {
        name: sum(weight * gains[arm] for arm, weight in weights.items())
        for name, weights in factor_weights(
            {f: {k: tuple(v) for k, v in ls.items()} for f, ls in FACTORS.items()}
        ).items()
    }
    assert found == pytest.approx({"view: L − B": 3.80, "order: high − low": 1.63, "view × order": 1.98}, abs=0.011)


def test_a_seed_that_is_missing_in_one_arm_is_compared_in_none(results):
    torn = without(results, "L-low-1", "L-low-2")
    analysis = analyse(torn, resamples=50)
    assert {row.name: row.models for row in analysis.rows["static"]}["L-low"] == 6
    assert [one.difference.seeds for one in analysis.comparisons] == [6, 8, 6, 6, 6]
    assert analysis.comparisons[0].seeds == (3, 4, 5, 6, 7, 8)
    empty = without(results, *(f"L-low-{seed}" for seed in results.seeds))
    analysis = analyse(empty, resamples=50)
    assert [one.name for one in analysis.comparisons] == ["L-high − B-high"]
    assert "L-low" not in [row.name for row in analysis.rows["static"]]
    nothing = analyse(without(results, *results.cells), resamples=50)
    assert nothing.rows == {"static": []} and not nothing.comparisons and not nothing.routes


def test_arms_with_other_students_and_teachers_have_other_bases(results):
    from dataclasses import replace

    places = tuple(replace(p, base="other") if p.arm == "B-low" else p for p in results.places)
    places = tuple(replace(p, teacher="lab:u") if p.arm in ("L-low", "B-low") else p for p in places)
    cells = results.cells | {"other": results.cells["base"], "lab:u": results.cells["lab:t"]}
    rows = analyse(replace(results, places=places, cells=cells), resamples=50).rows["static"]
    names = [row.name for row in rows if row.kind != "arm"]
    assert names == ["base of L-high", "base of B-low", "teacher of L-high", "teacher of L-low"]


def test_several_students_are_one_base(results):
    from dataclasses import replace

    places = tuple(replace(p, base=("base", "two", "three")[p.seed % 3]) for p in results.places)
    cells = results.cells | {name: results.cells[f"B-low-{k}"] for k, name in enumerate(("two", "three"), 1)}
    base = analyse(replace(results, places=places, cells=cells), resamples=50).rows["static"][0]
    assert (base.name, base.models, base.accuracy.seeds) == ("base", 3, 3)


def test_who_is_right_on_the_benchmarks_and_in_training(results, analysis):
    base = next(one for one in analysis.verdicts if (one.model, one.benchmark) == ("base", "lab-chain-4"))
    student = results.of_base("L-high", "static")[1]["lab-chain-4"]
    teacher = results.of_teacher("L-high")[1]["lab-chain-4"]
    assert base.teacher_only == (teacher & ~student).sum() and base.both == (teacher & student).sum()
    assert base.both + base.teacher_only + base.student_only + base.neither == base.items == 500
    routes = {one.arm: one for one in analysis.routes}
    assert sum(routes["L-high"].first) == pytest.approx(1) and len(routes["L-high"].parts) == 10
    assert routes["L-high"].parts[9][1] < routes["L-high"].parts[0][1] < routes["B-low"].parts[0][1]


def test_curves_and_ways_to_decode():
    curve = made_up_results(steps={5: 0.2, 25: 0.8}, arms={"L-high": 0.7}, compare=(), effects={}, seeds=(1, 2))
    assert list(analyse(curve, resamples=50).curves["static"]["L-high"]) == [0, 5, 25, 50]
    both = made_up_results(decoding={"static": {}, "fast": {"passes": 4}}, seeds=(1, 2, 3))
    analysis = analyse(both, resamples=50)
    assert [one.decoding for one in analysis.comparisons] == ["static"] * 5 + ["fast"] * 5
    assert set(analysis.gains) == {"static", "fast"}


def test_the_routes_of_fewer_than_ten_updates():
    results = made_up_results(seeds=(1, 2))
    nothing, two = (0, 0, 0, 0), Routes((5, 5, 0, 0), ((4, 6, 0, 0), *[(0,) * 4] * 4, (7, 3, 0, 0), *[(0,) * 4] * 4))
    cells = {name: replace(cell, routes=two) for name, cell in results.cells.items() if name.startswith("L-high")}
    cells["L-low-1"] = replace(results.cells["L-low-1"], routes=Routes(nothing, (nothing,) * 10))
    routes = {one.arm: one for one in analyse(replace(results, cells=results.cells | cells), resamples=50).routes}
    # The last tenth of two updates is in the second; a run that saw no question has no shares.
    assert [part[1] for part in routes["L-high"].parts] == [0.6] * 5 + [0.3] * 5
    assert routes["L-low"].seeds == 1 and np.isfinite(routes["L-low"].parts).all()
