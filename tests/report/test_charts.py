import re
from xml.etree import ElementTree

import pytest

from forkleft.evaluate.statistics import Estimate
from forkleft.report.charts import Series, _ticks, area_chart, interval_chart, line_chart, mean_series, smooth


def elements(html, name):
    return [element for element in ElementTree.fromstring(html).iter() if element.tag == name]


def test_lines_are_where_their_values_are():
    html = line_chart("Loss", [Series("all", [(1, 0.0), (2, 1.0), (3, 0.5)], 1)], unit="nats")
    (line,) = elements(html, "polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    low, high, middle = (y for _, y in points)
    assert middle == pytest.approx((low + high) / 2) and high < low
    assert "Loss over updates: all from 0 to 0.5" in elements(html, "svg")[0].get("aria-label")


def test_many_points_have_a_moving_mean():
    ys = [float(k % 2) for k in range(20)]
    html = line_chart("x", [Series("a", list(enumerate(ys)), 1)])
    assert [line.get("class") for line in elements(html, "polyline")] == ["line c1 raw", "line c1"]
    assert smooth([1.0, 1.0, 4.0]) == [2.0, 2.0, 2.0]


def test_layers_add_up():
    html = area_chart("Routes", [1, 2], {"a": [25.0, 50.0], "none": [0.0, 0.0], "b": [75.0, 50.0]}, colours=[3, 4, 6])
    shapes = elements(html, "polygon")
    assert [shape.get("class") for shape in shapes] == ["area c3", "area c6"]
    tops = [[float(pair.split(",")[1]) for pair in shape.get("points").split()[:2]] for shape in shapes]
    assert tops[1][0] == tops[1][1] < min(tops[0])
    assert len(elements(area_chart("One", [1], {"a": [1.0]}), "polygon")) == 1


def test_nothing_gives_nothing():
    assert line_chart("x", [Series("a", [], 1)]) == ""
    assert area_chart("x", [], {"a": []}) == ""
    assert area_chart("x", [1], {"a": [0.0]}) == ""
    assert interval_chart("x", []) == ""


def test_intervals_say_whether_they_reach_zero():
    html = interval_chart("Gain", [("sure", Estimate(0.1, 0.05, 0.15)), ("unsure", Estimate(0.1, -0.05, 0.25))])
    assert [line.get("class").split() for line in elements(html, "circle")] == [["value", "sure"], ["value"]]
    texts = [element.text for element in elements(html, "text")]
    assert {"sure", "unsure", "+10.0 (+5.0, +15.0)", "+10.0 (-5.0, +25.0)"} <= set(texts)


def test_texts_are_escaped():
    hostile = '<script>"&'
    for html in (
        line_chart(hostile, [Series(hostile, [(1, 1)], 1), Series("b", [(1, 2)], 2)], unit=hostile),
        area_chart(hostile, [1, 2], {hostile: [1, 1], "b": [1, 1]}, unit=hostile),
        interval_chart(hostile, [(hostile, Estimate(0, 0, 0))]),
    ):
        assert "<script" not in html
        assert ElementTree.fromstring(html) is not None
        # The policy of the page forbids style attributes.
        assert not re.search(r"\bstyle=", html)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.003), (-5, 12), (3, 3), (0, 0), (0, 98765)])
def test_ticks_are_few_and_reach_around(low, high):
    ticks = _ticks(low, high, 4)
    assert 1 <= len(ticks) <= 7 and ticks[0] <= low and ticks[-1] >= high


def test_the_mean_of_lines_stands_before_them():
    lines = [[(1.0, 2.0), (2.0, 4.0)], [(1.0, 4.0)]]
    mean = mean_series("arm", lines, 2)
    assert list(mean.points) == [(1.0, 3.0), (2.0, 4.0)] and mean.behind == lines
    assert mean_series("arm", lines[:1], 2).behind == ()
    svg = line_chart("one", [mean])
    assert svg.count("raw") == 2 and svg.index("raw") < svg.index('class="line c2"')
