"""Text that denoises live: masked positions fill in, coloured by their entropy when they were committed."""

import math
import re
import time
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from forkleft.students.student import Student

# Upper bounds of entropy in nats, each with the style of tokens that were committed below it.
SHADES = ((0.1, "default"), (0.5, "cyan"), (1.0, "yellow"), (float("inf"), "bold red"))
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MASK, _TORN = "▒", "\ufffd"
# Lines below the text: an empty one and the state.
_FOOT = 3


class LiveText:
    """Shows one response while it is written. Give `show` to `generate` as `watch`.

    pause: show every pass for at least so many seconds, and mark what it has just written.

    with LiveText(console, student) as live:
        generate(student, [prompt], max_new_tokens=256, watch=live.show)
    """

    def __init__(self, console: Console, student: Student, *, pause: float = 0.0) -> None:
        self._console, self._student, self._pause = console, student, pause
        self._passes = 0
        self._before: Sequence[int] = ()
        self._shown_at = -math.inf
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveText":
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, number: int, ids: Sequence[int], entropies: Sequence[float]) -> None:
        """Draw the response after a pass: its last lines, if it is longer than the terminal."""
        self._passes += 1
        mask_id = self._student.vocabulary.mask_id
        left = sum(i == mask_id for i in ids)
        state = Text(f"\npass {self._passes}, {len(ids) - left} tokens, {left} masked", style="dim")
        new: set[int] = set()
        if self._pause:
            was = [*self._before, *[mask_id] * (len(ids) - len(self._before))]
            new = {place for place, (old, now) in enumerate(zip(was, ids, strict=False)) if old != now}
            self._before = list(ids)
            # A model that is slow enough is not slowed down further.
            time.sleep(max(0.0, self._shown_at + self._pause - time.monotonic()))
            self._shown_at = time.monotonic()
        lines = coloured(self._student, ids, entropies, new).wrap(self._console, self._console.width)
        room = max(1, self._console.height - _FOOT)
        self._live.update(Group(*lines[-room:], state), refresh=True)

    def finish(self, ids: Sequence[int], entropies: Sequence[float]) -> None:
        """Print the whole response and what its colours mean."""
        if self._pause:
            time.sleep(self._pause)
        self._live.stop()
        self._console.print(coloured(self._student, ids, entropies), Text(), legend(), sep="\n")


def coloured(student: Student, ids: Sequence[int], entropies: Sequence[float], marked: Collection[int] = ()) -> Text:
    """A response in colours; ▒ where it is masked. Special tokens, and what is behind a stop token, are left out.

    marked: positions that are shown in reverse.
    """
    mask_id, stop_ids = student.vocabulary.mask_id, student.vocabulary.stop_ids
    end = next((place for place, i in enumerate(ids) if i in stop_ids), len(ids))
    text = Text()
    for piece, places in pieces(student, ids[:end]):
        if ids[places[0]] == mask_id:
            text.append(_MASK, style="dim")
            continue
        # A piece is as uncertain as the worst of its tokens.
        entropy = max(entropies[place] for place in places)
        style = next(style for end, style in SHADES if entropy < end)
        text.append(without_controls(piece), style=style if set(places).isdisjoint(marked) else f"{style} reverse")
    return text


def without_controls(text: str) -> str:
    """A model's text for a terminal, which would obey some characters: lines and tabs stay, all other controls go."""
    return _CONTROLS.sub("", text)


def pieces(student: Student, ids: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
    """Pieces of text, each with the positions of its tokens. A mask is a piece without text; so are special tokens.

    A character may take several tokens, and the text of a token may depend on those before it. So each piece is what a
    run of tokens adds to the text of all tokens before it. Tokens whose character is not complete give no piece.
    """
    run: list[int] = []
    places: list[int] = []
    said = ""
    for place, i in enumerate(ids):
        if i == student.vocabulary.mask_id:
            yield "", [place]
            # Behind a mask the text begins anew.
            run, places, said = [], [], ""
            continue
        run.append(i)
        places.append(place)
        whole = str(student.text_tokenizer.decode(run, skip_special_tokens=True))
        if not whole.endswith(_TORN):
            yield whole[len(said) :], places
            said, places = whole, []
            if whole.endswith("\n"):
                # Lines do not depend on each other, and short runs are decoded quickly.
                run, said = [], ""


def legend() -> Text:
    """What the colours mean."""
    text = Text("nats of entropy at commit: ", style="dim")
    start = 0.0
    for end, style in SHADES:
        span = f"{start:g} – {end:g}" if end < float("inf") else f"{start:g} and more"
        text.append(span, style=style).append("  ")
        start = end
    return text
