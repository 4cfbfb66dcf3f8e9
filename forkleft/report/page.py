"""`forkleft report`: runs, results and studies as one page of HTML that is complete in itself.

    write_report([Path("runs/demo")], Path("runs/demo/report.html"))

Style and script are `colours.css` (which the playground has, too), `page.css` and `SCRIPTS` beside this file. The page
allows only these, by their digests, and loads nothing (its content security policy). Data are JSON blocks, which no
browser runs; the script sets every text of theirs as text.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from forkleft import __version__
from forkleft.files import write_bytes, writing_to
from forkleft.objective.fork_entropy import FORK_ENTROPY
from forkleft.report import sections
from forkleft.report.gather import TRACES, Gathered, Run, gather
from forkleft.report.viewer import good_example, right_in_use
from forkleft.verify import KINDS

REPORT = "report.html"
# One after the other, they are the style and the script of the page.
STYLES = ("colours.css", "page.css")
SCRIPTS = ("tokens.js", "viewer.js", "walk.js", "orders.js", "page.js")
# Characters of a question in a list.
_LABEL = 60
_JUDGED = {
    "final": "Only the final answer is judged, not the steps before it.",
    "whole": "The whole answer is judged, every step of it.",
    "own": "",
}
_SECTIONS = {
    "result": "Gains",
    "viewer": "Fork viewer",
    "orders": "Before and after",
    "curves": "Curves",
    "setup": "Repeat",
}


def write_report(paths: Sequence[Path], output: Path | None = None, *, traces: int = TRACES) -> Path:
    """Write the report of the folders of runs, results and studies; returns its path.

    output: the file; by default `report.html` in the folder, if there is one, else in the working folder. traces: how
    many traces are shown. Raises ForkLeftError for a folder that is none of these, and if the file cannot be written.
    """
    found = gather(paths, traces=traces)
    output = output or (paths[0] / REPORT if len(paths) == 1 else Path(REPORT))
    with writing_to(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        # A text from a model may hold half of a surrogate pair, which no encoding has.
        write_bytes(output, page(found).encode("utf-8", "replace"))
    return output


def page(found: Gathered) -> str:
    """The page."""
    style, script = ("".join(map(_source, names)) for names in (STYLES, SCRIPTS))
    traces = [(number, trace) for number, run in enumerate(found.runs) for trace in run.traces]
    shown = _showcase(found.runs)
    parts = {"result": sections.result(found), "curves": sections.curves(found), "setup": sections.setup(found)}
    there = {name for name, html in parts.items() if html} | {"viewer"} | ({"orders"} if shown else set())
    links = "".join(f'<a href="#{name}">{told}</a>' for name, told in _SECTIONS.items() if name in there)
    runs = [_run(run) for run in found.runs]
    judges = list({run["judges"] for run in runs})
    # Which explains the method, and so is of a run that follows it, if there is one.
    candidates = [(k, trace) for k, (number, trace) in enumerate(traces) if _follows(runs[number])]
    index = {
        "fork": FORK_ENTROPY,
        "runs": runs,
        "traces": [
            {"run": number, "step": trace["step"], "route": trace["route"], "label": _label(trace)}
            for number, trace in traces
        ],
        "example": good_example(candidates),
        "showcase": [
            {"label": label, "block": f"showcase-{k}", "in_use": right_in_use(rows)}
            for k, (label, rows) in enumerate(shown)
        ],
    }
    blocks: dict[str, Any] = {"page-data": index}
    # A block for each: only the one that is looked at is ever parsed.
    blocks |= {f"trace-{k}": trace for k, (_, trace) in enumerate(traces)}
    blocks |= {f"showcase-{k}": rows for k, (_, rows) in enumerate(shown)}
    return _filled(
        _source("page.html"),
        {
            "policy": _policy(script, style),
            "version": escape(__version__),
            "title": escape(f"{sections.title_of(found)}: ForkLeft report"),
            "style": style,
            "script": script,
            "navigation": links,
            "summary": sections.summary(found),
            **parts,
            "measured": sections.measured(found) if parts["result"] else "The gain itself was not measured.",
            "judged": _JUDGED[judges[0]] if len(judges) == 1 else "",
            "data": "\n".join(json_block(name, value) for name, value in blocks.items()),
        },
    )


def _run(run: Run) -> dict[str, Any]:
    """What the viewer needs to know of a run.

    judges: what its verifier reads: the final answer, the whole of it, or what the user's own function does.
    """
    verifier = str(run.options.get("verifier", "math"))
    return {
        "name": run.name,
        "order": run.options.get("rollout_order", "high_entropy"),
        "view": run.options.get("view", "prefix"),
        "verifier": verifier,
        "judges": {"exact": "whole"}.get(verifier, "final" if verifier in KINDS else "own"),
        "lab": str(run.options.get("train_data", "")).startswith("lab:"),
        "routed": run.options.get("supervision", "routed") == "routed",
    }


def _follows(run: Mapping[str, Any]) -> bool:
    return run["order"] == "high_entropy" and run["view"] == "prefix"


def json_block(name: str, value: Any) -> str:
    """Data for the script of a page, as an element that is not run. Nothing in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


def _policy(script: str, style: str) -> str:
    """Only our own script and style, by digest; no connection to anywhere."""

    def digest(text: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

    return (
        f"default-src 'none'; script-src '{digest(script)}'; style-src '{digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _source(name: str) -> str:
    return files("forkleft.report").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its `{{names}}` replaced, in one go: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def _label(trace: Mapping[str, Any]) -> str:
    """A question in a list: without the markup of chats around it."""
    text = " ".join(
        re.sub(r"<\|[^|>]*\|>((system|user|assistant)\n)?", " ", trace["prompt"] or trace["id"] or "").split()
    )
    return text if len(text) <= _LABEL else text[: _LABEL - 1] + "…"


def _showcase(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """The rows of each question of the showcase, with its label; of several runs, each question of each."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for run in runs:
        for row in run.showcase:
            groups.setdefault((run.name, row["id"] or ""), []).append(row)
    return [
        (f"{name}: {_change(rows)}{_label(rows[0])}" if len(runs) > 1 else f"{_change(rows)}{_label(rows[0])}", rows)
        for (name, _), rows in groups.items()
    ]


def _change(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether the student was right before and after, as it writes in use: `✗→✓ `."""
    marks = "→".join("✓" if right else "✗" for right in right_in_use(rows))
    return f"{marks} " if marks else ""
