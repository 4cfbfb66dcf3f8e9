import io

from rich.console import Console

from forkleft.report.probe import probe_page
from forkleft.study.probe import Forks, Views


def shown(page):
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(page)
    return console.export_text()


def test_both_tables_fit_a_terminal_and_show_the_numbers():
    views = Views(120453, 118000, 101000, 19115, 15998, 519, 2598, 0.0438, 0.6134)
    forks = {
        "high_entropy": (Forks(100, 3500, 61, 0.581, 0.047, 1.49, 1.35, 0.066), 0.275),
        "left_to_right": (Forks(100, 3500, 0, None, None, None, None, None), None),
    }
    text = shown(probe_page(views, forks, title="a model", fork_entropy=0.693))
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split() for line in text.splitlines()]
    # The paper's own counts give the paper's own shares.
    assert ["of", "these,", "both", "sides", "right", "15,998", "83.69%"] in lines
    assert ["of", "these,", "prefix", "right", "519", "2.72%"] in lines
    assert ["of", "these,", "neither", "right", "2,598", "13.59%"] in lines
    assert ["high_entropy", "27.5%", "61", "58.1%", "4.7%", "1.35", "1.49", "6.6%"] in lines
    assert ["left_to_right", "–", "0", "–", "–", "–", "–", "–"] in lines
