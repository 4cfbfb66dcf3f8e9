import pytest

from forkleft.verify import Judgement, Verifier, kept
from forkleft.verify.kept import kept_verdicts

TEXTS, ANSWERS, IDS = ["\\boxed{4}", "so it is 5", "\\boxed{4}", "none"], ["4", "6", "4", "7"], ["a", "b", "c", "d"]


@pytest.fixture
def judged(monkeypatch):
    """The texts that were really judged, by a stand-in for the judgement of the text `none` that never ends."""
    seen, judgements = [], Verifier.judgements

    def noted(self, responses, answers, *, ids=None):
        seen.extend(responses)
        found = judgements(self, responses, answers, ids=ids)
        pairs = zip(responses, found, strict=True)
        return [Judgement(False, None, False) if text == "none" else one for text, one in pairs]

    monkeypatch.setattr(Verifier, "judgements", noted)
    return seen


def verdicts_of(path, kind="math"):
    return kept_verdicts(path, Verifier(kind), TEXTS, ANSWERS, ids=IDS)


def test_a_text_is_judged_once(tmp_path, judged, caplog):
    """The same pair is judged once, and one without a verdict again the next time."""
    path = tmp_path / "run" / "verdicts.jsonl"
    assert verdicts_of(path) == [True, False, True, False]
    assert sorted(judged) == ["\\boxed{4}", "none", "so it is 5"]
    assert "no verdict on 1 of 3" in caplog.text
    judged.clear()
    assert verdicts_of(path) == [True, False, True, False]
    assert judged == ["none"]


def test_a_damaged_line_is_judged_again(tmp_path, judged):
    path = tmp_path / "verdicts.jsonl"
    verdicts_of(path)
    path.write_text(path.read_text().replace('"right": true', '"right": false'))
    judged.clear()
    assert verdicts_of(path) == [True, False, True, False]
    assert sorted(judged) == ["\\boxed{4}", "none"]


def test_other_code_or_another_verifier_judges_anew(tmp_path, judged, monkeypatch):
    path = tmp_path / "verdicts.jsonl"
    verdicts_of(path)
    judged.clear()
    verdicts_of(path, "opdlm")
    assert len(judged) == 3
    judged.clear()
    monkeypatch.setattr(kept, "_judging_code", lambda: "changed")
    verdicts_of(path)
    assert len(judged) == 3


def test_quick_verifiers_and_functions_of_the_user_keep_nothing(tmp_path):
    path = tmp_path / "verdicts.jsonl"
    assert kept_verdicts(path, Verifier("lab"), ["b=2;#2"], ["2"], ids=["a"]) == [True]
    mine = Verifier.of(lambda responses, answers: [True for _ in responses])
    assert kept_verdicts(path, mine, ["b=2"], ["3"], ids=["a"]) == [True]
    assert not path.exists()
