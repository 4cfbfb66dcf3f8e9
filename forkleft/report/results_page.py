"""The page of results: words that people write, and in their places the figures of studies.

A place is a line or a part of a line in double braces:

{{claims paper}}                      the table of judged claims of one source
{{study order-view}}                  what a study shows: figures, accuracy and differences
{{table routes: Routes in training}}  one more table of a study, by its title
{{picture routes: routes}}            one more figure of a study
{{probe}}                             what `forkleft probe --json` found, of all files in the folder `probe`
{{forks}}                             the same of forks: where they are, and when each order decides them
{{gain order-view: L-high}}           one figure with its interval; also `accuracy`, `difference`
{{verdict order-view: view: L − B}}   the verdict on the claim that this figure judges

So the words stay and the figures are those of the committed results, whatever these become.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from forkleft.errors import ForkLeftError, did_you_mean
from forkleft.files import write_text
from forkleft.report.studies import TABLE, show_study, study_folders
from forkleft.study.analysis import teachers
from forkleft.study.claims import Judgement, Shown, judge, read_claims
from forkleft.study.names import RESULTS
from forkleft.study.results import StudyResults
from forkleft.study.tables import Table, facts, markdown, missing, p_value, percent, study_tables

_T = TypeVar("_T")
CLAIMS, WORDS, PROBE = "claims.yaml", "page.md", "probe"
_PLACE = re.compile(r"\{\{\s*(\w+)\s*(.*?)\s*\}\}")
# What the page shows of a study; the rest is on the study's own page.
_TABLES = ("Accuracy", "Differences", "By student", "Checkpoints", "Teacher strength", "Tokens a forward")
_LONG = {"supported": "**supported**", "not supported": "**not supported**", "undecided": "undecided"}


@dataclass(frozen=True)
class Book:
    """All that a page may show. folder: of the studies, as the page links to it."""

    studies: Mapping[str, Shown]
    judgements: Sequence[Judgement]
    probes: Mapping[str, Mapping[str, Any]]
    folder: str


def write_results_page(folder: Path, output: Path) -> None:
    """Write the page of the studies in a folder: its words from `page.md`, its claims from `claims.yaml`.

    The tables and figures of every study are made anew, too. Raises ForkLeftError for a place that cannot be filled.
    """
    # What is quick to read comes first: the analysis of many studies takes minutes.
    words = folder / WORDS
    try:
        text = words.read_text(encoding="utf-8")
    except OSError as error:
        raise ForkLeftError(f"cannot read the words of the page: {words}: {error.strerror}") from error
    claims = read_claims(folder / CLAIMS)
    probes = {path.stem: _probe(path) for path in sorted((folder / PROBE).glob("*.json"))}
    studies = {}
    for path in study_folders(folder):
        results, analysis = show_study(path)
        studies[results.name] = (results, analysis)
    link = Path(os.path.relpath(folder, output.parent)).as_posix()
    book = Book(studies, judge(claims, studies), probes, link)
    write_text(output, fill(text, book, words))


def fill(text: str, book: Book, name: Path) -> str:
    """The text with every place filled. name: of the file, for errors."""

    def filled(found: re.Match) -> str:
        kind, argument = found[1], found[2]
        line = text.count("\n", 0, found.start()) + 1
        if kind not in _KINDS:
            raise ForkLeftError(f"{name}, line {line}: unknown place {kind!r}{did_you_mean(kind, _KINDS)}")
        try:
            return _KINDS[kind](book, argument)
        except ForkLeftError as error:
            raise ForkLeftError(f"{name}, line {line}: {error}") from error

    return _PLACE.sub(filled, text)


def _claims(book: Book, source: str) -> str:
    chosen = [judged for judged in book.judgements if judged.claim.source == source]
    if not chosen:
        raise ForkLeftError(f"no claim has the source {source!r}")
    printed = any(judged.claim.printed for judged in chosen)
    rows = []
    for judged in chosen:
        claim, figure = judged.claim, judged.figure
        shown = ("–", "0") if figure is None else (percent(figure.mean, "+"), str(figure.seeds))
        link = f"[{claim.study}](#{claim.study})"
        row = (claim.claim, claim.printed, *shown, p_value(judged.holm), link, _LONG[judged.verdict])
        rows.append(row if printed else (row[0], *row[2:]))
    heading = ("claim", "in the paper", "here", "seeds", "p", "study", "verdict")
    if not printed:
        return markdown((heading[0], *heading[2:]), rows, words=(0, 4, 5))
    return markdown(heading, rows, words=(0, 1, 5, 6))


def _study(book: Book, name: str) -> str:
    results, analysis = _named(book, name)
    pictures = _pictures(results)
    lines = [f"*{results.about}* {facts(results)}", ""]
    lines += [f"**{missing(results)}**", ""] if results.holes else []
    lines += [_image(book, name, picture) for picture in pictures] + [""]
    for table in study_tables(results, analysis):
        if table.title.split(",")[0] in _TABLES:
            lines += [_titled_table(table), ""]
    lines += [f"[All tables]({book.folder}/{name}/{TABLE}), [every verdict]({book.folder}/{name}/{RESULTS})."]
    return "\n".join(lines)


def _table(book: Book, argument: str) -> str:
    study, title = _parts(argument)
    found = {table.title: table for table in study_tables(*_named(book, study))}
    table = _chosen(found, title, study)
    return f"{_titled_table(table)}\n\n{table.note}".rstrip()


def _titled_table(table: Table) -> str:
    return f"**{table.title}.**\n\n{markdown(table.heading, table.rows, table.words)}"


def _picture(book: Book, argument: str) -> str:
    study, name = _parts(argument)
    _named(book, study)
    return _image(book, study, name)


def _image(book: Book, study: str, name: str) -> str:
    return f"![{study}: {name}]({book.folder}/{study}/{name}.svg)"


def _pictures(results: StudyResults) -> list[str]:
    """The one picture that says most: that of what the study varies."""
    if results.curve:
        return ["curve"]
    if len(results.decoding) > 1:
        return ["decoding"]
    if len(set(teachers(results).values())) > 1:
        return ["strength"]
    if results.effects:
        return ["accuracy", "interaction"]
    return ["accuracy"]


def _probe_table(book: Book, argument: str) -> str:
    if not book.probes:
        raise ForkLeftError(f"there are no results of forkleft probe in {book.folder}/{PROBE}")
    rows = []
    for name, said in book.probes.items():
        views, apart = said["views"], said["views"]["disagreements"]
        shares = [f"{100 * views[part] / apart:.1f}" for part in ("target_masked_only", "prefix_only", "neither")]
        entropies = [f"{views[part]:.3f}" for part in ("target_masked_entropy", "prefix_entropy")]
        rows.append((name, f"{views['positions']:,}", f"{apart:,}", *shares, *entropies))
    heading = ("student", "positions", "views differ", "both sides right, %", "prefix right, %", "neither, %")
    return markdown((*heading, "entropy, both sides", "entropy, prefix"), rows)


def _forks_table(book: Book, argument: str) -> str:
    rows = [
        (
            name,
            order,
            f"{100 * found['right']:.0f}",
            f"{100 * found['forks'] / found['tokens']:.1f}",
            *("–" if found[part] is None else f"{found[part]:.2f}" for part in ("place", "commit", "entropy")),
            "–" if found["settled"] is None else f"{100 * found['settled']:.0f}",
        )
        for name, said in book.probes.items()
        for order, found in said["orders"].items()
    ]
    heading = ("student", "order of writing", "right, %", "forks, % of tokens", "place", "decided", "entropy then")
    return markdown((*heading, "settled by then, %"), rows, words=(0, 1))


def _gain(book: Book, argument: str) -> str:
    study, arm = _parts(argument)
    results, analysis = _named(book, study)
    gains = analysis.gains[next(iter(results.decoding))]
    return percent(_chosen(gains, arm, study).mean, "+")


def _accuracy(book: Book, argument: str) -> str:
    study, row = _parts(argument)
    results, analysis = _named(book, study)
    rows = {found.name: found.accuracy for found in analysis.rows[next(iter(results.decoding))]}
    return percent(_chosen(rows, row, study).mean)


def _difference(book: Book, argument: str) -> str:
    study, name = _parts(argument)
    _, analysis = _named(book, study)
    # Under several ways to decode: the first.
    found = {compared.name: compared.difference for compared in reversed(analysis.comparisons)}
    return percent(_chosen(found, name, study).mean, "+")


def _verdict(book: Book, argument: str) -> str:
    study, of = _parts(argument)
    found = {str(judged.claim.of): judged.verdict for judged in book.judgements if judged.claim.study == study}
    return _chosen(found, of, study)


_KINDS: dict[str, Callable[[Book, str], str]] = {
    "claims": _claims,
    "study": _study,
    "table": _table,
    "picture": _picture,
    "probe": _probe_table,
    "forks": _forks_table,
    "gain": _gain,
    "accuracy": _accuracy,
    "difference": _difference,
    "verdict": _verdict,
}


def _parts(argument: str) -> tuple[str, str]:
    study, colon, name = argument.partition(":")
    if not colon:
        raise ForkLeftError(f"expected `STUDY: NAME`, found {argument!r}")
    return study.strip(), name.strip()


def _named(book: Book, name: str) -> Shown:
    return _chosen(book.studies, name, book.folder)


def _chosen(found: Mapping[str, _T], name: str, where: str) -> _T:
    if name not in found:
        raise ForkLeftError(f"{where} has no {name!r}{did_you_mean(name, found) or '; it has ' + ', '.join(found)}")
    return found[name]


def _probe(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        said["views"]["disagreements"], said["orders"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForkLeftError(f"{path} is no result of forkleft probe --json: {error!r}") from error
    return said
