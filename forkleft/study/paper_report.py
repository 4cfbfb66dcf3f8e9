"""`forkleft paper`: the paper's figures beside what its counts say, and what they mean in view of noise.

print_paper()                                  # all sections; columns of a table that agree are one line
print_paper(["order-view"])                    # one section, every figure, every benchmark
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forkleft.study.noise import CountComparison, compare_section
from forkleft.study.paper import Figure, Paper, read_paper, recompute, rounded

_FIGURES = ("figure", "printed", "ours", "", "95%", "place")
_COMPARISONS = ("after – before", "mean", "cautious", "bold", "up/=/down", "p", "c/o/n")
_CHANGES = ("benchmark", "before", "after", "gain", "bold", "cautious", "verdict")
_LEGEND = (
    "ours: from the counts; ✗ differs from the printed figure. 95%: Wilson's intervals, two models as independent, the "
    "translations of an MT-AIME question as one item.",
    "Noise has two readings. bold: no right answer was lost, translations are items. cautious: the two models are "
    "right independently, a question with its translations is one item. mean: equal-weight gain in pp, with both "
    "intervals; p: sign test over benchmarks; c/o/n: on how many of them the change is clear (told from noise even "
    "cautiously), open (hangs on items that counts do not name), or noise (not even boldly).",
    "This is the noise of items. Every arm is one training run: what another seed would change is not in these counts.",
)


@dataclass(frozen=True)
class _Section:
    name: str
    title: str
    figures: Sequence[Figure]
    comparisons: Sequence[CountComparison]


@dataclass(frozen=True)
class _Table:
    """Rows of text. `justify` has a letter for each column: l(eft) or r(ight)."""

    title: str
    headings: Sequence[str]
    justify: str
    rows: Sequence[Sequence[str]]


def print_paper(
    names: Sequence[str] | None = None,
    *,
    as_json: bool = False,
    as_markdown: bool = False,
    console: Console | None = None,
) -> None:
    """Print the named sections with every figure, or all of them shorter. ForkLeftError for an unknown name."""
    paper = read_paper()
    sections = [_section(paper, name) for name in names or paper.sections]
    figures = [figure for section in sections for figure in section.figures]
    if as_json:
        print(json.dumps(_data(sections), indent=2, ensure_ascii=False))
        return
    out = _Markdown() if as_markdown else _Terminal(console or Console())
    for section in sections:
        out.heading(f"{section.name}: {section.title}")
        for table in _tables(section, whole=names is not None):
            out.table(table)
        for note in dict.fromkeys(figure.note for figure in section.figures if figure.note):
            out.note(note)
    out.heading("what to make of it")
    out.paragraph(_summary(figures))
    for paragraph in _LEGEND:
        out.paragraph(paragraph)
    if names is None:
        out.paragraph(f"--table NAME shows every figure and benchmark of a section: {', '.join(paper.sections)}.")


def _section(paper: Paper, name: str) -> _Section:
    figures = recompute(paper, name)
    return _Section(name, paper.sections[name]["title"], figures, compare_section(paper, name))


def _summary(figures: Sequence[Figure]) -> str:
    printed = [figure for figure in figures if figure.printed is not None]
    wrong = [figure for figure in printed if not figure.agrees]
    text = f"{len(printed)} printed figures recomputed: {len(printed) - len(wrong)} agree, {len(wrong)} do not"
    if not wrong:
        return f"{text}."
    return (
        f"{text}: "
        + "; ".join(f"{_name(figure)}, printed {figure.printed}, ours {_value(figure)}" for figure in wrong)
        + "."
    )


def _tables(section: _Section, *, whole: bool) -> list[_Table]:
    tables = [_figure_table(section.figures, whole=whole)]
    if section.comparisons:
        rows = [_comparison_row(comparison) for comparison in section.comparisons]
        tables.append(_Table("noise: means over ten benchmarks, pp", _COMPARISONS, "lrrrrrr", rows))
    # A single comparison is always shown in detail, several only when a section is asked for.
    if whole or len(section.comparisons) == 1:
        for comparison in section.comparisons:
            title = f"{comparison.after} – {comparison.before}, %, and the smallest gain told from noise, pp"
            tables.append(_Table(title, _CHANGES, "lrrrrrl", _change_rows(comparison)))
    return tables


def _figure_table(figures: Sequence[Figure], *, whole: bool) -> _Table:
    """The table of figures, without the column of intervals if there are none."""
    rows = _figure_rows(figures, whole=whole)
    kept = [number for number, name in enumerate(_FIGURES) if name != "95%" or any(row[number] for row in rows)]
    headings, justify, *shown = ([row[number] for number in kept] for row in (_FIGURES, "lrrlrl", *rows))
    return _Table("", headings, "".join(justify), shown)


def _figure_rows(figures: Sequence[Figure], *, whole: bool) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for (what, place), group in itertools.groupby(figures, key=lambda figure: (figure.what, figure.place)):
        several = list(group)
        if not whole and len(several) > 1 and all(figure.agrees for figure in several):
            rows.append((what, f"{len(several)} figs", "same", "✓", "", place or ""))
        else:
            rows += [_figure_row(figure) for figure in several]
    return rows


def _figure_row(figure: Figure) -> tuple[str, ...]:
    mark = {None: "", True: "✓", False: "✗"}[figure.agrees]
    interval = "" if figure.interval is None else _interval(figure.interval, figure.digits)
    return (_name(figure), figure.printed or "–", _value(figure), mark, interval, figure.place or "not printed")


def _name(figure: Figure) -> str:
    return figure.what if figure.benchmark is None else f"{figure.what}: {figure.benchmark}"


def _value(figure: Figure) -> str:
    """Our value, with the digits of the printed figure, and two more where that is wrong."""
    if isinstance(figure.value, str):
        return figure.value
    digits = figure.digits + (2 if figure.agrees is False else 0)
    sign = "+" if (figure.printed or "").startswith(("+", "-")) and figure.value > 0 else ""
    return f"{sign}{_decimal(rounded(figure.value, digits), digits)}"


def _decimal(value: Fraction, digits: int) -> str:
    # Exact: the value has no more digits than these.
    return f"{float(value):.{digits}f}"


def _interval(ends: tuple[float, float], digits: int) -> str:
    # Adding 0 makes -0.0 a 0.0.
    return ", ".join(f"{round(end, 1) + 0.0:.{min(digits, 1)}f}" for end in ends)


def _comparison_row(comparison: CountComparison) -> tuple[str, ...]:
    p = "<0.001" if comparison.sign_p < 1e-3 else f"{comparison.sign_p:.3f}"
    verdicts = "/".join(str(comparison.count(name)) for name in ("clear", "open", "noise"))
    signs = f"{comparison.up}/{comparison.level}/{comparison.down}"
    ends = (_interval(interval, 1) for interval in (comparison.cautious, comparison.bold))
    return (f"{comparison.after} – {comparison.before}", f"{comparison.mean:+.2f}", *ends, signs, p, verdicts)


def _change_rows(comparison: CountComparison) -> list[tuple[str, ...]]:
    rows = []
    for change in comparison.changes:
        accuracies = (f"{it.value:.1f} ({it.low:.1f}–{it.high:.1f})" for it in (change.before, change.after))
        smallest = ("none" if it is None else f"{it:.2f}" for it in (change.bold, change.cautious))
        rows.append((change.benchmark, *accuracies, f"{change.gain:+.2f}", *smallest, change.verdict))
    return rows


def _data(sections: Sequence[_Section]) -> dict[str, Any]:
    """All sections as data for JSON, every figure on its own."""
    return {
        section.name: {
            "title": section.title,
            "figures": [_figure_data(figure) for figure in section.figures],
            "comparisons": [asdict(comparison) for comparison in section.comparisons],
        }
        for section in sections
    }


def _figure_data(figure: Figure) -> dict[str, Any]:
    value = figure.value if isinstance(figure.value, str) else float(figure.value)
    return {**vars(figure), "value": value, "agrees": figure.agrees}


class _Terminal:
    def __init__(self, console: Console) -> None:
        self._console = console

    def heading(self, text: str) -> None:
        self._console.print()
        self._console.rule(Text(text, style="bold"), align="left")

    def table(self, table: _Table) -> None:
        shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title_justify="left")
        shown.title = Text(table.title, style="italic") if table.title else None
        for heading, side in zip(table.headings, table.justify, strict=True):
            # Words may be broken into lines, figures must not.
            words = heading in ("figure", "place", "after – before")
            shown.add_column(heading, justify="right" if side == "r" else "left", no_wrap=not words)
        for row in table.rows:
            shown.add_row(*map(Text, row), style="bold red" if "✗" in row else None)
        self._console.print(shown)

    def note(self, text: str) -> None:
        self._console.print(f"! {text}", style="yellow", markup=False, highlight=False)

    def paragraph(self, text: str) -> None:
        self._console.print(f"{text}\n", markup=False, highlight=False)


class _Markdown:
    def heading(self, text: str) -> None:
        print(f"## {text[0].upper()}{text[1:]}\n")

    def table(self, table: _Table) -> None:
        if table.title:
            print(f"{table.title}\n")
        rules = ("---:" if side == "r" else "---" for side in table.justify)
        for row in (table.headings, rules, *table.rows):
            print(f"| {' | '.join(row)} |")
        print()

    def note(self, text: str) -> None:
        print(f"**Note.** {text}\n")

    def paragraph(self, text: str) -> None:
        print(f"{text}\n")
