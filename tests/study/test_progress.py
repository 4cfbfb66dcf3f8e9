import io

from rich.console import Console
from studies import study_file

from forkleft.study.cells import CellFolder, Failure, Task
from forkleft.study.grid import make_grid
from forkleft.study.progress import GridProgress
from forkleft.study.spec import read_study
from forkleft.study.timing import Rates


def cells(tmp_path):
    return [CellFolder(tmp_path, cell) for cell in make_grid(read_study(study_file(tmp_path))).cells.values()]


def test_plain_lines_say_what_happened_and_the_time_left(tmp_path):
    folders, out = cells(tmp_path), io.StringIO()
    rates = Rates({"train": [1.0], "eval": [0.0], "answers": [0.0]})
    with GridProgress(Console(file=out, width=60), len(folders), rates, jobs=2) as progress:
        progress.was_there()
        progress.update({"L-high": (folders[3].tasks(), 100.0)}, [folder.tasks() for folder in folders[4:]])
        progress.finished(folders[1])
        progress.elsewhere(folders[2])
        progress.elsewhere(folders[2])
        progress.failed(folders[2], Failure("no room", "forkleft train"))
    lines = out.getvalue().splitlines()
    # Four trainings of 490 s and their evaluations of 10 s, and the answers of a seed of 10 s; 100 s of it are over.
    assert lines[0].startswith("[2/8] base lab:student-block: done; about 0:15:")
    assert lines[1].startswith("[2/8] teacher lab:teacher-strong: another run works on it; waiting")
    assert lines[2].startswith("[3/8] teacher lab:teacher-strong: FAILED, no room")
    assert len(lines) == 3


def test_a_terminal_shows_what_runs(tmp_path):
    folders, out = cells(tmp_path), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with GridProgress(console, len(folders), Rates(), jobs=1) as progress:
        progress.was_there()
        progress.update({folders[3].cell.label: (folders[3].tasks(), 5.0)}, [])
    text = out.getvalue()
    assert "1/8" in text and "L-high, seed 1" in text and "left" in text


def test_what_was_measured_now_counts_but_not_what_was_resumed(tmp_path):
    progress = GridProgress(Console(file=io.StringIO()), 1, Rates(), jobs=1)
    progress.ended(Task("train", (), 100), 60.0)
    progress.ended(Task("train", (), 100, resumed=True), 11.0)
    assert progress.rates.measured == {"train": [0.5]}
