"""Text that denoises before one's eyes: masked positions fill in, coloured by their entropy when committed."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from forkleft.students.student import Student

# Upper ends in nats, with how a token is shown that was committed below it.
SHADES = ((0.1, "default"), (0.5, "cyan"), (1.0, "yellow"), (float("inf"), "bold red"))
_MASK = "▒"


class LiveText:
    """Shows one response while it is written. `show` is what `generate` takes as `watch`.

    with LiveText(console, student) as live:
        generate(student, [prompt], max_new_tokens=256, watch=live.show)
    """

    def __init__(self, console: Console, student: Student) -> None:
        self._student = student
        self._passes = 0
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")

    def __enter__(self) -> "LiveText":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, number: int, ids: Sequence[int], entropies: Sequence[float]) -> None:
        """Draw the response as it stands after a pass."""
        self._passes += 1
        left = sum(i == self._student.vocabulary.mask_id for i in ids)
        state = Text(f"\npass {self._passes}, {len(ids) - left} tokens, {left} masked", style="dim")
        self._live.update(Group(coloured(self._student, ids, entropies), state), refresh=True)

    def finish(self, ids: Sequence[int], entropies: Sequence[float]) -> None:
        """Leave the response as it ended, with what its colours mean."""
        self._live.update(Group(coloured(self._student, ids, entropies), Text(), legend()), refresh=True)


def coloured(student: Student, ids: Sequence[int], entropies: Sequence[float]) -> Text:
    """A response in colours; ▒ where it is masked. What stands behind a stop token is left out."""
    text, mask_id, stop_ids = Text(), student.vocabulary.mask_id, student.vocabulary.stop_ids
    for i, entropy in zip(ids, entropies, strict=True):
        if i in stop_ids:
            break
        if i == mask_id:
            text.append(_MASK, style="dim")
        else:
            style = next(style for end, style in SHADES if entropy < end)
            text.append(student.tokenizer.decode([i]), style=style)
    return text


def legend() -> Text:
    """What the colours mean."""
    text = Text("nats of entropy at commit: ", style="dim")
    start = 0.0
    for end, style in SHADES:
        told = f"{start:g} – {end:g}" if end < float("inf") else f"{start:g} and more"
        text.append(told, style=style).append("  ")
        start = end
    return text
