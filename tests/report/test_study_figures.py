import pytest
from skips import slow
from studies import made_up_results, without

from forkleft.report.study_figures import draw_study
from forkleft.study.analysis import analyse

ONE = {"arms": {"L-high": 0.7}, "compare": (), "effects": {}}
KINDS = {
    "order-view": ({}, {"accuracy", "differences", "interaction", "routes"}),
    "curve": (ONE | {"steps": {5: 0.2, 25: 0.8}}, {"accuracy", "curve", "routes"}),
    "strength": (
        {"arms": {"a": 0.6, "b": 0.7}, "teachers": {"a": ("t", 0.7)}, "compare": (("a", "b"),), "effects": {}},
        {"accuracy", "differences", "strength", "routes"},
    ),
    "decoding": (ONE | {"decoding": {"static": {}, "fast": {"passes": 4}}}, {"accuracy", "decoding", "routes"}),
    "ten benchmarks": (ONE | {"benchmarks": tuple(f"b{k}" for k in range(10))}, {"accuracy", "routes"}),
    "one benchmark": ({"benchmarks": ("b",)}, {"accuracy", "differences", "interaction", "routes"}),
}


@pytest.mark.parametrize("kind", [kind if kind in ("order-view", "strength") else slow(kind) for kind in KINDS])
def test_each_study_has_its_figures(tmp_path, kind):
    changes, expected = KINDS[kind]
    results = made_up_results(seeds=(1, 2), items=40, **changes)
    assert set(draw_study(results, analyse(results, resamples=20), tmp_path)) == expected
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{name}{end}" for name in expected for end in (".png", ".svg")
    }
    text = (tmp_path / "accuracy.svg").read_text()
    # Text, not outlines, in the same file from the same numbers.
    assert all(name in text for name in (*results.arms, *results.benchmarks)) and "<dc:date>" not in text


def test_what_is_missing_is_not_drawn(tmp_path):
    results = made_up_results(seeds=(1, 2), items=40, benchmarks=("b",))
    draw_study(results, analyse(results, resamples=20), tmp_path)
    torn = without(results, "B-low-1", "B-low-2")
    # A figure of before would show what is no longer there.
    assert "interaction" not in draw_study(torn, analyse(torn, resamples=20), tmp_path)
    assert not (tmp_path / "interaction.png").exists()
    nothing = without(results, *results.cells)
    assert draw_study(nothing, analyse(nothing, resamples=20), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
