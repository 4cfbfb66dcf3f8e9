"""The code blocks of docs/extending.md."""

import json

import pytest
from documents import python_blocks, run_block

from forkleft.objective.checks import CHECKS
from forkleft.train import metrics, trainer

PAGE = "docs/extending.md"


@pytest.fixture
def block(tmp_path, monkeypatch):
    """Runs the one block of the page that holds a text, in a folder of its own, and gives the names that it defines."""
    monkeypatch.chdir(tmp_path)

    def run(text):
        (code,) = (code for code in python_blocks(PAGE) if text in code)
        return run_block(code, PAGE)

    return run


def test_a_student_family(block, capsys):
    block("Student.from_model")
    *checks, text = [line for line in capsys.readouterr().out.splitlines() if line]
    for line, check in zip(checks, CHECKS, strict=True):
        assert line == f"{check.name} {check.cuda_only or 'holds'}"
    assert text == "b=7+5=2;c=2-7=5;#5"


def test_an_order_of_writing(block):
    written = block("order=left_half_first")["written"]
    # A block of 32 has its first sixteen tokens before the others, of which the response has only some.
    left, right = written.commit_pass[:16], written.commit_pass[16:]
    assert sorted(left) == list(range(1, 17)) and right and min(right) > 16
    assert left != list(range(1, 17))


@pytest.mark.slow
def test_a_term_of_the_loss(block, monkeypatch):
    kept = []

    def means(outcomes):
        kept.extend(outcomes)
        return metrics.means(outcomes)

    monkeypatch.setattr(trainer, "means", means)
    penalty = block("class CalmTrainer")["trainer"].penalty
    confidences = [sum(outcome.confidence) / len(outcome.confidence) for outcome in kept if outcome.retained]
    assert len(kept) == 8 and confidences
    assert penalty.requires_grad and penalty.item() == pytest.approx(sum(confidences) / 8, rel=1e-5)


def test_a_verifier(block, capsys):
    block("def within_one_percent")
    assert capsys.readouterr().out == "[True, False]\n"


def test_a_benchmark(block, tmp_path):
    block("sums.yaml")
    summary = json.loads((tmp_path / "results" / "sums" / "summary.json").read_text())
    assert summary["results"]["items"] == 2


@pytest.mark.slow
def test_another_writer(block):
    tokens = block("writer=counting")["tokens"]
    assert len(tokens) == 2 and all(count >= 4 for count in tokens)
