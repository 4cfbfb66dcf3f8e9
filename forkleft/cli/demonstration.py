"""The demo behind `forkleft demo` and `make demo`: distil the lab's student, and measure what it learned.

The setting is the one in which the lab shows the method best: the fixed-canvas readout, which the student meets in its
own decoding, and half of the positions supervised.
"""

import json
import logging
from itertools import islice
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from forkleft.errors import ForkLeftError
from forkleft.evaluate.statistics import mcnemar, paired_gain
from forkleft.files import check_writable
from forkleft.lab.accuracy import Measurement, measure
from forkleft.lab.benchmarks import MAX_NEW_TOKENS
from forkleft.lab.models import STUDENTS, TEACHERS, LabModel, load_model
from forkleft.lab.questions import held_out, training_stream
from forkleft.report.curves import draw_curves
from forkleft.students import Student
from forkleft.teacher import Teacher
from forkleft.train.config import ForkLeftConfig
from forkleft.train.trainer import ForkLeftTrainer

SETS = ("chain-3", "chain-4", "chain-5")
UPDATES, QUESTIONS = 50, 48
_POOL = 960
_SEED = 1


def demo(
    output: Path | None = None, *, student: str = STUDENTS[0], teacher: str = TEACHERS[0], updates: int = UPDATES
) -> None:
    """Distil a lab student with a lab teacher, evaluate before and after, print the table, and leave the run's folder.

    Raises ForkLeftError if the folder exists already or cannot be made, or there is nothing to do.
    """
    if updates < 1:
        raise ForkLeftError(f"expected at least 1 update, found {updates}")
    folder = _free_folder() if output is None else output
    if folder.exists():
        raise ForkLeftError(f"{folder} exists already; name a new folder")
    check_writable(folder)
    console = Console()
    learner, master = load_model(student), load_model(teacher)
    if learner.student is None or master.student is not None:
        raise ForkLeftError(f"{student} cannot learn from {teacher}: expected a student and a teacher of the lab")
    console.print(
        f"[bold]{student}[/], a diffusion model of {learner.card.parameters:,} parameters that hardly\n"
        f"ever saw `*`, learns from [bold]{teacher}[/], an autoregressive one of\n"
        f"{master.card.parameters:,}: {updates} updates of {QUESTIONS} questions.\n",
        highlight=False,
    )
    before = _measure(learner, console, "before")
    _train(learner.student, master, folder, updates)
    after = _measure(learner, console, "after")
    rows = [_compared(name, before[name], after[name]) for name in SETS]
    (folder / "result.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    draw_curves(folder / "metrics.jsonl", folder / "curves.png")
    console.print(_table(rows))
    console.print(f"[bold]{folder}[/]: the model, metrics.jsonl, traces.jsonl, result.json and curves.png")


def _free_folder() -> Path:
    """runs/demo, or the next of runs/demo-2, runs/demo-3 … that is free."""
    folder, number = Path("runs/demo"), 1
    while folder.exists():
        number += 1
        folder = Path(f"runs/demo-{number}")
    return folder


def _measure(lab_model: LabModel, console: Console, when: str) -> dict[str, Measurement]:
    found = {}
    for name in SETS:
        with console.status(f"measuring {name} {when} training"):
            found[name] = measure(lab_model, held_out(name))
    told = ", ".join(f"{name} {found[name].tally.accuracy:.1%}" for name in SETS)
    console.print(f"{when} training: {told}", highlight=False)
    return found


def _train(student: Student, master: LabModel, folder: Path, updates: int) -> None:
    config = ForkLeftConfig(
        str(folder),
        max_steps=updates,
        per_device_train_batch_size=QUESTIONS,
        rollout_batch_size=QUESTIONS,
        learning_rate=4e-4,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=10,
        adam_beta2=0.99,
        rho=0.5,
        geometry="canvas",
        passes=student.family.block_size,
        max_new_tokens=MAX_NEW_TOKENS,
        teacher_max_new_tokens=MAX_NEW_TOKENS,
        verifier="lab",
        prompt_template="{question}",
        trace_steps=max(1, updates // 4),
        save_strategy="no",
        use_cpu=True,
        seed=_SEED,
    )
    # Gone through more than once, with fresh rollouts each time; the teacher answers each question once.
    questions = islice(training_stream(_SEED), min(updates * QUESTIONS, _POOL))
    rows = [
        {"id": item.id, "question": item.prompt, "answer": item.answer, "solution": item.solution} for item in questions
    ]
    teacher = Teacher(master.model, master.tokenizer, stop_ids=student.vocabulary.stop_ids, batch_size=QUESTIONS)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    ForkLeftTrainer(student, teacher, config, rows).train()


def _compared(name: str, before: Measurement, after: Measurement) -> dict:
    pairs = [(one.correct, two.correct) for one, two in zip(before.records, after.records, strict=True)]
    gain = paired_gain([a for a, _ in pairs], [b for _, b in pairs])
    return {
        "set": name,
        "questions": len(pairs),
        "base": before.tally.accuracy,
        "forkleft": after.tally.accuracy,
        "gain": gain.value,
        "interval": [gain.low, gain.high],
        "p": mcnemar(gain.only_a, gain.only_b),
    }


def _table(rows: list[dict]) -> Table:
    table = Table(
        title="\nRight answers on held-out questions, static decoding, %",
        caption="Paired gain with its 95% interval; p: exact McNemar test.",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("set")
    for column in ("base", "ForkLeft", "gain", "95% interval", "p"):
        table.add_column(column, justify="right")
    for row in rows:
        low, high = row["interval"]
        p = "<0.0001" if row["p"] < 1e-4 else f"{row['p']:.4f}"
        table.add_row(
            row["set"],
            f"{100 * row['base']:.1f}",
            f"[bold]{100 * row['forkleft']:.1f}[/]",
            f"[bold green]{100 * row['gain']:+.1f}[/]" if low > 0 else f"{100 * row['gain']:+.1f}",
            f"{100 * low:+.1f} – {100 * high:+.1f}",
            p,
        )
    return table
