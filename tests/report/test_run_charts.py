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


def test_runs_of_a_group_share_colour_and_name(tmp_path):
    runs = gather([made_up_run(tmp_path / name) for name in ("a", "b")]).runs
    apart = charts_of_several(runs)
    assert apart[0].count("<li>") == 2 and "line c1" in apart[0] and "line c2" in apart[0]
    together = charts_of_several([run.__class__(**vars(run) | {"group": "arm"}) for run in runs])
    assert together[0].count("<li>") == 1 and "c2" not in together[0]
    assert "Right held-out" in titles(apart)[1]


def test_a_row_of_several_updates_is_divided_by_them():
    rows = [{"step": step, "route_leftopd": 3, "questions": 4, "seconds_a": 1.0, "seconds_b": 2.0} for step in (1, 3)]
    first, second = by_update(rows)
    assert (first["share"], first["seconds"], first["questions"]) == (0.75, 3.0, 4)
    assert (second["share"], second["seconds"], second["seconds_a"], second["questions"]) == (0.75, 1.5, 0.5, 2)
