from dataclasses import replace
from xml.etree import ElementTree

from reports import made_up_run

from forkleft.report.gather import gather
from forkleft.report.run_charts import by_update, charts_of_one, charts_of_several


def titles(charts):
    return [ElementTree.fromstring(chart).find("figcaption").text.strip() for chart in charts if chart]


def test_a_run_has_all_curves(tmp_path):
    (run,) = gather([made_up_run(tmp_path / "run")]).runs
    assert titles(charts_of_one(run)) == [
        "Right answers",
        "Routes",
        "Loss by route",
        "KL to the teacher",
        "Ranking loss",
        "Entropies at supervised positions",
        "Response length",
        "Time by phase",
    ]


def test_runs_of_a_group_share_colour_name_and_mean(tmp_path):
    runs = gather([made_up_run(tmp_path / name) for name in ("a", "b")]).runs
    apart = charts_of_several(runs)
    assert apart[0].count("<li>") == 2 and "line c1" in apart[0] and "line c2" in apart[0]
    together = charts_of_several([replace(run, group="arm") for run in runs] + [replace(runs[0], group="other")])
    assert together[0].count("<li>") == 2 and "c3" not in together[0]
    # Each run of the arm is pale, their mean strong; a run alone is itself.
    assert together[0].count('class="line c1 raw"') == 2 and together[0].count('class="line c2') == 2
    assert "Right held-out" in titles(apart)[1]


def test_a_row_of_several_updates_is_divided_by_them():
    rows = [{"step": step, "route_leftopd": 3, "questions": 4, "seconds_a": 1.0, "seconds_b": 2.0} for step in (1, 3)]
    first, second = by_update(rows)
    assert (first["share"], first["seconds"], first["questions"]) == (0.75, 3.0, 4)
    assert (second["share"], second["seconds"], second["seconds_a"], second["questions"]) == (0.75, 1.5, 0.5, 2)
