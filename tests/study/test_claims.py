import json
from dataclasses import replace

import pytest
from studies import made_up_results, without

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import Estimate, holm
from forkleft.study.analysis import analyse
from forkleft.study.claims import judge, read_claims
from forkleft.study.effects import Effect, sign_flips

GAIN = {"claim": "It helps.", "source": "paper", "study": "made-up", "gain": "L-high"}
VIEW = {"claim": "The view helps.", "source": "paper", "study": "made-up", "difference": "view: L − B"}
WORSE = {"claim": "B-low beats it.", "source": "ours", "study": "made-up", "difference": "B-low − L-high"}
NONE = {"claim": "Low beats high in B.", "source": "ours", "study": "made-up", "difference": "B-low − B-high"}


def claims_of(folder, *rows):
    path = folder / "claims.yaml"
    path.write_text(json.dumps({"claims": rows}))
    return read_claims(path)


@pytest.fixture(scope="module")
def shown():
    results = made_up_results(compare=(("B-low", "L-high"), ("B-low", "B-high")))
    return {"made-up": (results, analyse(results, resamples=500))}


def test_each_claim_is_judged_by_its_own_figure(tmp_path, shown):
    judged = judge(claims_of(tmp_path, GAIN, VIEW, WORSE, NONE), shown)
    assert [j.verdict for j in judged] == ["supported", "supported", "not supported", "undecided"]
    results, analysis = shown["made-up"]
    assert judged[0].figure == analysis.gains["static"]["L-high"]
    # By hand: the mean over benchmarks of each seed, arm minus base, and the share of sign flips as far from zero.
    by_seed = []
    for seed in results.seeds:
        trained, base = results.of_arm("L-high", "static")[seed], results.of_base("L-high", "static")[seed]
        by_seed.append(sum(trained[b].mean() - base[b].mean() for b in results.benchmarks) / 3)
    assert judged[0].figure.p == sign_flips(by_seed) == 2 / 2**8
    assert [j.holm for j in judged] == holm([j.figure.p for j in judged])


@pytest.mark.parametrize(
    ("value", "low", "high", "p", "verdict"),
    [
        (0.05, 0.01, 0.09, 0.05, "supported"),
        (0.05, -0.01, 0.09, 0.051, "undecided"),
        (0.002, -0.005, 0.0099, 0.5, "not supported"),
        (0.002, -0.005, 0.01, 0.5, "undecided"),
        (-0.05, -0.12, 0.02, 0.01, "not supported"),
        (-0.05, -0.12, 0.02, 0.06, "undecided"),
    ],
)
def test_the_rule(tmp_path, shown, value, low, high, p, verdict):
    results, analysis = shown["made-up"]
    figure = Effect({}, Estimate(value, low, high), (value,), p)
    told = replace(analysis, gains={"static": {"L-high": figure}})
    (judged,) = judge(claims_of(tmp_path, GAIN), {"made-up": (results, told)})
    assert (judged.figure, judged.holm, judged.verdict) == (figure, p, verdict)


def test_a_curve_is_judged_between_two_updates(tmp_path):
    results = made_up_results(arms={"a": 0.7}, steps={10: 0.2}, compare=(), effects={})
    shown = {"made-up": (results, analyse(results, resamples=500))}
    claim = {"claim": "It goes on.", "source": "paper", "study": "made-up", "curve": ["a", 10, 50]}
    (judged,) = judge(claims_of(tmp_path, claim), shown)
    late, early = results.of_arm("a", "static")[1], results.of_arm("a", "static", 10)[1]
    gains = [late[b].mean() - early[b].mean() for b in results.benchmarks]
    assert judged.figure.by_seed[0] == pytest.approx(sum(gains) / 3) and judged.verdict == "supported"
    # A checkpoint that was not measured decides nothing.
    (judged,) = judge(claims_of(tmp_path, claim | {"curve": ["a", 11, 50]}), shown)
    assert (judged.figure, judged.holm, judged.verdict) == (None, None, "undecided")


def test_what_was_not_run_is_undecided(tmp_path, shown):
    results = shown["made-up"][0]
    bare = without(results, *(name for name in results.cells if name.startswith("L-high")))
    partly = {"made-up": (bare, analyse(bare, resamples=500))}
    judged = judge(claims_of(tmp_path, GAIN, GAIN | {"study": "other"}), partly)
    assert [(j.figure, j.verdict) for j in judged] == [(None, "undecided")] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (GAIN | {"gian": "x"}, "claim 1: unknown key 'gian'; did you mean gain"),
        ({"claim": "x", "source": "paper", "study": "s"}, "expected claim, source, study and one of gain, diff"),
        (GAIN | {"difference": "a − b"}, "expected claim, source, study and one of"),
        (VIEW | {"difference": None} | {"curve": ["a", "5%", 3]}, "and one of"),
        ({"claim": "x", "source": "p", "study": "s", "curve": ["a", "5%", 3]}, r"expected `curve: \[ARM, UPDATE"),
        ("words", "expected names with values, found 'words'"),
    ],
)
def test_a_claim_that_says_nothing_is_refused(tmp_path, row, message):
    with pytest.raises(ForkLeftError, match=message):
        claims_of(tmp_path, row)


def test_a_file_without_claims(tmp_path):
    (tmp_path / "claims.yaml").write_text("other: 1")
    with pytest.raises(ForkLeftError, match="expected one list under `claims`, found other"):
        read_claims(tmp_path / "claims.yaml")


def test_a_figure_that_the_study_does_not_have(tmp_path, shown):
    with pytest.raises(ForkLeftError, match="asks made-up for 'L-hihg', which it does not have; did you mean L-high"):
        judge(claims_of(tmp_path, GAIN | {"gain": "L-hihg"}), shown)
    with pytest.raises(ForkLeftError, match="asks made-up for 'view: B − L'"):
        judge(claims_of(tmp_path, VIEW | {"difference": "view: B − L"}), shown)
    with pytest.raises(ForkLeftError, match="asks made-up for 'statc', which it does not have; did you mean static"):
        judge(claims_of(tmp_path, GAIN | {"decoding": "statc"}), shown)
