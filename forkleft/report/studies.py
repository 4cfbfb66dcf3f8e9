"""The folder of a study: its results, tables and figures."""

from pathlib import Path

from forkleft.errors import ForkLeftError
from forkleft.files import write_text
from forkleft.report.study_figures import draw_study
from forkleft.study.analysis import Analysis, analyse
from forkleft.study.cells import writing
from forkleft.study.collect import collect
from forkleft.study.names import RESULTS, STUDY
from forkleft.study.results import StudyResults, load_results, save_results
from forkleft.study.tables import study_page

TABLE = "table.md"


def show_study(folder: Path) -> tuple[StudyResults, Analysis]:
    """Read a study from its cells or from its `results.json`; write results, tables and figures into its folder."""
    if (folder / STUDY).is_file():
        results = collect(folder)
        save_results(folder / RESULTS, results)
    elif (folder / RESULTS).is_file():
        results = load_results(folder / RESULTS)
    else:
        raise ForkLeftError(f"there is no study in {folder}: expected {STUDY} or {RESULTS}; name the folder of a study")
    analysis = analyse(results)
    figures = draw_study(results, analysis, folder)
    with writing(folder):
        write_text(folder / TABLE, study_page(results, analysis, [f"{name}.svg" for name in figures]))
    return results, analysis


def study_folders(path: Path) -> list[Path]:
    """The folders of studies: the given one, if it is one, and those in it. Raises ForkLeftError if there is none."""
    folders = [path, *sorted(p for p in path.glob("*") if p.is_dir())]
    found = [folder for folder in folders if (folder / STUDY).is_file() or (folder / RESULTS).is_file()]
    if not found:
        raise ForkLeftError(f"there is no study in {path}: expected {STUDY} or {RESULTS} in it or in its folders")
    return found
