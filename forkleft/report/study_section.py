"""What a study shows, as a part of a report."""

from html import escape

from forkleft.report.charts import interval_chart, table
from forkleft.report.gather import Study
from forkleft.study.tables import Table, study_tables


def study_section(study: Study) -> str:
    """Gains and differences of a study as charts, and its tables."""
    results, analysis = study.results, study.analysis
    parts = [f"<h3>{escape(results.name)}</h3>"]
    for decoding, gains in analysis.gains.items():
        how = f", {decoding}" if len(analysis.gains) > 1 else ""
        rows = [(arm, effect.mean) for arm, effect in gains.items()]
        parts.append(interval_chart(f"Gain over the base, points{how}", rows))
    differences = [(one.name, one.difference.mean) for one in analysis.comparisons]
    parts.append(interval_chart("Differences between arms, points", differences))
    parts += [_study_table(one) for one in study_tables(results, analysis)]
    return "".join(parts)


def _study_table(one: Table) -> str:
    shown = table(one.heading, one.rows, one.words)
    if one.page_only:
        return f"<details><summary>{escape(one.title)}</summary>{shown}</details>"
    note = f'<p class="small">{escape(one.note)}</p>' if one.note else ""
    return f"<h3>{escape(one.title)}</h3>{shown}{note}"
