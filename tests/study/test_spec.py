import sys
from pathlib import Path

import pytest
from studies import FACTORS, LAB, ORDER_VIEW, study_file

from forkleft.errors import ForkLeftError
from forkleft.study.spec import curve_steps, read_study, with_seeds
from forkleft.trust import Trust

STUDIES = sorted((Path(__file__).parents[2] / "recipes" / "studies").glob("*.yaml"))
MAIN = {"main": {}, "opd": {"questions_from": {"arm": "main", "route": "LEFTOPD"}, "supervision": "opd"}}


def test_the_studies_of_the_issue_are_there():
    names = {path.stem for path in STUDIES}
    paper = {"order-view", "shared-subset", "teacher-strength", "second-family", "checkpoint-curve", "routes"}
    ours = {"prefix-geometry", "training-order", "rank-off", "routing-off", "rho", "decoding"}
    assert paper | ours <= names
    for path in STUDIES:
        # None of them asks for code of others.
        study = read_study(path, trust=Trust())
        assert study.name == path.stem and study.about.endswith("?")
        assert len(study.seeds) >= (8 if study.name == "order-view" else 1 if study.name.startswith("paper") else 5)


def test_what_decides_an_option(tmp_path):
    """The base, set, with_seed, the arm, --set for all, --set for one arm: each wins over those before it."""
    path = study_file(
        tmp_path,
        set={"rho": 0.1, "mu": 0.2, "delta": 0.2, "rank_weight": 0.2},
        with_seed={"mu": [0.3, 0.4], "delta": [0.3, 0.4], "rank_weight": [0.3, 0.4]},
        arms={"a": {"delta": 0.5, "rank_weight": 0.5}, "b": {"rank_weight": 0.5}},
        compare=None,
    )
    study = read_study(path, overrides=["rank_weight=0.6", "b.rank_weight=0.7", "warmup_steps=3"])
    names = ("learning_rate", "rho", "mu", "delta", "rank_weight", "seed", "warmup_steps")
    first, second = (tuple(study.options("a", seed)[name] for name in names) for seed in (1, 2))
    assert first == (2e-4, 0.1, 0.3, 0.5, 0.6, 1, 3)
    assert second == (2e-4, 0.1, 0.4, 0.5, 0.6, 2, 3)
    assert study.options("b", 2)["rank_weight"] == 0.7
    # What takes turns stays with its seed where others are left out.
    some = with_seeds(study, [2])
    assert some.seeds == (2,) and some.options("a", 2) == study.options("a", 2)


def test_an_option_without_a_value_has_its_default_whatever_the_base_says(tmp_path):
    study = read_study(study_file(tmp_path, arms={"a": {"rho": None, "columns": None}, "b": {}}, compare=None))
    assert study.options("b", 1)["rho"] == 0.5 and study.options("b", 1)["columns"] == {"answer": "solution"}
    assert study.options("a", 1)["rho"] == 0.25 and study.options("a", 1)["columns"] is None


def test_students_of_several_pretraining_seeds_take_turns(tmp_path):
    students = ["lab:one", "lab:two", "lab:three"]
    arms = {"block": {}, "shifted": {"with_seed": {"student": ["lab:x", "lab:y"]}}, "alone": {"student": "lab:z"}}
    path = study_file(tmp_path, seeds=[1, 2, 3, 4], arms=arms, with_seed={"student": students}, compare=None)
    study = read_study(path)
    named = {arm: [study.options(arm, seed)["student"] for seed in study.seeds] for arm in arms}
    assert named["block"] == [*students, "lab:one"]
    assert named["shifted"] == ["lab:x", "lab:y"] * 2
    assert named["alone"] == ["lab:z"] * 4
    given = read_study(path, overrides=["student=other/model"])
    assert {given.options(arm, seed)["student"] for arm in arms for seed in (1, 2)} == {"other/model"}
    # They are students of the base.
    assert read_study(path, base=LAB).options("block", 2)["student"] == "lab:student-block"


def test_an_arm_has_a_recipe_of_its_own_and_the_command_line_another(tmp_path):
    recipe = tmp_path / "other.yaml"
    recipe.write_text("student: s\nteacher: t\ntrain_data: d.jsonl\noutput_dir: o\nrho: 0.9\nseed: 77\n")
    path = study_file(tmp_path, arms={"a": {}, "b": {"base": "other.yaml"}}, compare=None)
    study = read_study(path)
    assert [study.options(arm, 1)["rho"] for arm in "ab"] == [0.5, 0.9]
    assert study.options("b", 1)["seed"] == 1
    assert "output_dir" not in study.options("b", 1)
    assert read_study(path, base=recipe).options("a", 1)["student"] == "s"


def test_steps_of_a_curve(tmp_path):
    study = read_study(study_file(tmp_path, curve=[0, "5%", "12.5%", "25%", "50%", "100%"]))
    assert curve_steps(study, 2000) == [0, 100, 250, 500, 1000, 2000]
    assert curve_steps(study, 50) == [0, 2, 6, 12, 25, 50]
    # Of few updates each is taken once.
    assert curve_steps(study, 2) == [0, 1, 2]
    assert curve_steps(read_study(study_file(tmp_path, curve=[3, 7])), 10) == [3, 7, 10]
    assert curve_steps(read_study(study_file(tmp_path)), 10) == []
    with pytest.raises(ForkLeftError, match="small: curve names update 7, but the runs have 5"):
        curve_steps(read_study(study_file(tmp_path, curve=[3, 7])), 5)


def test_benchmarks_and_limit_of_the_command_line(tmp_path):
    study = read_study(study_file(tmp_path), benchmarks=["gsm8k"], limit=3, decoding="native")
    assert (study.benchmarks, study.limit) == (("gsm8k",), 3)
    assert study.decoding == {"native": {"decoding": "native"}}
    assert read_study(study_file(tmp_path), decoding="static").decoding == {"static": {}}


def described(path, name):
    path.write_text(f"name: {name}\nitems: 7\nprotocol: generated\ntemplate: plain\n")
    return path


def test_benchmarks_of_the_user_are_described_in_files(tmp_path, monkeypatch):
    mine, other = described(tmp_path / "mine.yaml", "mine"), described(tmp_path / "other.yml", "other")
    file = study_file(tmp_path, benchmarks=["lab-chain-3", "mine.yaml"])
    study = read_study(file)
    assert study.benchmarks == ("lab-chain-3", "mine")
    assert study.described == {"mine": (str(mine), 7)}
    monkeypatch.chdir(tmp_path)
    study = read_study(file, benchmarks=["other.yml"])
    assert (study.benchmarks, study.described) == (("other",), {"other": ("other.yml", 7)})
    described(other, "gsm8k")
    with pytest.raises(ForkLeftError, match=r"other.yml: there is a benchmark gsm8k already; give yours another name"):
        read_study(file, benchmarks=["other.yml"])
    with pytest.raises(ForkLeftError, match=r"the benchmark mine is named twice"):
        read_study(file, benchmarks=["mine.yaml", "mine.yaml"])
    with pytest.raises(ForkLeftError, match=r"there is no file nowhere.yaml that describes a benchmark"):
        read_study(file, benchmarks=["nowhere.yaml"])


OWN = "my.judges:mine"


@pytest.mark.parametrize(
    "changes",
    [
        {"set": {"verifier": OWN}},
        {"arms": {"a": {"verifier": OWN}, "b": {}}, "compare": None},
        {"with_seed": {"verifier": ["exact", OWN]}},
        {"arms": {"a": {"with_seed": {"verifier": [OWN, "lab"]}}, "b": {}}, "compare": None},
    ],
    ids=["set", "arm", "with_seed", "an arm's with_seed"],
)
def test_a_study_cannot_allow_its_own_verifier(tmp_path, changes):
    path = study_file(tmp_path, **changes)
    with pytest.raises(ForkLeftError, match=r"study.yaml names the verifier my.judges:mine, whose code would run"):
        read_study(path, trust=Trust())
    arms = read_study(path, trust=Trust(verifiers=True)).arms
    # What the command line says is the user's own word, and what it replaces is not asked for.
    for said in ("lab", OWN):
        study = read_study(path, overrides=[f"verifier={said}"], trust=Trust())
        assert {study.options(name, seed)["verifier"] for name in arms for seed in (1, 2)} == {said}


def test_a_base_recipe_cannot_allow_its_own_code(tmp_path):
    recipe = tmp_path / "own.yaml"
    recipe.write_text(LAB.read_text().replace("verifier: exact", f"verifier: {OWN}") + "trust_remote_code: true\n")
    path = study_file(tmp_path, base="own.yaml")
    for given in ({}, {"base": recipe}):
        with pytest.raises(ForkLeftError, match=r"own.yaml names the verifier my.judges:mine, whose code would run"):
            read_study(path, **given, trust=Trust())
    with pytest.raises(ForkLeftError, match=r"own.yaml says trust_remote_code: true, .* add --trust-remote-code"):
        read_study(path, trust=Trust(verifiers=True))
    study = read_study(path, trust=Trust(verifiers=True, remote_code=True))
    assert study.options("L-low", 2)["trust_remote_code"] is True
    said = ["verifier=lab", "trust_remote_code=true"]
    assert read_study(path, overrides=said, trust=Trust()).options("L-low", 2)["trust_remote_code"] is True
    # What the study itself replaces does not matter either.
    plain = study_file(tmp_path, base="own.yaml", set={"verifier": "lab", "trust_remote_code": False})
    assert read_study(plain, trust=Trust()).options("L-low", 2)["verifier"] == "lab"


def test_a_benchmark_of_a_study_cannot_allow_its_own_verifier(tmp_path, monkeypatch):
    (tmp_path / "judges_of_a_study.py").write_text("def mine(responses, answers): return [True] * len(answers)\n")
    monkeypatch.syspath_prepend(tmp_path)
    mine = described(tmp_path / "mine.yaml", "mine")
    path = study_file(tmp_path, benchmarks=["mine.yaml"])
    assert not read_study(path, trust=Trust()).own_verifier
    mine.write_text(f"{mine.read_text()}verifier: judges_of_a_study:mine\n")
    with pytest.raises(ForkLeftError, match=r"mine.yaml names the verifier judges_of_a_study:mine"):
        read_study(path, trust=Trust())
    assert "judges_of_a_study" not in sys.modules
    assert read_study(path, trust=Trust(verifiers=True)).own_verifier


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arm": {}}, "there is no key 'arm'; did you mean arms?"),
        ({"seeds": None}, "expected name, base, arms, seeds, benchmarks, seeds missing"),
        ({"name": "a/b"}, "name is that of a folder; expected letters, digits, . _ . -, found 'a/b'"),
        ({"name": "cells"}, "name is that of a folder"),
        ({"base": "nowhere.yaml"}, "there is no base recipe .*nowhere.yaml; mend base"),
        ({"arms": {}}, "expected at least one arm, found none"),
        ({"arms": ["a"]}, r"arms has names with values, found \['a'\]"),
        ({"arms": {"a b": {}}}, "the arm 'a b' is named by letters, digits"),
        (
            {"arms": {"L-high": {"rollout_oder": "x"}}},
            "arms.L-high: there is no option 'rollout_oder'; did you mean ro",
        ),
        ({"arms": {"L-high": {"rho": "many"}}}, "rho: expected a number, found 'many'"),
        ({"arms": {"L-high": {"seed": 3}}}, "arms.L-high: seed is for the study to say in each cell"),
        ({"set": {"output_dir": "x"}}, "set: output_dir is for the study to say"),
        ({"with_seed": {"student": "a"}}, "with_seed.student is a list to take turns with the seeds, found 'a'"),
        ({"with_seed": {"studnt": ["a"]}}, "there is no option 'studnt'; did you mean student?"),
        ({"seeds": [1, "two"]}, "seeds is a list of whole numbers"),
        ({"seeds": [1, 2, 1]}, "seed 1 is named twice"),
        ({"benchmarks": []}, r"benchmarks is a list of names, found \[\]"),
        ({"benchmarks": ["gsm9k"]}, "there is no benchmark 'gsm9k'; did you mean gsm8k?"),
        ({"benchmarks": ["gsm8k", "gsm8k"]}, "the benchmark gsm8k is named twice"),
        ({"limit": 0}, "limit must be at least 1 item, found 0"),
        ({"decoding": {"fast": {"pases": 4}}}, "decoding.fast has no setting 'pases'; did you mean passes?"),
        ({"decoding": {"fast": {"samples": 4}}}, "decoding.fast has no setting 'samples'"),
        ({"decoding": {"fast": {"passes": 0}}}, "decoding.fast: passes must be a whole number of at least 1, found 0"),
        ({"decoding": {"a": {"passes": 4}, "b": {"passes": 4}}}, "decoding.b is the same as another"),
        ({"set": {"hub_token": "hf_x"}}, "set: hub_token would be kept in files; leave it out, and log in"),
        ({"curve": ["half"]}, "curve is a list of updates or shares of them"),
        ({"curve": ["120%"]}, "curve is a list of updates or shares of them"),
        ({"compare": [["L-high", "L-lo"]]}, "compare: there is no arm 'L-lo'; did you mean L-low?"),
        ({"compare": [["L-high", "L-high"]]}, "L-high is compared with itself"),
        ({"compare": ["L-high"]}, "compare is a list of pairs of arms"),
        ({"effects": {"view": {"L": ["L-high"], "B": ["L-low"]}}}, "effects has two factors with two levels"),
        ({"effects": FACTORS}, "effects: there is no arm 'B-high'; did you mean L-high?"),
        (
            {"arms": ORDER_VIEW, "effects": FACTORS | {"order": FACTORS["view"]}},
            "effects has two factors with two levels, each level with its two arms",
        ),
        (
            {"arms": MAIN | {"opd": {"questions_from": "main"}}, "compare": None},
            r"expected \{arm: NAME, route: LEFTOPD",
        ),
        (
            {"arms": MAIN | {"opd": {"questions_from": {"arm": "man", "route": "CE"}}}, "compare": None},
            "questions_from: there is no arm 'man'; did you mean main?",
        ),
        (
            {"arms": MAIN | {"opd": {"questions_from": {"arm": "main", "route": "ALL"}}}, "compare": None},
            "route must be one of CE, LEFTOPD, GOLD, EXCLUDE, found 'ALL'",
        ),
        (
            {"arms": MAIN | {"sft": {"questions_from": {"arm": "opd", "route": "CE"}}}, "compare": None},
            "expected an arm that trains on all questions, found 'opd'",
        ),
    ],
)
def test_files_that_are_no_study(tmp_path, changes, message):
    with pytest.raises(ForkLeftError, match=message):
        read_study(study_file(tmp_path, **changes))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["max_stps=3"], "--set: there is no option 'max_stps'; did you mean max_steps?"),
        (["L-low.rhoo=3"], "--set, L-low: there is no option 'rhoo'; did you mean rho?"),
        (["L-lo.rho=3"], "--set: there is no option 'L_lo.rho'"),
        (["max_steps"], "--set: expected option=value, found 'max_steps'"),
        (["seed=3"], "--set: seed is for the study to say in each cell"),
        (["hub_token=hf_x"], "--set: hub_token would be kept in files"),
    ],
)
def test_words_that_set_nothing(tmp_path, words, message):
    with pytest.raises(ForkLeftError, match=message):
        read_study(study_file(tmp_path), overrides=words)


def test_seeds_and_files_that_are_not_there(tmp_path):
    with pytest.raises(ForkLeftError, match="small has no seed 9; its seeds are 1, 2: add it to the study's file"):
        with_seeds(read_study(study_file(tmp_path)), [1, 9])
    with pytest.raises(ForkLeftError, match=r"there is no study .*none.yaml"):
        read_study(tmp_path / "none.yaml")
    with pytest.raises(ForkLeftError, match=r"there is no base recipe none.yaml"):
        read_study(study_file(tmp_path), base=Path("none.yaml"))


def test_a_file_that_is_not_there_has_neighbours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    has_some = r"he folder recipes/studies/ of the repository has some$"
    with pytest.raises(ForkLeftError, match=rf"^there is no study none.yaml; t{has_some}"):
        read_study(Path("none.yaml"))
    study_file(tmp_path / "mine")
    with pytest.raises(ForkLeftError, match=rf"no study mine/stuyd.yaml; did you mean mine/study.yaml\? T{has_some}"):
        read_study(Path("mine/stuyd.yaml"))
    # Without its folder, and without its ending.
    monkeypatch.chdir(STUDIES[0].parents[2])
    with pytest.raises(ForkLeftError, match=r"did you mean recipes/studies/order-view.yaml\? "):
        read_study(Path("order-view"))


def test_a_recipe_is_no_study():
    with pytest.raises(ForkLeftError, match=r"is a recipe, not a study: .*forkleft train --config \S+lab.yaml"):
        read_study(LAB)
