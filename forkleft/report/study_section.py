"""What a study shows, as parts of a report: its facts, its gains as charts and tables, and how to repeat it."""

import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from forkleft.report.charts import Series, interval_chart, line_chart, table
from forkleft.report.gather import Run, Study
from forkleft.study.effects import Effect
from forkleft.study.grid import Place
from forkleft.study.results import StudyResults
from forkleft.study.tables import Table, facts, study_tables

# Cells of so many characters, such as commands, are broken into lines.
_LONG = 40


def study_head(study: Study) -> str:
    """What a study asks and consists of, and whether all of it is there."""
    results = study.results
    about = f'<p class="lead">{escape(results.about)}</p>' if results.about else ""
    return f"{about}<p>{escape(facts(results))}</p>{_unfinished(results)}"


def _unfinished(results: StudyResults) -> str:
    runs = {place.cell for place in results.places}
    whole = {place.cell for arm in results.arms for place in _measured(results, arm)}
    if not results.holes and len(whole) == len(runs):
        return ""
    missing = "1 cell is" if len(results.holes) == 1 else f"{len(results.holes)} cells are"
    return (
        f'<p class="note">This study is not finished: {len(whole)} of {len(runs)} training runs are measured on all '
        f"benchmarks, and {missing} missing (<i>Holes</i>, below). Figures may still change.</p>"
    )


def _measured(results: StudyResults, arm: str) -> list[Place]:
    """The places of an arm that were measured in every decoding."""
    seeds = [set(results.of_arm(arm, decoding)) for decoding in results.decoding]
    return [place for place in results.places if place.arm == arm and all(place.seed in known for known in seeds)]


def study_section(study: Study, *, named: bool = False) -> str:
    """Gains and differences of a study as charts, what its arms are, and its tables. named: with the study's name."""
    results, analysis = study.results, study.analysis
    charts = []
    for decoding, gains in analysis.gains.items():
        how = f", {decoding}" if len(analysis.gains) > 1 else ""
        charts.append(
            interval_chart(f"Gain over the base, points{how}", [(arm, one.mean) for arm, one in gains.items()])
        )
    differences = [(one.name, one.difference.mean) for one in analysis.comparisons]
    charts.append(interval_chart("Differences between arms, points", differences))
    for decoding, curves in analysis.curves.items():
        how = f", {decoding}" if len(analysis.curves) > 1 else ""
        charts.append(_checkpoints(f"Right answers after so many updates{how}", curves) if results.curve else "")
    parts = [f"<h3>{escape(results.name)}</h3>" if named else "", _arms(results)]
    if any(charts):
        note = "Means of all benchmarks, with 95% intervals. A full dot: the interval does not hold 0."
        parts.append(f'<p class="small">{note}</p><div class="charts pairs">{"".join(charts)}</div>')
    return "".join([*parts, *(_study_table(one) for one in study_tables(results, analysis))])


def _checkpoints(title: str, curves: Mapping[str, Mapping[int, Effect]]) -> str:
    series = [
        Series(arm, [(float(step), 100 * found.mean.value) for step, found in points.items()], number, marked=True)
        for number, (arm, points) in enumerate(curves.items(), start=1)
    ]
    return line_chart(title, series, unit="%", zero=False)


def _arms(results: StudyResults) -> str:
    """What an arm does that another does not."""
    options = {name: None for arm in results.arms.values() for name in arm.options}
    apart = [
        name
        for name in options
        if len({json.dumps(arm.options.get(name), default=str) for arm in results.arms.values()}) > 1
    ]
    rows = []
    for name, arm in results.arms.items():
        own = ", ".join(f"{key}: {_said(arm.options[key])}" for key in apart if key in arm.options)
        measured = f"{len(_measured(results, name))} of {len([p for p in results.places if p.arm == name])}"
        rows.append((name, own or "nothing: as the recipe says", measured))
    return "<h3>What was compared</h3>" + table(("arm", "what it changes", "seeds measured"), rows, wrapped=(1,))


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def study_setup(studies: Sequence[Study], runs: Sequence[Run]) -> str:
    """The recipes of the runs that are on disk, and the options that all arms of a study share."""
    parts = []
    recipes = [(run.name, str(run.folder / "recipe.yaml")) for run in runs if run.has_recipe]
    if recipes:
        parts.append('<code class="command">forkleft train --config RECIPE --output_dir NEW_FOLDER</code>')
        parts.append(_folded(f"Recipes: {len(recipes)}, one for each run", ("run", "recipe"), recipes))
    for study in studies:
        shared = [(name, _said(value)) for name, value in study.results.shared.items()]
        whose = f" of {study.results.name}" if len(studies) > 1 else ""
        parts.append(_folded(f"Configuration that all arms{whose} share", ("option", "value"), shared))
    return "".join(parts)


def _folded(title: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<details><summary>{escape(title)}</summary>{table(heading, rows, words=(0, 1))}</details>"


def _study_table(one: Table) -> str:
    many_words = [k for k in one.words if k >= one.keys and any(len(row[k]) > _LONG for row in one.rows)]
    # Commands are marked as Markdown has them.
    rows = [[cell.strip("`") for cell in row] for row in one.rows]
    shown = table(one.heading, rows, one.words, wrapped=many_words)
    if one.note:
        note = re.sub("`([^`]*)`", r"<code>\1</code>", escape(one.note))
        shown += f'<p class="small">{note}</p>'
    title = escape(one.title)
    return f"<details><summary>{title}</summary>{shown}</details>" if one.page_only else f"<h3>{title}</h3>{shown}"
