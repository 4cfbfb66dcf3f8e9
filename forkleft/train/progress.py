"""Shows people the progress of a training run."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forkleft.objective.forks import WatchFork
from forkleft.progress import Meter
from forkleft.train.panel import Panel


class ProgressLine(TrainerCallback):
    """Shows a bar or plain lines instead of a page of dictionaries, and every evaluation on its own line.

    bar: False for plain lines in a terminal, too.
    """

    def __init__(self, console: Console, *, bar: bool = True) -> None:
        self.console, self._bar = console, bar
        self._meter: Meter | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Start the meter."""
        self._meter = Meter(
            self.console,
            "update",
            state.max_steps,
            done=state.global_step,
            shown=state.is_world_process_zero,
            bar=self._bar,
            at_ends=True,
        )
        self._meter.start()

    def phase(self, name: str) -> None:
        """Show which phase of an update begins; empty for none."""
        if self._meter is not None:
            self._meter.phase(name)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Count the update."""
        if self._meter is not None:
            self._meter.move(state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Print the loss on held-out text, and how often the student was right on held-out questions."""
        if self._meter is not None:
            self._meter.interrupt()
        if not state.is_world_process_zero or metrics is None:
            return
        for name in (name for name in metrics if name.endswith("_loss")):
            rows = metrics[f"{name.removesuffix('causal_loss').removesuffix('loss')}rows"]
            what = name.removesuffix("_loss").replace("_", " ")
            self._print(f"update {state.global_step}  {what}: loss {metrics[name]:.3f} on {rows} rows")
        for name in (name for name in metrics if name.endswith("_accuracy")):
            counted = metrics[f"{name.removesuffix('accuracy')}count"]
            questions = name.removesuffix("_accuracy").replace("_", " ")
            self._take_evaluation(questions, metrics[name], state.global_step)
            self._print(f"update {state.global_step}  {questions}: {metrics[name]:.1%} of {counted} right")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Show the newest numbers."""
        if self._meter is None or logs is None or "loss" not in logs:
            return
        self._tell(self._meter, logs)

    def _tell(self, meter: Meter, logs: Mapping[str, float]) -> None:
        """Show a row of the log."""
        rate = f"{logs['learning_rate']:.2g}"
        meter.tell(f"loss {logs['loss']:.3f}  rate {rate}, {logs['tokens_per_second']:,.0f} tokens a second")

    def _take_evaluation(self, questions: str, accuracy: float, step: int) -> None:
        """Keep the share of right answers on held-out questions."""

    def warn(self, text: str) -> None:
        """Print something that a person should look at."""
        # One line in a log; in a terminal, lines break between words.
        self.console.print(Text(text, style="yellow"), soft_wrap=not self.console.is_terminal)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Stop the meter."""
        self.stop()

    def stop(self) -> None:
        """Stop the meter, also after an error."""
        if self._meter is not None:
            self._meter.stop()
            self._meter = None

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


class ForkProgress(ProgressLine):
    """Shows routes, right answers and the latest fork of a run that distils, too.

    tokenizer: the student's, for the fork in words.
    """

    def __init__(self, console: Console, tokenizer: PreTrainedTokenizerBase, *, bar: bool = True) -> None:
        super().__init__(console, bar=bar)
        self._panel = Panel(tokenizer)

    @property
    def watch_fork(self) -> WatchFork | None:
        """Takes the forks of updates; None if nobody sees them."""
        return self._panel.take_fork if self._meter is not None and self._meter.drawn else None

    def _tell(self, meter: Meter, logs: Mapping[str, float]) -> None:
        self._panel.take_figures(logs)
        meter.tell(
            f"loss {logs['loss']:.3f}  student right {logs['student_accuracy']:.0%}, "
            f"{logs['taught']} of {logs['questions']} taught by the teacher",
            self._panel,
        )

    def _take_evaluation(self, questions: str, accuracy: float, step: int) -> None:
        self._panel.take_evaluation(questions, accuracy, step)
