from studies import made_up_results

from forkleft.report import sections
from forkleft.report.gather import gather
from forkleft.report.study_section import study_section
from forkleft.study.results import save_results


def test_a_study(tmp_path):
    folder = tmp_path / "made-up"
    save_results(folder / "results.json", made_up_results(seeds=(1, 2), benchmarks=("one",), items=60))
    found = gather([folder])
    html = study_section(found.studies[0])
    assert "Gain over the base" in html and "Differences between arms" in html and "<table>" in html
    assert html in sections.result(found)
    assert sections.curves(found) == sections.setup(found) == ""
