"""The panel of a training run in a terminal: routes, right answers, loss, speed, and the latest fork in words."""

from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from forkleft.objective.forks import Fork
from forkleft.objective.routes import ROUTE_WORDS


class Panel:
    """What is known by now, as lines that fit any terminal. Its height does not shrink, so that it does not jump."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._rows: dict[str, str] = {}
        self._held_out = self._right = ""
        # The width of the terminal, and the height of the panel in it so far.
        self._size = (0, 0)

    def take_figures(self, logs: Mapping[str, float]) -> None:
        """Take a row of the log (`metrics.py`)."""
        routes = [f"{logs[f'route_{route.lower()}']} {words}" for route, words in ROUTE_WORDS.items()]
        self._right = f"student {logs['student_accuracy']:.0%}, teacher {logs['teacher_accuracy']:.0%}"
        self._rows |= {
            "routes": ", ".join(routes),
            "right": self._right + self._held_out,
            "loss": f"{logs['loss']:.3f}, {logs['tokens_per_second']:,.0f} tokens a second",
        }

    def take_evaluation(self, questions: str, accuracy: float, step: int) -> None:
        """Take the share of right answers on held-out questions, after so many updates."""
        self._held_out = f"; {questions} {accuracy:.1%} at update {step}"
        if self._right:
            self._rows["right"] = self._right + self._held_out

    def take_fork(self, fork: Fork) -> None:
        """Take the fork of an update."""
        self._rows["fork"] = fork_words(fork, self._tokenizer)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(overflow="fold")
        # In a fixed order: forks may come before figures.
        for name in ("routes", "right", "loss", "fork"):
            if name in self._rows:
                table.add_row(name, Text(self._rows[name]))
        lines = console.render_lines(table, options, pad=False)
        width, height = self._size
        self._size = (options.max_width, max(len(lines), height if width == options.max_width else 0))
        yield table
        for _ in range(self._size[1] - len(lines)):
            yield Text("")


def fork_words(fork: Fork, tokenizer: PreTrainedTokenizerBase) -> str:
    """A fork in words."""
    (first, first_p), (second, second_p) = fork.student
    right, right_p = fork.teacher
    # The end of what stands before it is enough to find it.
    before = _shown(tokenizer, fork.before)
    after = f" (after {before})" if fork.before else ""
    return (
        f"at token {fork.position + 1}{after} the student was torn between {_shown(tokenizer, [first])} "
        f"({first_p:.0%}) and {_shown(tokenizer, [second])} ({second_p:.0%}); the teacher says "
        f"{_shown(tokenizer, [right])} ({right_p:.0%})"
    )


def _shown(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Tokens as text; quoted if they have spaces, or characters that a terminal would not show."""
    text = str(tokenizer.decode(list(ids)))
    return text if text.isprintable() and text and " " not in text else repr(text)
