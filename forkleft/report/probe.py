"""The output of `forkleft probe`."""

from collections.abc import Mapping

from rich import box
from rich.console import Group
from rich.table import Table

from forkleft.study.agreement import Agreement
from forkleft.study.probe import Forks, Views


def views_table(views: Views, *, title: str) -> Table:
    """Both views at the positions of the references."""
    shown = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    shown.add_column("")
    for column in ("positions", "share", "entropy, nats"):
        shown.add_column(column, justify="right", no_wrap=True)

    def put(name: str, count: int, of: int, entropy: float | None = None) -> None:
        share = f"{100 * count / of:.2f}%" if of else "–"
        shown.add_row(name, f"{count:,}", share, "" if entropy is None else f"{entropy:.4f}")

    put("right with both sides seen", views.target_masked_right, views.positions, views.target_masked_entropy)
    put("right from the prefix alone", views.prefix_right, views.positions, views.prefix_entropy)
    put("the views disagree", views.disagreements, views.positions)
    for name, count in (
        ("both sides right", views.target_masked_only),
        ("prefix right", views.prefix_only),
        ("neither right", views.neither),
    ):
        put(f"  of these, {name}", count, views.disagreements)
    return shown


def forks_table(found: Mapping[str, tuple[Forks, float | None]], *, fork_entropy: float) -> Table:
    """When each order decides its forks, and its share of right answers (None: not judged)."""
    shown = Table(
        title=f"Forks: the prefix leaves {fork_entropy:g} nats or more open",
        caption="Means over forks. place: 0% is the first token of a response; pass: 0% is the first of a block; "
        "prefix, commit: the entropy from the prefix alone and when the fork was decided, in nats; settled: what stood "
        "to its right had taken more than half of the entropy by then.",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    shown.add_column("order")
    for column in ("right", "forks", "place", "pass", "prefix", "commit", "settled"):
        shown.add_column(column, justify="right", no_wrap=True)
    for order, (forks, right) in found.items():
        shown.add_row(
            order,
            _percent(right),
            f"{forks.forks:,}",
            _percent(forks.place),
            _percent(forks.commit),
            _number(forks.prefix_entropy),
            _number(forks.entropy),
            _percent(forks.settled),
        )
    return shown


def probe_page(
    views: Views, found: Mapping[str, tuple[Forks, float | None]], *, title: str, fork_entropy: float
) -> Group:
    """Both tables."""
    return Group(views_table(views, title=title), forks_table(found, fork_entropy=fork_entropy))


def agreement_table(found: Agreement, *, title: str) -> Table:
    """How near a student's predictions are to a teacher's after the same text."""
    shown = Table(
        title=title,
        caption="Intervals of 95%: whole questions are drawn with replacement.",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    shown.add_column("")
    shown.add_column(f"mean of {len(found.kl):,} positions", justify="right", no_wrap=True)
    shown.add_column("interval", justify="right", no_wrap=True)
    kl, same = found.mean_kl, found.share_same
    shown.add_row("KL(teacher ‖ student), nats", f"{kl.value:.3f}", f"{kl.low:.3f} – {kl.high:.3f}")
    shown.add_row("same likeliest token", _percent(same.value), f"{_percent(same.low)} – {_percent(same.high)}")
    return shown


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
