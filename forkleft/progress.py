"""The progress line of a training run, and quiet logs: one line that moves instead of a page of dictionaries."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

# Where there is no terminal, a plain line after so many seconds.
_PLAIN_SECONDS = 20.0


class ProgressLine(TrainerCallback):
    """Updates done, loss, how often the student is right, and the time left; every evaluation on a line of its own."""

    def __init__(self, console: Console, *, bar: bool = True) -> None:
        self.console, self._draw = console, bar and console.is_terminal
        self._said_at = 0.0
        self._bar: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Draw the line."""
        if not state.is_world_process_zero or not self._draw:
            return
        columns = [TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
        self._bar = Progress(*columns, TextColumn("{task.fields[told]}"), console=self.console)
        self._bar.start()
        self._task = self._bar.add_task("training", total=state.max_steps, completed=state.global_step, told="")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Count the update."""
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Tell how often the student was right on held-out questions."""
        if not state.is_world_process_zero or metrics is None:
            return
        for name in (name for name in metrics if name.endswith("_accuracy")):
            counted = metrics[f"{name.removesuffix('accuracy')}count"]
            told = name.removesuffix("_accuracy").replace("_", " ")
            self.console.print(
                f"update {state.global_step}  {told}: {metrics[name]:.1%} of {counted} right", highlight=False
            )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **others: Any,
    ) -> None:
        """Tell the newest numbers."""
        if not state.is_world_process_zero or logs is None or "loss" not in logs:
            return
        told = (
            f"loss {logs['loss']:.3f}  student right {logs['student_accuracy']:.0%}  "
            f"taught by the teacher {logs['route_leftopd']:.0f}"
        )
        if self._bar is not None:
            self._bar.update(self._task, told=told)
        elif time.monotonic() - self._said_at > _PLAIN_SECONDS or state.global_step == state.max_steps:
            self._said_at = time.monotonic()
            self.console.print(f"update {state.global_step} of {state.max_steps}  {told}", highlight=False)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any
    ) -> None:
        """Leave the line as it stands."""
        self.stop()

    def stop(self) -> None:
        """Leave the terminal to others, also after an error."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
