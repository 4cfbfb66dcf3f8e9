import json

import pytest
import torch
from exact import assert_exact
from naive import all_mask_log_probs, divergence, entropy, prefix_log_probs, teacher_log_probs
from tiny import FAMILIES, plain_copy, tiny_student, tiny_tokenizer
from trainer_runs import ROWS, make_trainer

from forkleft.rollout import generate
from forkleft.train.traces import written


def test_traces_show_how_a_response_came_about_and_what_both_models_would_say(tmp_path):
    trainer = make_trainer(tmp_path, max_steps=1, trace_steps=1, dtype=torch.float64)
    before, teacher = plain_copy(trainer.student), trainer.teacher.model
    tokenizer = trainer.student.tokenizer
    trainer.train()
    rows = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    assert {row["route"] for row in rows} == {"CE", "LEFTOPD", "GOLD", "EXCLUDE"}
    answers = [json.loads(line)["text"] for line in (tmp_path / "teacher_answers.jsonl").read_text().splitlines()]
    for row in rows:
        # Why it is on its route: what was expected, written, found in it, and what would have been taught instead.
        assert row["expected"] == next(known["answer"] for known in ROWS if known["id"] == row["id"])
        assert row["teacher_answer"] in answers
        assert row["teacher_extracted"] == f"teacher: {row['teacher_answer'][:4]}"
        text = "".join(token for token in row["tokens"] if token != "<stop>")
        assert row["student_extracted"] == f"student: {text[:4]}"
        assert row["teacher_stopped"] in (True, False)
        assert (row["reference"], row["reference_cut"]) == ("xyz#5<stop>", False)
        prompt = tokenizer.encode(row["prompt"])
        response = [tokenizer.convert_tokens_to_ids(token) for token in row["tokens"]]
        assert len(response) == len(row["commit_pass"]) == len(row["entropy"]) == len(row["confidence"])
        assert (row["teacher_alternatives"] is not None) == (row["route"] == "LEFTOPD")
        for k, i in enumerate(row["positions"]):
            student = prefix_log_probs(before, trainer.student.family, prompt, response, i, budget=12)
            check(row["student_alternatives"][k], student, tokenizer)
            mask = entropy(all_mask_log_probs(before, trainer.student.family, prompt, i, budget=12))
            expected = [mask, entropy(student), max(0.0, mask - entropy(student)), student.max().exp().item()]
            names = ("mask_entropy", "left_entropy", "contrast", "left_confidence")
            if row["teacher_alternatives"] is not None:
                taught = teacher_log_probs(teacher, prompt, response, i)
                check(row["teacher_alternatives"][k], taught, tokenizer)
                names, expected = (*names, "kl"), [*expected, divergence(taught, student).item()]
            found = torch.tensor([row[name][k] for name in names], dtype=torch.float64)
            assert_exact(found, torch.tensor(expected, dtype=torch.float64))
        assert (row["kl"] is not None) == (row["route"] == "LEFTOPD")
        assert len(row["contrast"]) == len(row["positions"])


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_block_starts_where_its_passes_do(family, prompt):
    student = tiny_student(family, tokenizer=tiny_tokenizer())
    (trajectory,) = generate(student, [prompt], max_new_tokens=12)
    row = written(student, prompt, trajectory)
    starts = row["block_starts"]
    assert starts[0] == 0 and starts == sorted(set(starts))
    # One token a pass: within a block, no pass twice.
    for start, end in zip(starts, [*starts[1:], len(row["tokens"])], strict=True):
        assert len(set(row["commit_pass"][start:end])) == end - start


def check(alternatives, logp, tokenizer):
    top = logp.exp().topk(5)
    assert [tokenizer.convert_tokens_to_ids(token) for token, _ in alternatives] == top.indices.tolist()
    found = torch.tensor([p for _, p in alternatives], dtype=torch.float64)
    assert_exact(found, top.values, tolerance=5.1e-5)  # written with four digits
