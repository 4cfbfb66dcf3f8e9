"""The parts of a report that are plain HTML: what was taught by what, gains, curves, and how to repeat it."""

import json
import shlex
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from forkleft.evaluate.compare import BenchmarkGain, Comparison
from forkleft.evaluate.statistics import Estimate, wilson_interval
from forkleft.report.charts import interval_chart, table
from forkleft.report.evaluations import evaluated, items_of
from forkleft.report.gather import Gathered, Run
from forkleft.report.run_charts import by_update, charts_of_one, charts_of_several

# Updates whose mean is the beginning, or the end, of a run.
_FEW = 5
_NOT_COMPARED = ("output_dir", "seed")
_METHOD = (
    "ForkLeft trains a diffusion language model, which fills in blanks in any order (the student), with the help of a "
    "model that writes from left to right (the teacher)."
)
_UNITS = (
    "KL says how far the student’s odds for a word are from the teacher’s: 0 if they are the same. Entropy says how "
    "uncertain a model is: 0 if it is certain, 0.69 between two equally likely words. Both, and losses, are in nats."
)
# How the student writes in training, by the order that the run has chosen.
_WRITTEN = {
    "high_entropy": "most uncertain word first",
    "low_entropy": "least uncertain word first",
    "confidence": "most confident word first",
    "left_to_right": "from left to right",
    "random": "in a random order",
}


def title_of(found: Gathered) -> str:
    """What the page is about, in a few words."""
    if found.studies:
        return ", ".join(study.results.name for study in found.studies)
    names = [run.name for run in found.runs]
    return names[0] if len(names) == 1 else f"{len(names)} runs" if names else "Results compared"


def summary(found: Gathered) -> str:
    """The head of the page: what was taught by what, how far, and the figures that matter most."""
    if len(found.runs) == 1 and not found.studies:
        return "\n".join([*_head_of_one(found.runs[0]), *_notes(found)])
    parts = [f"<h1>{escape(title_of(found))}</h1>", f'<p class="lead">{_METHOD}</p>']
    if found.studies:
        # Only here, and below: see `gather`.
        from forkleft.report.study_section import study_head

        parts += [study_head(study) for study in found.studies]
    elif found.runs:
        parts.append(_runs_table(found.runs))
    return "\n".join([*parts, *_notes(found)])


def _head_of_one(run: Run) -> list[str]:
    student, teacher = (escape(str(run.options.get(name, f"a {name}"))) for name in ("student", "teacher"))
    title = f"{student}, taught by {teacher}" if run.has_recipe else escape(run.name)
    return [
        f"<h1>{title}</h1>",
        f'<p class="lead">{_METHOD} This page is about one such training: what came of it, how it went on single '
        "questions, and how to repeat it.</p>",
        f"<p>{_taught(run)} {_state(run)}</p>",
        _tiles(run),
        _in_use_unknown(run),
    ]


def _notes(found: Gathered) -> list[str]:
    parts = []
    # A study has dozens of runs, and their notes are not what it is read for.
    for run in found.runs if not found.studies else ():
        lead = f"{escape(run.name)}: " if len(found.runs) > 1 else ""
        notes = [*run.notes, *_without_updates(run), *_warnings(run)]
        if run.traced > len(run.traces):
            notes.append(f"{len(run.traces)} of {run.traced} traces are on this page; --traces {run.traced} shows all")
        if notes:
            items = "".join(f"<li>{lead}{escape(note)}</li>" for note in notes)
            parts.append(f'<ul class="note">{items}</ul>')
    return parts


def result(found: Gathered) -> str:
    """Gains with intervals and tests: of the results, of the evaluations in training, and of studies."""
    comparisons = [(run.name, one) for run in found.runs for one in run.comparisons]
    comparisons += [(f"{one.a} → {one.b}", one) for one in found.comparisons]
    # With several runs on the page, it is said whose gain it is, also if only one of them has results.
    named = len(comparisons) > 1 or len(found.runs) > 1
    parts = [_comparison(name if named else "", one) for name, one in comparisons]
    if not comparisons and not found.studies:
        parts += [_evaluations(run, named=len(found.runs) > 1) for run in found.runs if evaluated(run.logged)]
    if found.studies:
        from forkleft.report.study_section import study_section

        parts += [study_section(study, named=len(found.studies) > 1) for study in found.studies]
    if not any(parts):
        return ""
    return f'<section id="result"><h2>Did it help?</h2>{"".join(parts)}</section>'


def curves(found: Gathered) -> str:
    """All curves: of one run, or of several with a line for each, or for each arm of a study."""
    runs = [run for run in found.runs if run.updates]
    if not runs:
        return ""
    charts = charts_of_one(runs[0]) if len(runs) == 1 else charts_of_several(runs)
    note = "Pale lines are single updates, strong ones their moving means. " if len(runs[0].updates) > _FEW else ""
    if len({run.group for run in runs}) < len(runs):
        note = "Pale lines are single runs, strong ones the means of all runs of an arm, smoothed. "
    return (
        f'<section id="curves"><h2>How the training went</h2><p class="small">{note}{_UNITS}</p>'
        f'<div class="charts">{"".join(charts)}</div></section>'
    )


def setup(found: Gathered) -> str:
    """The configuration of every run, and the command that repeats it."""
    if found.studies:
        from forkleft.report.study_section import study_setup

        parts = [study_setup(found.studies, found.runs)]
    elif found.runs:
        parts = [_configuration(run, named=len(found.runs) > 1) for run in found.runs]
    else:
        return ""
    return f'<section id="setup"><h2>How to repeat it</h2>{"".join(parts)}</section>'


def measured(found: Gathered) -> str:
    """Where the gain is measured, and that of a single run: for beside the few questions of the showcase."""
    figures = _measured(found.runs[0]) if len(found.runs) == 1 else []
    shown = "; ".join(f"{big}, {small}" for big, small in figures) or "the gain, on many questions"
    return f'<a href="#result">Measured above</a>: {escape(shown)}.'


# Summary.


def _taught(run: Run) -> str:
    last = _last_step(run)
    taught = "" if run.has_recipe else "A run from Python; its card, README.md, names student and teacher. "
    questions = by_update(run.updates)[0]["questions"] if run.updates else None
    how = f"{last} update{'' if last == 1 else 's'}" + (f" of {questions:g} questions" if questions else "")
    return f"{taught}Run <code>{escape(run.name)}</code>, {how}:"


def _state(run: Run) -> str:
    wanted = run.options.get("max_steps")
    of = f" of {wanted}" if isinstance(wanted, int) and wanted > 0 else ""
    told = {
        "finished": "finished",
        "running": f"still running, at update {_last_step(run)}{of}",
        "stopped": f"not finished, stopped at update {_last_step(run)}{of}",
    }
    return f'<span class="state {run.status}">{told[run.status]}</span>'


def _tiles(run: Run) -> str:
    """The figures that matter most: how the student answers in use, then in training, and the time."""
    tiles, rows = _measured(run), run.updates
    if rows:
        tiles.append(_training_tile(run))
        seconds = sum(value for row in rows for name, value in row.items() if name.startswith("seconds_"))
        tiles.append((_duration(seconds), f"for {_last_step(run)} updates"))
    cells = "".join(f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in tiles)
    return f'<div class="tiles">{cells}</div>' if cells else ""


def _measured(run: Run) -> list[tuple[str, str]]:
    """How the student answers in use: figures, each with what it is of."""
    if run.comparisons:
        return [_gain_tile(one) for one in run.comparisons]
    return [_evaluated_tile(run, name, points) for name, points in evaluated(run.logged).items()]


def _gain_tile(one: Comparison) -> tuple[str, str]:
    gain = one.mean_gain
    over = f"{len(one.rows)} benchmarks" if len(one.rows) > 1 else f"{one.rows[0].benchmark}"
    items = sum(row.items for row in one.rows)
    sure = gain.low > 0 or gain.high < 0
    told = f"right answers after training, against before, on {items} questions of {over}"
    chance = "" if sure else "; that includes 0, so it may be chance"
    return f"{100 * gain.value:+.1f} points", f"{told} (95%: {100 * gain.low:+.1f} to {100 * gain.high:+.1f}{chance})"


def _evaluated_tile(run: Run, name: str, points: Mapping[int, float]) -> tuple[str, str]:
    first, last = next(iter(points)), list(points)[-1]
    items = items_of(run.logged, name)

    def at(step: int) -> str:
        when = "before training" if step == 0 else f"after update {step}"
        if step not in items:
            return when
        low, high = wilson_interval(round(points[step] * items[step]), items[step])
        return f"{when} (95%: {100 * low:.0f}–{100 * high:.0f}%)"

    count = f"{items[last]} {name} questions" if last in items else f"{name} questions"
    if first == last:
        return f"{100 * points[last]:.0f}%", f"of {count} right in use, {at(last)}; there is no other to compare with"
    return _moved(points[first], points[last]), f"of {count} right in use, {at(first)} and {at(last)}"


def _training_tile(run: Run) -> tuple[str, str]:
    count = min(_FEW, len(run.updates))
    means = f"means of the first and the last {count} updates" if count > 1 else "of one update each"
    told = f"of training questions right, written {_written(run)}: {means}, other questions each time."
    return _moved(*_ends(run.updates, "student_accuracy")), f"{told} Not how it writes in use."


def _written(run: Run) -> str:
    return _WRITTEN.get(str(run.options.get("rollout_order", "high_entropy")), "in the order of training")


def _in_use_unknown(run: Run) -> str:
    """Says so if nothing tells how the student answers in use."""
    if run.comparisons or evaluated(run.logged) or not run.updates:
        return ""
    known = "is not measured yet" if run.status == "running" else "was not measured"
    return (
        '<p class="note">How many questions the student gets right in use, with its most confident word first, '
        f"{known}, so this page cannot say whether training helped. <code>forkleft eval</code> measures it before "
        "and after; <code>eval_on_start</code> and <code>eval_steps</code> do during training.</p>"
    )


def _runs_table(runs: Sequence[Run]) -> str:
    differing = [
        name
        for name in dict.fromkeys(name for run in runs for name in run.options)
        if name not in _NOT_COMPARED and len({json.dumps(run.options.get(name), default=str) for run in runs}) > 1
    ]
    rows = []
    for run in runs:
        ends = _ends(run.updates, "student_accuracy") if run.updates else None
        held_out = next(iter(evaluated(run.logged).values()), {})
        values = list(held_out.values())
        gain = run.comparisons[0].mean_gain if run.comparisons else None
        own = ", ".join(f"{name} {run.options.get(name, 'default')}" for name in differing)
        rows.append(
            (
                run.name,
                run.status,
                str(_last_step(run)),
                _moved(*ends) if ends else "–",
                _moved(values[0], values[-1]) if values else "–",
                f"{100 * gain.value:+.1f} ({100 * gain.low:+.1f}, {100 * gain.high:+.1f})" if gain else "–",
                own or "–",
            )
        )
    heading = ("run", "state", "updates", "right in training", "right in use, held-out", "gain, points", "what differs")
    return table(heading, rows, words=(0, 1), wrapped=(6,)) + (
        '<p class="small">In training, answers are written in the order of the run, and the questions are others each '
        "time; in use, the most confident word comes first, and held-out figures are those of the first and the last "
        "evaluation in training.</p>"
    )


def _without_updates(run: Run) -> list[str]:
    if run.updates:
        return []
    return [
        "no update is logged yet: there are no curves" + (", the run has only begun" if run.status == "running" else "")
    ]


def _warnings(run: Run) -> list[str]:
    return [
        f"Warning at update {row['step']}: {row['text']}{_order_of(run) if row['warning'] == 'kl_not_falling' else ''}"
        for row in run.logged
        if "warning" in row and "text" in row
    ]


def _order_of(run: Run) -> str:
    """In which order the answers of a warning were written."""
    return f". In training it writes {_written(run)}; in use, most confident word first"


def _last_step(run: Run) -> int:
    return max((row["step"] for row in run.updates), default=0)


def _ends(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float]:
    values = [row[name] for row in rows if name in row]
    first, last = values[:_FEW], values[-_FEW:]
    return sum(first) / len(first), sum(last) / len(last)


def _moved(begin: float, end: float) -> str:
    return f"{100 * begin:.0f}% → {100 * end:.0f}%"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


# Results.


def _comparison(name: str, one: Comparison) -> str:
    rows = [(row.benchmark, row.gain) for row in one.rows]
    if len(rows) > 1:
        rows.append(("mean", one.mean_gain))
    cells = [_gain_cells(row) for row in one.rows]
    heading = ("benchmark", "items", "before, %", "after, %", "gain, points", "only before / after", "p", "Holm p")
    notes = "".join(f"<li>{escape(note)}</li>" for note in one.notes)
    return (
        (f"<h3>{escape(name)}</h3>" if name else "")
        + interval_chart("Gain in right answers, points, with 95% intervals", rows)
        + table(heading, cells)
        + f'<p class="small">Before: {escape(one.a)}. After: {escape(one.b)}. Both answered the same items. '
        "Intervals are 95%. p is the chance of a difference at least as large if training had changed nothing "
        "(McNemar’s exact test, on items that only one of them got right); Holm p is corrected for the number of "
        "benchmarks.</p>" + (f'<ul class="note">{notes}</ul>' if notes else "")
    )


def _gain_cells(row: BenchmarkGain) -> tuple[str, ...]:
    return (
        row.benchmark,
        str(row.items),
        _percent(row.a),
        _percent(row.b),
        f"{100 * row.gain.value:+.1f} ({100 * row.gain.low:+.1f}, {100 * row.gain.high:+.1f})",
        "–" if row.only_a is None else f"{row.only_a} / {row.only_b}",
        _p(row.p),
        _p(row.holm),
    )


def _evaluations(run: Run, *, named: bool) -> str:
    rows = []
    for name, points in evaluated(run.logged).items():
        counts = items_of(run.logged, name)
        for step, value in points.items():
            count, inner = counts.get(step), ""
            if count is not None:
                low, high = wilson_interval(round(value * count), count)
                inner = f" ({100 * low:.1f}–{100 * high:.1f})"
            rows.append((name, str(step), str(count or "–"), f"{100 * value:.1f}{inner}"))
    head = f"<h3>{escape(run.name)}</h3>" if named else ""
    note = (
        '<p class="small">Evaluations in training, with 95% intervals of each alone. For a paired test of before and '
        "after, evaluate both with <code>forkleft eval</code> and name both folders here.</p>"
    )
    return head + table(("questions", "update", "items", "right, %"), rows) + note


def _percent(estimate: Estimate) -> str:
    value, low, high = (f"{100 * x:.1f}" for x in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low}–{high})"


def _p(value: float | None) -> str:
    return "–" if value is None else "<0.001" if value < 1e-3 else f"{value:.3f}"


# Configuration.


def _configuration(run: Run, *, named: bool) -> str:
    rows = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in run.options.items()]
    cells = "".join(f'<tr><td class="words">{escape(n)}</td><td class="wrap">{escape(v)}</td></tr>' for n, v in rows)
    head = f"<h3>{escape(run.name)}</h3>" if named else ""
    command = '<p class="small">This run was started from Python, so there is no command; its options are below.</p>'
    if run.has_recipe:
        # Without the flags that let a recipe run code (`forkleft.trust`): the run may be somebody else's.
        words = ["forkleft", "train", "--config", str(run.folder / "recipe.yaml")]
        command = f'<code class="command">{escape(shlex.join(words))} --output_dir NEW_FOLDER</code>'
    return (
        f"{head}{command}<details><summary>Configuration: {len(rows)} options that are not defaults</summary>"
        f'<div class="scroll options" tabindex="0"><table><tbody>{cells}</tbody></table></div></details>'
    )
