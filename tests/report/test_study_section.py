import re
from dataclasses import replace

import pytest
from reports import made_up_run
from studies import made_up_results, without

from forkleft.report import sections
from forkleft.report.gather import gather
from forkleft.report.study_section import study_head, study_section, study_setup
from forkleft.study.results import save_results

SMALL = {"seeds": (1, 2), "benchmarks": ("one",), "items": 60}


def gathered(folder, results):
    save_results(folder / "results.json", results)
    return gather([folder])


def words(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return gathered(tmp_path_factory.mktemp("studies") / "made-up", made_up_results(**SMALL, steps={10: 0.5}))


def test_a_study_on_the_page(finished):
    (study,) = finished.studies
    html = study_section(study)
    assert "Gain over the base" in html and "Differences between arms" in html and "after so many updates" in html
    assert html in sections.result(finished) and study_head(study) in sections.summary(finished)
    assert sections.curves(finished) == ""
    # Its name is the title of the page, and stands above its part only where there are several.
    assert "<h3>made-up</h3>" not in html and "<h3>made-up</h3>" in study_section(study, named=True)


def test_what_the_arms_are_is_said(finished):
    told = words(study_section(finished.studies[0]))
    assert "L-high nothing: as the recipe says 2 of 2" in told
    assert "B-low rollout_order: low_entropy, view: target_masked 2 of 2" in told
    head = words(study_head(finished.studies[0]))
    assert head == (
        "Is it seen that an arm is better? 4 arms, 2 seeds, 50 updates; 1 benchmark of 60 items. "
        "Student: lab:s; teacher: lab:t."
    )


def test_a_study_that_is_not_finished_says_so(tmp_path):
    results = without(made_up_results(**SMALL, holes=[("L-low, seed 2", "not <run> yet", "forkleft train")]), "L-low-2")
    (study,) = gathered(tmp_path / "made-up", results).studies
    told = words(study_head(study))
    assert "not finished: 7 of 8 training runs are measured on all benchmarks, and 1 cell is missing" in told
    html = study_section(study)
    assert "L-low rollout_order: low_entropy 1 of 2" in words(html)
    assert "<summary>Holes</summary>" in html and "not &lt;run&gt; yet" in html
    assert ">forkleft train</td>" in html and "The same <code>forkleft study run</code> tries them again" in html


def test_the_runs_of_a_study_can_be_repeated(tmp_path, finished):
    (study,) = finished.studies
    assert "<code" not in study_setup([study], [])
    (run,) = gather([made_up_run(tmp_path / "run")]).runs
    html = study_setup([study, replace(study, results=replace(study.results, name="<other>"))], [run])
    assert "forkleft train --config RECIPE" in html and str(tmp_path / "run" / "recipe.yaml") in html
    assert "all arms of &lt;other&gt; share" in html and "max_steps 50" in words(html)
    assert study_setup([study], []) in sections.setup(finished)
