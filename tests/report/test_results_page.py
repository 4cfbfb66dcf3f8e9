import json
import re
from functools import partial
from pathlib import Path

import pytest
from studies import made_up_results

from forkleft.errors import ForkLeftError
from forkleft.report.results_page import Book, fill, write_results_page
from forkleft.study.analysis import analyse, factor_weights
from forkleft.study.claims import judge, read_claims
from forkleft.study.results import save_results
from forkleft.study.spec import read_study

ROOT = Path(__file__).parents[2]
CLAIM = {"claim": "It helps.", "source": "paper", "printed": "+4.93", "study": "made-up", "gain": "L-high"}
VIEWS = {"positions": 1000, "disagreements": 100, "target_masked_only": 80, "prefix_only": 5, "neither": 15}
VIEWS |= {"target_masked_entropy": 0.04, "prefix_entropy": 0.61}
FORKS = {"right": 0.5, "tokens": 1000, "forks": 45, "place": 0.5, "commit": 0.93, "entropy": 1.3, "settled": None}


@pytest.fixture
def folder(tmp_path):
    """Results of one study, claims, words and a probe."""
    folder = tmp_path / "results"
    (folder / "probe").mkdir(parents=True)
    (folder / "probe" / "student.json").write_text(json.dumps({"views": VIEWS, "orders": {"random": FORKS}}))
    (folder / "claims.yaml").write_text(json.dumps({"claims": [CLAIM]}))
    (folder / "page.md").write_text(
        "# Page\n\n{{claims paper}}\n\n## made-up\n\n{{study made-up}}\n\n{{probe}}\n\n{{forks}}\n"
    )
    save_results(folder / "made-up" / "results.json", made_up_results())
    return folder


def test_a_page_is_made_of_words_and_figures(folder, tmp_path, monkeypatch):
    quick = partial(analyse, resamples=500)
    monkeypatch.setattr("forkleft.report.studies.analyse", quick)
    page = tmp_path / "results.md"
    write_results_page(folder, page)
    text = page.read_text()
    results = made_up_results()
    gain = quick(results).gains["static"]["L-high"].mean
    said = f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f}, {100 * gain.high:+.1f})"
    assert f"| It helps. | +4.93 | {said} | 8 | 0.008 | [made-up](#made-up) | **supported** |" in text
    assert "![made-up: accuracy](results/made-up/accuracy.svg)" in text
    assert (folder / "made-up" / "accuracy.svg").is_file() and (folder / "made-up" / "table.md").is_file()
    assert "**Differences.**" in text and "view: L − B" in text and "{{" not in text
    assert "| student | 1,000 | 100 | 80.0 | 5.0 | 15.0 | 0.040 | 0.610 |" in text
    assert "| student | random | 50 | 4.5 | 0.50 | 0.93 | 1.30 | – |" in text
    before = text
    write_results_page(folder, page)
    assert page.read_text() == before


def test_single_figures_stand_in_sentences(folder):
    results = made_up_results()
    studies = {"made-up": (results, analyse(results, resamples=500))}
    book = Book(studies, judge(read_claims(folder / "claims.yaml"), studies), {}, "results")
    words = "{{gain made-up: L-high}}; {{accuracy made-up: base}}; {{difference made-up: view: L − B}}"
    gain, base, view = fill(words, book, Path("page.md")).split("; ")
    assert gain.startswith("+") and "–" in base and view.startswith("+")
    assert fill("It is {{verdict made-up: L-high}}.", book, Path("page.md")) == "It is supported."
    table = fill("{{table made-up: Routes in training}}", book, Path("page.md"))
    assert table.startswith("**Routes in training.**\n\n| arm |") and table.endswith("on the teacher's route.")
    picture = fill("{{picture made-up: routes}}", book, Path("page.md"))
    assert picture == "![made-up: routes](results/made-up/routes.svg)"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("\n{{stduy made-up}}", "page.md, line 2: unknown place 'stduy'; did you mean study"),
        ("{{study mad-up}}", "line 1: results has no 'mad-up'; did you mean made-up"),
        ("{{gain made-up}}", "expected `STUDY: NAME`, found 'made-up'"),
        ("{{table made-up: Diferences}}", "made-up has no 'Diferences'; did you mean Differences"),
        ("{{picture mad-up: routes}}", "results has no 'mad-up'; did you mean made-up"),
        ("{{gain made-up: L-hgh}}", "made-up has no 'L-hgh'; did you mean L-high"),
        ("{{claims nobody}}", "no claim has the source 'nobody'"),
        ("{{probe}}", "no results of forkleft probe"),
    ],
)
def test_a_place_that_cannot_be_filled_is_named(folder, words, message):
    results = made_up_results()
    studies = {"made-up": (results, analyse(results, resamples=100))}
    book = Book(studies, judge(read_claims(folder / "claims.yaml"), studies), {}, "results")
    with pytest.raises(ForkLeftError, match=message):
        fill(words, book, Path("page.md"))


def test_missing_words_and_a_broken_probe(folder, tmp_path):
    (folder / "probe" / "student.json").write_text("{}")
    with pytest.raises(ForkLeftError, match=r"student.json is no result of forkleft probe --json"):
        write_results_page(folder, tmp_path / "page.md")
    (folder / "probe" / "student.json").unlink()
    (folder / "page.md").unlink()
    with pytest.raises(ForkLeftError, match="cannot read the words of the page"):
        write_results_page(folder, tmp_path / "page.md")


def test_the_repository_s_claims_ask_for_what_its_studies_measure():
    claims = read_claims(ROOT / "docs" / "results" / "claims.yaml")
    assert {claim.source for claim in claims} == {"paper", "ours"}
    for claim in claims:
        study = read_study(ROOT / "recipes" / "studies" / f"{claim.study}.yaml")
        assert claim.decoding is None or claim.decoding in study.decoding, claim
        if claim.figure == "difference":
            effects = factor_weights(study.effects) if study.effects else {}
            assert claim.of in [f"{first} − {second}" for first, second in study.compare] + list(effects), claim
        else:
            assert (claim.of[0] if claim.figure == "curve" else claim.of) in study.arms, claim


def test_the_page_of_the_repository_shows_studies_that_there_are():
    words = (ROOT / "docs" / "results" / "page.md").read_text()
    shown = set(re.findall(r"\{\{study ([\w-]+)\}\}", words))
    assert shown == {path.stem for path in (ROOT / "recipes" / "studies").glob("*.yaml") if "paper" not in path.stem}
