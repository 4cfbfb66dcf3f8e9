"""The tables of a study, for Markdown and for a terminal."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from forkleft.evaluate.statistics import Estimate
from forkleft.objective.routes import ROUTE_WORDS
from forkleft.study.analysis import Analysis, bases, by_student, teachers, tokens_a_forward
from forkleft.study.results import ROUTE_NAMES, StudyResults

_SIGNIFICANT = 0.05
# Between the columns of a table in a terminal.
_GAP = 2


@dataclass(frozen=True)
class Table:
    """Cells of text.

    page_only: not shown in a terminal. keys: the number of columns, from the first, that name a row. words: the columns
    that hold words instead of figures.
    """

    title: str
    heading: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""
    page_only: bool = False
    keys: int = 1
    words: tuple[int, ...] = (0,)


def study_tables(results: StudyResults, analysis: Analysis) -> list[Table]:
    """All tables of a study that have something in them."""
    made = [_accuracy(results, analysis, decoding) for decoding in results.decoding]
    made += [_comparisons(results, analysis), _students(results, analysis)]
    made += [_curve(results, analysis, decoding) for decoding in analysis.curves if results.curve]
    made += [_strength(results, analysis), _decoding(results), _routes(analysis), _verdicts(analysis)]
    made += [_counts(results, decoding) for decoding in results.decoding]
    return [table for table in (*made, _holes(results)) if table.rows]


def study_page(results: StudyResults, analysis: Analysis, figures: Sequence[str] = ()) -> str:
    """A study as Markdown. figures: names of pictures to show."""
    lines = [f"# {results.name}", ""]
    lines += [results.about, ""] if results.about else []
    lines += [facts(results), ""]
    lines += [f"**{missing(results)}**", ""] if results.holes else []
    for picture in figures:
        lines += [f"![{picture.removesuffix('.svg')}]({picture})", ""]
    for table in study_tables(results, analysis):
        lines += [f"## {table.title}", "", markdown(table.heading, table.rows, table.words), ""]
        lines += [table.note, ""] if table.note else []
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown(heading: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """A table of Markdown. words: the columns that hold words instead of figures."""
    lines = [f"| {' | '.join(heading)} |"]
    lines += ["|" + "".join(f" {'---' if k in words else '---:'} |" for k in range(len(heading)))]
    return "\n".join(lines + [f"| {' | '.join(map(_escaped, row))} |" for row in rows])


def print_study(results: StudyResults, analysis: Analysis, console: Console) -> None:
    """Print a study for a terminal. No figure is cut, and no word for which there is room."""
    console.print(f"\n{results.name}", style="bold", highlight=False, markup=False)
    console.print(facts(results), highlight=False, markup=False)
    for table in study_tables(results, analysis):
        if not table.page_only:
            for title, shown in _pieces(table, results.benchmarks, console.width):
                console.print(f"\n{title}\n", style="bold", highlight=False, markup=False)
                console.print(shown)
            _print_note(table.note, console)
    if results.holes:
        _print_holes(results, console)


def _print_note(note: str, console: Console) -> None:
    if note:
        console.print(f"\n{note.replace('`', '')}", style="dim", highlight=False, markup=False)


def _print_holes(results: StudyResults, console: Console) -> None:
    """Print the missing cells as a list: in a column, a command would be cut and could not be copied."""
    console.print(f"\nHoles: {_count(len(results.holes), 'cell')} missing\n", style="bold red", highlight=False)
    for hole in results.holes:
        console.print(Padding(Text(f"{hole.label}: {hole.error}"), (0, 0, 0, 2), expand=False))
        if hole.command:
            console.print(f"    {hole.command}", style="dim", highlight=False, markup=False, soft_wrap=True)
    _print_note(_holes(results).note, console)


def _pieces(table: Table, benchmarks: Sequence[str], width: int) -> list[tuple[str, RichTable]]:
    """A table as one or more tables that fit a terminal's width, with titles. If it is split, benchmarks come apart."""
    whole = list(range(len(table.heading)))
    measured = [k for k in whole if table.heading[k] in benchmarks]
    if not measured or _width(_closest(table, whole, width)) <= width:
        return [(table.title, _shown(table, whole, width))]
    keys = whole[: table.keys]
    for count in range(1, len(measured) + 1):
        each = -(-len(measured) // count)
        parts = [keys + measured[k : k + each] for k in range(0, len(measured), each)]
        if all(_width(_closest(table, part, width)) <= width for part in parts):
            break
    titles = [f"{table.title} by benchmark", *[f"{table.title} by benchmark, continued"] * (len(parts) - 1)]
    rest = [k for k in whole if k not in measured]
    return [
        (title, _shown(table, columns, width))
        for title, columns in zip((table.title, *titles), (rest, *parts), strict=True)
    ]


def _shown(table: Table, columns: Sequence[int], width: int) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, _GAP - 1, 0, 0), show_edge=False, pad_edge=False)
    found = _closest(table, columns, width)
    for k, (heading, *_) in zip(columns, found, strict=True):
        justify: Literal["left", "right"] = "left" if k in table.words else "right"
        # If the table is still too wide, only the names of the rows are broken, between words.
        shown.add_column(Text(heading), justify=justify, no_wrap=k >= table.keys, overflow="fold")
    for row in zip(*(cells for _, *cells in found), strict=True):
        shown.add_row(*map(Text, row))
    return shown


def _closest(table: Table, columns: Sequence[int], width: int) -> list[list[str]]:
    """Columns with their headings, in as few lines as fit a width.

    If one line does not fit, headings are broken between words, and then intervals are put below their figures.
    """
    named = [(k, table.heading[k], [row[k] for row in table.rows]) for k in columns]
    for below in (False, True):
        cells_of = [
            [cell.replace(" (", "\n(") if below and k not in table.words else cell for cell in cells]
            for k, _, cells in named
        ]
        for most in range(max(map(len, table.heading)), 0, -1):
            found = [
                [_broken(heading, max(most, _width([cells]))), *cells]
                for (_, heading, _), cells in zip(named, cells_of, strict=True)
            ]
            if _width(found) <= width:
                return found
    return found


def _broken(heading: str, width: int) -> str:
    return "\n".join(textwrap.wrap(heading, width, break_long_words=False, break_on_hyphens=False))


def _width(columns: Sequence[Sequence[str]]) -> int:
    """The width of columns side by side."""
    widest = [max((cell_len(line) for cell in cells for line in cell.split("\n")), default=0) for cells in columns]
    return sum(widest) + _GAP * (len(columns) - 1)


def facts(results: StudyResults) -> str:
    """How large a study is, and of whom, in two sentences."""
    counted = [len(results.of_arm(arm, name)) for arm in results.arms for name in results.decoding]
    least, most = min(counted), max(counted)
    seeds = _count(most, "seed") if least == most else f"{least} to {most} seeds"
    items = " and ".join(map(str, sorted({items.count for items in results.items.values()}))) or "no"
    updates = " or ".join(map(str, sorted({arm.updates for arm in results.arms.values()})))
    students = ", ".join(dict.fromkeys(name for arm in results.arms.values() for name in arm.students))
    taught = ", ".join(dict.fromkeys(arm.teacher for arm in results.arms.values()))
    return (
        f"{_count(len(results.arms), 'arm')}, {seeds}, {updates} updates; "
        f"{_count(len(results.benchmarks), 'benchmark')} of {items} items. Student: {students}; teacher: {taught}."
    )


def missing(results: StudyResults) -> str:
    """How many cells a study lacks, in words."""
    return f"{_count(len(results.holes), 'cell')} missing: see Holes."


def _accuracy(results: StudyResults, analysis: Analysis, decoding: str) -> Table:
    rows, names = [], {"base": "student", "teacher": "teacher"}
    for row in analysis.rows[decoding]:
        gain = analysis.gains[decoding].get(row.name) if row.kind == "arm" else None
        models = str(row.models) if row.kind == "arm" else _count(row.models, names[row.kind])
        figures = [percent(row.accuracy.benchmarks[name]) for name in results.benchmarks]
        up = "" if gain is None else f"{sum(e.value > 0 for e in gain.benchmarks.values())}/{len(gain.benchmarks)}"
        gained = "" if gain is None else percent(gain.mean, "+")
        rows.append((row.name, models, *figures, percent(row.accuracy.mean), gained, up))
    heading = ("arm", "seeds", *results.benchmarks, "mean", "gain over base", "up")
    note = (
        "Right answers in %, with 95% intervals from a bootstrap over seeds and items. The mean weights benchmarks "
        "equally. Gains are over the untrained student of the same seed; up: benchmarks that gain."
    )
    if any(row.kind == "arm" and row.models == 1 for row in analysis.rows[decoding]):
        note += " With one seed an interval knows of items alone."
    return Table(_titled("Accuracy", results, decoding), heading, rows, note)


def _comparisons(results: StudyResults, analysis: Analysis) -> Table:
    rows = []
    for compared in analysis.comparisons:
        difference = compared.difference
        ups = sum(value > 0 for value in difference.by_seed)
        downs = sum(value < 0 for value in difference.by_seed)
        name = compared.name if len(results.decoding) == 1 else f"{compared.name}, {compared.decoding}"
        figures = [percent(difference.benchmarks[b], "+") for b in results.benchmarks]
        within = (
            f"{sum(d.p <= _SIGNIFICANT for d in compared.within)}/{len(compared.within)}" if compared.within else "–"
        )
        flips = (f"{ups}/{downs}", p_value(difference.p), p_value(compared.holm), within)
        rows.append((name, str(difference.seeds), *figures, percent(difference.mean, "+"), *flips))
    heading = ("difference", "seeds", *results.benchmarks, "mean", "seeds +/−", "p", "Holm p", "McNemar")
    seeds = {compared.difference.seeds for compared in analysis.comparisons}
    least = ", ".join(f"{p_value(2.0 ** (1 - count))} with {_count(count, 'seed')}" for count in sorted(seeds))
    note = (
        "Percentage points, with 95% intervals from a bootstrap over seeds and items. p: that the mean is zero, by "
        f"exact sign flips over seeds, which can give no less than {least}; Holm p: corrected for the "
        f"{_count(len(analysis.comparisons), 'test')} of this table, so no less than that many times as much. McNemar: "
        "in how many seeds the exact test over items, alone and uncorrected, gives p ≤ 0.05."
    )
    return Table("Differences", heading, rows, note)


def _students(results: StudyResults, analysis: Analysis) -> Table:
    """Gains and differences of each student alone, where seeds take turns with students."""
    decoding = next(iter(results.decoding))
    found = {
        f"{arm}, gain": by_student(results, (arm,), gain, decoding, gain=True)
        for arm, gain in analysis.gains[decoding].items()
    }
    compared = [c for c in analysis.comparisons if c.decoding == decoding]
    found |= {c.name: by_student(results, c.arms, c.difference, decoding) for c in compared}
    students = list(dict.fromkeys(student for values in found.values() for student in values))
    if len(students) < 2 or all(len(values) <= 1 for by_name in found.values() for values in by_name.values()):
        return Table("", (), [])
    rows = [
        (name, *(_mean_of(values[student]) if student in values else "–" for student in students))
        for name, values in found.items()
    ]
    note = (
        "Percentage points, the mean of the benchmarks and of the seeds of each student, and how many seeds. Intervals "
        "and p above take seeds as independent. They are about these students: others may differ as much as these do."
    )
    return Table("By student", ("", *students), rows, note)


def _mean_of(values: Sequence[float]) -> str:
    return f"{100 * sum(values) / len(values):+.1f} ({len(values)})"


def _curve(results: StudyResults, analysis: Analysis, decoding: str) -> Table:
    rows = []
    for arm, points in analysis.curves[decoding].items():
        for step, found in points.items():
            share = f"{100 * step / results.arms[arm].updates:g}%"
            figures = [percent(found.benchmarks[name]) for name in results.benchmarks]
            rows.append((arm, str(step), share, str(found.seeds), *figures, percent(found.mean)))
    heading = ("arm", "update", "of all", "seeds", *results.benchmarks, "mean")
    return Table(_titled("Checkpoints", results, decoding), heading, rows, keys=2)


def _strength(results: StudyResults, analysis: Analysis) -> Table:
    decoding = next(iter(results.decoding))
    names = teachers(results)
    if len(set(names.values())) < 2:
        return Table("", (), [])
    strength = {row.name: row.accuracy for row in analysis.rows[decoding] if row.kind == "teacher"}
    rows = [
        (results.arms[arm].teacher, percent(strength[names[arm]].mean), arm, str(gain.seeds), percent(gain.mean, "+"))
        for arm, gain in analysis.gains[decoding].items()
        if names[arm] in strength
    ]
    rows.sort(key=lambda row: float(row[1].split()[0]))
    return Table("Teacher strength", ("teacher", "its accuracy", "arm", "seeds", "gain over base"), rows, words=(0, 2))


def _decoding(results: StudyResults) -> Table:
    """What the ways to decode cost, where there are several."""
    rows = []
    for decoding in results.decoding if len(results.decoding) > 1 else ():
        for arm in results.arms:
            if rate := tokens_a_forward(results, decoding, arm):
                rows.append((decoding, arm, f"{rate:.2f}"))
    return Table("Tokens a forward", ("decoding", "arm", "tokens"), rows, words=(0, 1))


def _routes(analysis: Analysis) -> Table:
    rows = []
    for shares in analysis.routes:
        taught = ROUTE_NAMES.index("LEFTOPD")
        ends = [f"{100 * part[taught]:.1f}" for part in (shares.parts[0], shares.parts[-1])]
        rows.append((shares.arm, str(shares.seeds), *(f"{100 * share:.1f}" for share in shares.first), *ends))
    heading = ("arm", "seeds", *ROUTE_WORDS.values(), "teacher only, first tenth", "last tenth")
    note = "Training questions by who was right at their first visit, in %; and the share on the teacher's route."
    return Table("Routes in training", heading, rows, note)


def _verdicts(analysis: Analysis) -> Table:
    rows = []
    for counts in analysis.verdicts:
        four = (counts.both, counts.teacher_only, counts.student_only, counts.neither)
        rows.append((counts.model, counts.benchmark, str(counts.items), *(f"{round(count, 1):g}" for count in four)))
    heading = ("model", "benchmark", "items", "both", "teacher only", "student only", "neither")
    note = "Items of a benchmark by who is right; means over seeds."
    return Table("Teacher and student on the benchmarks", heading, rows, note, page_only=True, words=(0, 1))


def _counts(results: StudyResults, decoding: str) -> Table:
    """Right answers of every seed, as the paper prints counts."""
    names = bases(results)
    rows = []
    for benchmark in results.benchmarks:
        for seed in results.seeds:
            base = {names[arm]: results.of_base(arm, decoding).get(seed) for arm in results.arms}
            arms = {arm: results.of_arm(arm, decoding).get(seed) for arm in results.arms}
            found = [*base.values(), *arms.values()]
            if any(found):
                counts = ["–" if verdicts is None else str(int(verdicts[benchmark].sum())) for verdicts in found]
                rows.append((benchmark, str(seed), str(results.items[benchmark].count), *counts))
    heading = ("benchmark", "seed", "items", *dict.fromkeys(names.values()), *results.arms)
    return Table(_titled("Right answers by seed", results, decoding), heading, rows, page_only=True)


def _holes(results: StudyResults) -> Table:
    rows = [(hole.label, hole.error, f"`{hole.command}`" if hole.command else "") for hole in results.holes]
    note = "The same `forkleft study run` tries them again; the commands are for a try by hand."
    return Table("Holes", ("cell", "why", "command"), rows, note, page_only=True, words=(0, 1, 2))


def _titled(title: str, results: StudyResults, decoding: str) -> str:
    return title if len(results.decoding) == 1 else f"{title}, {decoding}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def percent(estimate: Estimate, sign: str = "") -> str:
    """A share in % with its interval; sign "+": a difference."""
    # Adding zero makes a zero of a minus zero.
    value, low, high = (
        format(round(100 * x, 1) + 0.0, f"{sign}.1f") for x in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low}, {high})" if sign else f"{value} ({low}–{high})"


def p_value(value: float | None) -> str:
    """A p-value with three decimals."""
    return "–" if value is None else "<0.001" if value < 1e-3 else f"{value:.3f}"
