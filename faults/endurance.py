"""Endurance: thousands of updates and verdicts in one process, which must not grow.

Memory, also that of the workers, open files and child processes are noted as it goes. After a start, in which caches
fill, the slope of a line through the memory says how much is kept for each update or call.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from transformers import TrainerCallback

from faults.scenarios import LAB, TINY
from faults.tally import Tally
from forkleft.verify import Verifier

# The share of the time after which caches are full.
_START = 0.25
# Bytes for each update, and for each call: more would be hundreds of megabytes in a long run.
UPDATE_BYTES, CALL_BYTES = 20_000.0, 1_000.0


@dataclass
class Course:
    """What a process holds, over time: steps, bytes in memory (with those of its children), open files, children."""

    steps: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    children: list[int] = field(default_factory=list)

    def note(self, step: int) -> None:
        """Look at this process now."""
        children = _children()
        self.steps.append(step)
        self.memory.append(in_all())
        self.files.append(len(os.listdir("/proc/self/fd")))
        self.children.append(len(children))

    def slope(self) -> float:
        """Bytes for each step, after the start."""
        first = int(len(self.steps) * _START)
        return float(np.polyfit(self.steps[first:], self.memory[first:], 1)[0])

    def grown(self, bound: float) -> list[str]:
        """What has grown, in words; bound: bytes for each step that are allowed."""
        first, found = int(len(self.steps) * _START), []
        if self.slope() > bound:
            found.append(f"memory grows by {self.slope():,.0f} bytes a step")
        for name in ("files", "children"):
            counts = getattr(self, name)
            if max(counts[first:]) > max(counts[: first + 1]):
                found.append(f"open {name} grow from {max(counts[: first + 1])} to {max(counts[first:])}")
        return found

    def said(self) -> str:
        """The figures, for people."""
        at_the_end = f"{self.memory[-1] / 2**20:,.0f} MB, {self.files[-1]} files, {self.children[-1]} children"
        return f"{self.slope():,.0f} bytes a step; at the end {at_the_end}"


class _Watch(TrainerCallback):
    def __init__(self, course: Course, every: int) -> None:
        self.course, self.every = course, every

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Look, now and then."""
        if state.global_step % self.every == 0:
            self.course.note(state.global_step)


def run(work: Path, updates: int, calls: int) -> list[Tally]:
    """So many updates of the lab, and verdicts on mathematics, each in this process."""
    found = []
    for name, course, bound in (
        (f"{updates:,} updates", trained(work, updates), UPDATE_BYTES),
        (f"{calls:,} verdicts", judged(calls), CALL_BYTES),
    ):
        found.append(Tally(name, 1, course.grown(bound)[:1], course.said()))
    return found


def trained(work: Path, updates: int) -> Course:
    """A training of so many updates, with all that `forkleft train` writes."""
    from forkleft.cli import runs
    from forkleft.train.recipes import read_options, recipe_of
    from forkleft.train.trainer import ForkLeftTrainer

    changes = TINY | {
        "max_steps": updates,
        # New questions in every update: what is kept for each of them must not grow either.
        "train_questions": updates * TINY["questions_per_update"],
        "save_steps": max(1, updates // 4),
        "eval_strategy": "no",
        "trace_steps": 100,
    }
    words = [word for name, value in changes.items() for word in (f"--{name}", str(value))]
    recipe, config = recipe_of(read_options(LAB, [*words, "--output_dir", str(work / "run")]))
    student = runs.student_of(recipe)
    course = Course()
    trainer = ForkLeftTrainer(
        student,
        runs.teacher_of(recipe, student),
        config,
        runs.train_rows(recipe, config),
        callbacks=[_Watch(course, max(1, updates // 100))],
    )
    trainer.train()
    return course


def judged(calls: int, judge: Callable[[list[str], list[str]], object] | None = None, batch: int = 50) -> Course:
    """Verdicts on so many answers, no two of them alike."""
    judge = judge or Verifier("math").judge
    course = Course()
    every = max(1, calls // batch // 100)
    for number in range(-(-calls // batch)):
        values = range(number * batch, min(calls, (number + 1) * batch))
        judge([rf"so \boxed{{\frac{{{value}}}{{7}}}}" for value in values], [f"{value}/7" for value in values])
        if number % every == 0:
            course.note(number * batch)
    return course


def resident(process: str = "self") -> int:
    """Bytes of a process in memory; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def in_all() -> int:
    """Bytes of this process and its children in memory."""
    return resident() + sum(map(resident, _children()))


def _children() -> list[str]:
    found: list[str] = []
    for thread in Path("/proc/self/task").iterdir():
        found += (thread / "children").read_text(encoding="ascii").split()
    return found
