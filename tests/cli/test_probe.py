import json

from commands import run


def test_probe_compares_views_and_orders(capsys):
    words = ["probe", "--model", "lab:student-block", "--data", "lab:chain-3", "--questions", "4", "--verifier", "lab"]
    words += ["--max-new-tokens", "64", "--orders", "confidence", "high_entropy"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    # Three steps of eight tokens, an answer of two, and the end.
    assert code == 0 and found["views"]["positions"] == 4 * 27
    assert list(found["orders"]) == ["confidence", "high_entropy"]
    asked = {"model": "lab:student-block", "data": "lab:chain-3", "geometry": "truncated", "max_new_tokens": 64}
    assert found["settings"] == asked | {"verifier": "lab", "fork_entropy": 0.693, "questions": 4, "passes": 32}
    code, out, _ = run(capsys, *words)
    assert code == 0 and "right from the prefix alone" in out and "high_entropy" in out


def test_probe_needs_a_fork_entropy_that_can_be(capsys):
    words = ["probe", "--model", "lab:student-block", "--data", "lab:chain-3", "--fork-entropy", "-1"]
    code, _, error = run(capsys, *words)
    assert code == 2 and "--fork-entropy is in nats: expected 0 or more" in error


def test_agreement_with_a_teacher(capsys):
    words = ["probe", "--model", "lab:student-block", "--teacher", "lab:teacher-strong", "--verifier", "lab"]
    words += ["--data", "lab:chain-2", "--questions", "3", "--max-new-tokens", "64"]
    code, out, _ = run(capsys, *words, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(set(found["ids"])) == 3 and len(found["ids"]) == len(found["kl"]) == len(found["same"])
    code, out, _ = run(capsys, *words)
    assert code == 0 and f"mean of {len(found['kl'])} positions" in out and "same likeliest token" in out
