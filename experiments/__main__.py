"""Make `docs/results.md` from the results in this folder: `make results`, or

    python -m experiments                          # the page, its tables and figures
    python -m experiments --take runs/studies      # first take over the results of studies that were run there

`page.md` is the page with places to be filled, each a line of its own:

    {{claims}}                                     the claims of claims.yaml, judged
    {{table order-view Differences}}               a table of a study
    {{figure order-view accuracy}}                 a figure of a study
    {{probe}}                                      the static diagnostic, from probe.json

`probe.json` has for each student the `views` of `forkleft probe --json`.
"""

import argparse
import json
import re
import sys
from pathlib import Path

from experiments.claims import claims_table, judge, read_claims
from forkleft.errors import ForkLeftError
from forkleft.files import write_text
from forkleft.report.studies import show_study, study_folders
from forkleft.study.results import RESULTS, load_results
from forkleft.study.tables import study_page

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"
_PLACE = re.compile(r"^\{\{(.+)\}\}$", re.MULTILINE)


def main(arguments: list[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m experiments", description=main.__doc__)
    parser.add_argument("--take", type=Path, metavar="DIR", help="copy the results of the studies in this folder first")
    options = parser.parse_args(arguments)
    if options.take is not None:
        for folder in study_folders(options.take):
            results, _ = show_study(folder)
            if results.holes:
                raise ForkLeftError(f"{results.name} lacks {len(results.holes)} cells; finish it: forkleft study run")
            (HERE / results.name).mkdir(exist_ok=True)
            write_text(HERE / results.name / RESULTS, (folder / RESULTS).read_text(encoding="utf-8"))
    write_text(PAGE, page(HERE))
    print(f"{PAGE.relative_to(HERE.parent)} is written")


def page(folder: Path) -> str:
    """The text of the page. Writes the tables and figures of each study beside its results."""
    sections, studies = {}, {}
    for found in study_folders(folder):
        results, analysis = show_study(found)
        studies[results.name] = load_results(found / RESULTS)
        sections[results.name] = _sections(study_page(results, analysis))

    def fill(place: re.Match[str]) -> str:
        kind, *words = place[1].split(maxsplit=2)
        if kind == "claims":
            return "\n".join(claims_table(judge(read_claims(folder / "claims.yaml"), studies)))
        if kind == "probe":
            return _probe(json.loads((folder / "probe.json").read_text(encoding="utf-8")))
        if kind == "table":
            study, title = words
            return sections[study][title]
        if kind == "figure":
            study, name = words
            return f"![{study}, {name}](../{folder.name}/{study}/{name}.svg)"
        raise ForkLeftError(f"page.md: there is nothing called {place[1]!r} to fill in")

    return _PLACE.sub(fill, (folder / "page.md").read_text(encoding="utf-8"))


def _sections(text: str) -> dict[str, str]:
    """The parts of a study's page by their titles."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {title: body.strip() for title, body in zip(parts[1::2], parts[2::2], strict=True)}


def _probe(students: dict[str, dict[str, float]]) -> str:
    """A table of the static diagnostic, a row for each student."""
    heading = ("student", "positions", "right, both sides", "right, prefix", "disagree")
    heading += ("both sides only", "prefix only", "neither")
    lines = [f"| {' | '.join(heading)} |", "| --- |" + " ---: |" * (len(heading) - 1)]
    for name, views in students.items():
        total, differ = views["positions"], views["disagreements"]
        shares = [views[key] / total for key in ("target_masked_right", "prefix_right", "disagreements")]
        shares += [views[key] / differ for key in ("target_masked_only", "prefix_only", "neither")]
        lines.append(f"| {name} | {total:,} | {' | '.join(f'{100 * share:.1f}%' for share in shares)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except ForkLeftError as error:
        sys.exit(f"experiments: {error}")
