from commands import run
from reports import made_up_run


def test_a_page_of_runs(tmp_path, capsys):
    folders = [str(made_up_run(tmp_path / name)) for name in ("a", "b")]
    assert run(capsys, "report", folders[0]) == (0, f"report: {tmp_path}/a/report.html\n", "")
    page = tmp_path / "both.html"
    assert run(capsys, "report", *folders, "--output", str(page), "--traces", "2")[0] == 0
    assert page.read_text(encoding="utf-8").count('id="trace-') == 2


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capsys):
    code, out, err = run(capsys, "report", str(tmp_path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "holds no run, no results and no study" in err
