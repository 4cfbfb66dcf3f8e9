import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
import trainer_runs
from tiny import plain_copy
from trainer_runs import ROWS, make_trainer, state_digest

from forkleft.errors import ForkLeftError
from forkleft.rollout import generate
from forkleft.train import metrics
from forkleft.train.showcase import ORDERS

CHECKPOINTED = {"save_strategy": "steps", "save_steps": 2}


def rows_of(folder):
    return [json.loads(line) for line in (folder / "showcase.jsonl").read_text().splitlines()]


def test_the_same_questions_before_and_after_in_both_orders(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=2, showcase_questions=2, dtype=torch.float64)
    student, before = trainer.student, plain_copy(trainer.student)
    trainer.train()
    rows = rows_of(tmp_path)
    names = [(row["step"], row["order"], row["id"]) for row in rows]
    assert names == [(step, order, name) for step in (0, 2) for order in ORDERS for name in ("q0", "q1")]
    after = plain_copy(student)
    for row in rows:
        student.model.load_state_dict((after if row["step"] else before).state_dict())
        prompt = student.tokenizer.encode(row["prompt"])
        (written,) = generate(student, [prompt], order=row["order"], passes=2, max_new_tokens=12)
        assert row["tokens"] == [student.tokenizer.decode([i]) for i in written.tokens]
        assert (row["commit_pass"], row["stopped"]) == (written.commit_pass, written.stopped)
        assert row["expected"] == next(known["answer"] for known in ROWS if known["id"] == row["id"])
        assert {"student_right", "student_extracted", "entropy", "confidence"} <= row.keys()


@pytest.mark.slow
def test_a_run_learns_the_same_without_it(tmp_path):
    digests = []
    for questions in (0, 3):
        trainer = make_trainer(tmp_path / str(questions), max_steps=2, showcase_questions=questions)
        trainer.train()
        digests.append(state_digest(trainer))
    assert digests[0] == digests[1]
    assert not (tmp_path / "0" / "showcase.jsonl").exists()


@pytest.mark.slow
def test_a_resumed_run_has_the_rows_of_an_uninterrupted_one(tmp_path):
    make_trainer(tmp_path / "whole", max_steps=4, showcase_questions=2, **CHECKPOINTED).train()
    whole = (tmp_path / "whole" / "showcase.jsonl").read_bytes()
    settings = {"lr_scheduler_type": "constant", "showcase_questions": 2} | CHECKPOINTED
    make_trainer(tmp_path / "run", max_steps=2, **settings).train()
    again = make_trainer(tmp_path / "run", max_steps=4, **settings)
    again.train(resume_from_checkpoint=True)
    rows = rows_of(tmp_path / "run")
    # The shorter run had ended at update 2, and its rows stay.
    assert sorted({row["step"] for row in rows}) == [0, 2, 4]
    # Resumed at its end, it writes nothing twice.
    kept = (tmp_path / "run" / "showcase.jsonl").read_bytes()
    make_trainer(tmp_path / "run", max_steps=4, **settings).train(resume_from_checkpoint=True)
    assert (tmp_path / "run" / "showcase.jsonl").read_bytes() == kept
    # Resumed before its end, it writes the rest again, to the byte.
    shutil.rmtree(tmp_path / "whole" / "checkpoint-4")
    again = make_trainer(tmp_path / "whole", max_steps=4, showcase_questions=2, **CHECKPOINTED)
    again.train(resume_from_checkpoint=True)
    assert (tmp_path / "whole" / "showcase.jsonl").read_bytes() == whole


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_rows_writes_all_of_them_later(tmp_path, monkeypatch):
    def made(name):
        return make_trainer(tmp_path / name, max_steps=2, showcase_questions=2, **CHECKPOINTED)

    made("whole").train()
    seal, count = metrics.sealed, Counter()

    def killed(row):
        count[row["step"]] += "tokens" in row
        if row["step"] == 2 and count[2] == 2:
            raise KeyboardInterrupt
        return seal(row)

    monkeypatch.setattr(metrics, "sealed", killed)
    with pytest.raises(KeyboardInterrupt):
        made("run").train()
    monkeypatch.setattr(metrics, "sealed", seal)
    made("run").train(resume_from_checkpoint=True)
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole")


def test_held_out_questions_come_first(tmp_path):
    held_out = {"some": [ROWS[7]], "other": [ROWS[8]]}
    make_trainer(tmp_path, max_steps=1, showcase_questions=4, trainer={"eval_dataset": held_out}).train()
    assert {row["id"] for row in rows_of(tmp_path)} == {"q7"}


@pytest.mark.slow
def test_processes_divide_the_questions(tmp_path):
    """Of three processes, one has no question: the run ends, and the rows before the first update are the same."""
    program = Path(trainer_runs.__file__)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, program.parents[:2])), "OMP_NUM_THREADS": "1"}
    changes = {"max_steps": 1, "per_device_train_batch_size": 1, "showcase_questions": 2, "dtype": "float64"}
    rows = []
    for processes in (1, 3):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
        launch += ["--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        command = [*launch, str(program), str(tmp_path / str(processes)), json.dumps(changes)]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        found = [row for row in rows_of(tmp_path / str(processes)) if row["step"] == 0]
        rows.append(sorted(found, key=lambda row: (row["order"], row["id"])))
        assert len(rows_of(tmp_path / str(processes))) == 8
    assert [{"tokens": row["tokens"], "id": row["id"]} for row in rows[0]] == [
        {"tokens": row["tokens"], "id": row["id"]} for row in rows[1]
    ]


def test_a_negative_number_is_refused(tmp_path):
    with pytest.raises(ForkLeftError, match="showcase_questions must not be negative, found -1"):
        make_trainer(tmp_path, showcase_questions=-1)
