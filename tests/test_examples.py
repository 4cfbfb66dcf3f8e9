import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from forkleft import ForkLeftConfig, ForkLeftTrainer, load_student, load_teacher
from forkleft.lab.questions import questions
from forkleft.objective.update import update_loss

ONE_UPDATE = Path(__file__).parents[1] / "examples" / "one_update.py"
# One line of the table: question, route, tokens, content loss, ranking loss.
ROW = re.compile(r"(\S+\?) +([A-Z]+) +(\d+) +(\d\.\d+) +(\d\.\d+)")


class Watched(ForkLeftTrainer):
    """A trainer that keeps what its last update computed."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.lessons = inputs["lessons"]
        self.loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.outcomes = list(self._outcomes)
        return self.loss


def test_one_update_prints_what_the_trainer_computes(tmp_path):
    ran = subprocess.run([sys.executable, str(ONE_UPDATE)], cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = ROW.findall(ran.stdout)
    before, after = map(float, re.search(r"loss before (\S+), after (\S+)", ran.stdout).groups())
    assert {row[1] for row in rows} == {"CE", "LEFTOPD", "GOLD", "EXCLUDE"}
    assert 0 < after < before

    seed = runpy.run_path(str(ONE_UPDATE))["SEED"]
    items = questions(3, 4, split="train", seed=seed) + questions(3, 2, split="train", seed=seed, form="choice")
    student = load_student("lab:student-block")
    teacher = load_teacher("lab:teacher-strong", student=student)
    config = ForkLeftConfig(
        str(tmp_path / "run"),
        max_steps=1,
        seed=seed,
        per_device_train_batch_size=len(items),
        train_sampling_strategy="sequential",
        learning_rate=1e-4,
        max_new_tokens=64,
        teacher_max_new_tokens=64,
        passes=32,
        verifier="lab",
        prompt_template="{question}",
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    columns = ("id", "answer", "solution")
    data = [{"question": item.prompt} | {name: getattr(item, name) for name in columns} for item in items]
    trainer = Watched(student, teacher, config, data)
    trainer.train()

    assert [(row[0], row[1], int(row[2])) for row in rows] == [
        (item.question, lesson.route, len(lesson.response)) for item, lesson in zip(items, trainer.lessons, strict=True)
    ]
    # Printed with five decimals; the trainer reads all questions in one forward, which rounds otherwise.
    near = {"abs": 2e-5}
    assert [float(row[3]) for row in rows] == pytest.approx([outcome.content for outcome in trainer.outcomes], **near)
    assert [float(row[4]) for row in rows] == pytest.approx([outcome.rank for outcome in trainer.outcomes], **near)
    assert before == pytest.approx(trainer.loss.item(), **near)
    with torch.no_grad():
        loss, _ = update_loss(
            trainer.student,
            trainer.lessons,
            config.objective_settings(),
            batch_size=len(items),
            teacher_weight_VE=teacher.head_weight,
        )
    assert after == pytest.approx(loss.item(), **near)
