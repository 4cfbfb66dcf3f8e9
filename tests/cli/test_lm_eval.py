import pytest
from commands import run


@pytest.mark.parametrize("words", [(), ("-h",), ("run", "--help")])
def test_the_help_of_lm_eval_shows_our_own_options_first(capsys, monkeypatch, words):
    monkeypatch.setattr("forkleft.evaluate.harness.main", lambda *given, **said: print("lm_eval's own help") or 0)
    code, out, _ = run(capsys, "lm-eval", *words)
    assert code == 0
    assert 0 < out.index("\n  --chat-template FILE") < out.index("lm_eval's own help")
    assert "usage" not in run(capsys, "lm-eval", "--tasks", "x")[1]
