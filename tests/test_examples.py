import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from documents import ROOT

from forkleft import AdaptConfig, ForkLeftConfig, ForkLeftTrainer, load_student, load_teacher
from forkleft.cli import main
from forkleft.errors import ForkLeftError
from forkleft.lab.models import model_path
from forkleft.lab.questions import questions
from forkleft.objective.update import update_loss
from forkleft.study import agreement
from forkleft.train.adapt_data import prepare_samples
from forkleft.train.recipes import ADAPT as FORM
from forkleft.train.recipes import read_options, recipe_of

ONE_UPDATE, OWN_MODEL = (Path(__file__).parents[1] / "examples" / name for name in ("one_update.py", "own_model.py"))
# One line of the table: question, route, tokens, content loss, ranking loss.
ROW = re.compile(r"(\S+\?) +([A-Z]+) +(\d+) +(\d\.\d+) +(\d\.\d+)")


class Watched(ForkLeftTrainer):
    """A trainer that keeps what its last update computed."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.lessons = inputs["lessons"]
        self.loss = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        self.outcomes = list(self._outcomes)
        return self.loss


@pytest.mark.slow
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


ADAPT = """
student: elsewhere
train_data: lab:train
train_questions: 32
output_dir: elsewhere
verifier: lab
prompt_template: "{question}"
max_new_tokens: 64
max_steps: 4
tokens_per_batch: 600
causal_weight: 0.2
learning_rate: 1e-3
save_strategy: steps
save_steps: 2
use_cpu: true
dataloader_pin_memory: false
"""
TRAIN = """
student: elsewhere
teacher: elsewhere
teacher_dtype: float32
train_data: lab:train
train_questions: 8
output_dir: elsewhere
verifier: lab
prompt_template: "{question}"
max_new_tokens: 64
teacher_max_new_tokens: 64
passes: 4
max_steps: 2
questions_per_update: 4
showcase_questions: 2
use_cpu: true
dataloader_pin_memory: false
"""


def test_the_probe_reads_the_text_that_was_learned(tmp_path, monkeypatch):
    """Prompts and references of the held-out questions are those of the adaptation, to the last token."""
    recipe = tmp_path / "adapt.yaml"
    recipe.write_text(
        ADAPT.replace('"{question}"', '"a=1;{question}"') + 'reference_template: "{solution};#{answer}"\n'
    )
    wording = runpy.run_path(str(OWN_MODEL))["_wording"]
    rows = [
        {"id": "stated", "question": "b=2;b?", "answer": "2", "solution": "b=2;#2"},
        {"id": "not", "question": "c=3;c?", "answer": "3", "solution": "c=3"},
    ]
    data = tmp_path / "held-out.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = []

    def stop(student, teacher, readings, *given, **settings):
        read.extend(readings)
        raise ForkLeftError("seen")

    monkeypatch.setattr(agreement, "agreement", stop)
    words = ["probe", "--model", "lab:student-block", "--teacher", "lab:teacher-weak", "--verifier", "lab"]
    main([*words, "--data", str(data), *wording(recipe)])
    _, config = recipe_of(read_options(recipe, form=FORM), FORM)
    learned = prepare_samples(load_student("lab:student-block"), rows, config).samples
    assert [(reading.id, list(reading.prompt), list(reading.response)) for reading in read] == [
        (sample.id, list(sample.prompt), list(sample.response)) for sample in learned
    ]
    # Where the recipe is silent, its defaults hold.
    assert wording(ROOT / "recipes" / "your-own-model" / "smollm2-adapt.yaml") == [
        *("--prompt-template", AdaptConfig.prompt_template),
        *("--reference-template", AdaptConfig.reference_template),
        *("--max-new-tokens", "192"),
    ]


@pytest.mark.slow
def test_the_path_of_a_model_of_ones_own(tmp_path):
    """A lab model takes the place of a real one: all steps, and a second call that has nothing left to make."""
    (tmp_path / "adapt.yaml").write_text(ADAPT)
    (tmp_path / "train.yaml").write_text(TRAIN)
    words = ["--model", str(model_path("teacher-weak")), "--family", "fast-dllm-v2", "--block-size", "8"]
    words += ["--adapt", "adapt.yaml", "--train", "train.yaml", "--benchmark", "lab-chain-2", "--limit", "6"]
    words += ["--held-out", "lab:chain-2", "--held-out-questions", "6", "--verifier", "lab", "--output", "out"]
    for call in (1, 2):
        command = [sys.executable, str(OWN_MODEL), *words]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr[-3000:]
        made = re.findall(r"^\$ forkleft (\w+)", ran.stdout, flags=re.MULTILINE)
        first = ["convert", "adapt", "answer", "train", *["eval"] * 3, *["probe"] * 3] if call == 1 else []
        probes = re.findall(r"^\$ forkleft probe .*", ran.stdout, flags=re.MULTILINE)
        assert all(" --prompt-template '{question}' --reference-template '" in probe for probe in probes)
        assert made == [*first, "compare", "compare", "report"]
    stages = re.findall(r"^  (\w+) +kl (\d\.\d+) .*same (\d\.\d+)", ran.stdout, flags=re.MULTILINE)
    assert [name for name, *_ in stages] == ["student", "adapted", "trained"]
    assert load_student(tmp_path / "out" / "trained").family.head == "shifted"
    assert (tmp_path / "out" / "trained" / "report.html").is_file()
