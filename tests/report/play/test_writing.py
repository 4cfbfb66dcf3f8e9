import pytest
from tiny import FAMILIES, MASK, STOP, tiny_student, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forkleft.errors import ForkLeftError
from forkleft.report.play import writing
from forkleft.report.play.settings import Settings
from forkleft.report.play.turns import Turn
from forkleft.report.play.writing import Passes, Player, write
from forkleft.rollout import generate
from forkleft.verify import Verifier


def player(**settings):
    return Player("tiny", tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer()), **settings)


def told(player, settings, verifier=None, *, cancel_after=None):
    """The events of a request; it is cancelled after so many of them."""
    events = []

    def tell(event):
        events.append(event)
        if len(events) == cancel_after:
            turn.cancelled.set()

    turn = Turn(lambda turn: None, tell)
    write(turn, 1, player, settings, verifier or Verifier("lab"))
    assert all(event["side"] == 1 for event in events)
    return events


def test_the_passes_give_what_the_student_writes():
    asked = player()
    settings = Settings("a1b2", 12, "lab", order="high_entropy", passes=2, temperature=1.5, seed=3)
    *passes, end = told(asked, settings)
    prompt = asked.student.tokenizer.encode("a1b2")
    how = {"order": "high_entropy", "passes": 2, "temperature": 1.5, "seed": 3}
    (written,) = generate(asked.student, [prompt], max_new_tokens=12, **how)
    assert [event["pass"] for event in passes] == list(range(1, written.forwards + 1))
    cells = {}
    for event in passes:
        new = {place: cell for place, *cell in event["cells"]}
        # A position is committed once.
        assert new and not new.keys() & cells.keys() and max(new) < event["length"]
        cells |= new
    kept = [cells[place] for place in range(len(written.tokens))]
    names = asked.student.tokenizer.convert_ids_to_tokens(written.tokens)
    assert [cell[0] for cell in kept] == names
    assert [cell[1] for cell in kept] == pytest.approx(written.entropy, abs=1e-4)
    assert (end["kind"], end["kept"], end["forwards"]) == ("end", len(written.tokens), written.forwards)
    assert end["confidence"] == pytest.approx(written.confidence, abs=1e-4)


def test_special_tokens_have_their_names():
    event = Passes(player().student).after([1, MASK, STOP], [0.5, 0.0, 0.25])
    assert event == {"kind": "pass", "pass": 1, "length": 3, "cells": [[0, "1", 0.5], [2, "<stop>", 0.25, True]]}


def byte_student():
    inner = Tokenizer(models.BPE({c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    student = tiny_student(FAMILIES[0])
    student.tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    student.vocabulary = student.vocabulary.__class__(frozenset(range(999)), 998, (997,))
    return student


def test_a_character_of_several_tokens_stands_at_the_one_that_completes_it():
    student = byte_student()
    ids, masks = student.tokenizer.encode("é"), [998, 998]
    assert len(ids) == 2
    passes = Passes(student)
    assert passes.after([masks[0], ids[1]], [0.0, 0.5])["cells"] == [[1, "\ufffd", 0.5]]
    assert passes.after(ids, [1.0, 0.5])["cells"] == [[0, "", 1.0], [1, "é", 0.5]]


def test_complete_lines_are_not_read_again(monkeypatch):
    student = byte_student()
    ids = student.tokenizer.encode("a\nb\nc")
    passes, seen = Passes(student), []
    real = writing.pieces
    monkeypatch.setattr(writing, "pieces", lambda student, ids: seen.append(len(ids)) or real(student, ids))
    changes = [
        passes.after(given, [0.0] * len(given))["cells"]
        for given in ([*ids[:2], 998, 998], [*ids[:2], 998, ids[3]], [*ids[:4], 998], ids)
    ]
    assert [[cell[:2] for cell in cells] for cells in changes] == [
        [[0, "a"], [1, "\n"]],
        [[3, "\n"]],
        [[2, "b"]],
        [[4, "c"]],
    ]
    assert seen == [4, 2, 3, 1]


def test_a_cancelled_request_ends_within_a_pass():
    events = told(player(), Settings("a1b2", 12, "lab"), cancel_after=3)
    assert [event["kind"] for event in events] == ["pass"] * 3


@pytest.mark.parametrize(
    ("expected", "verdict"),
    [
        ("5", {"correct": True, "judged": True, "extracted": "5"}),
        (" 6 ", {"correct": False, "judged": True, "extracted": "5"}),
    ],
)
def test_an_answer_that_is_told_is_verified(monkeypatch, expected, verdict):
    real = writing._decode
    monkeypatch.setattr(writing, "_decode", lambda *given: real(*given) and "#5")
    *_, last = told(player(), Settings("a1b2", 4, "lab", expected=expected))
    assert last == {"kind": "verdict", "side": 1} | verdict


def test_a_verifier_that_cannot_compare_says_why():
    *_, end, last = told(player(), Settings("a1b2", 4, "choice", expected="5"), Verifier("choice"))
    assert (end["kind"], last["judged"], last["correct"]) == ("end", False, False)
    assert "expected one of the letters ABCD" in last["message"]


def test_a_model_that_fails_is_told(monkeypatch, caplog):
    def failing(*given, **settings):
        raise RuntimeError("no memory is left")

    monkeypatch.setattr(writing, "decode", failing)
    (event,) = told(player(), Settings("a1b2", 4, "lab"))
    assert event["message"] == "the model failed while it wrote: RuntimeError: no memory is left"
    assert "tiny failed while it wrote" in caplog.text and "Traceback" in caplog.text


def test_questions_that_do_not_fit_are_told():
    (event,) = told(player(), Settings("a1b2", 500, "lab"))
    assert event["kind"] == "error" and "the question: a prompt of 4 tokens" in event["message"]
    (event,) = told(player(), Settings("a<mask>", 4, "lab"))
    assert "the prompt contains the mask token" in event["message"]
    (event,) = told(player(), Settings("a1", 4, "lab", decoding="native"))
    assert "the native decoding is known of the families" in event["message"]


def test_without_a_chat_template_only_plain_questions_can_be_asked():
    asked = player()
    asked.student.tokenizer.chat_template = None
    with pytest.raises(ForkLeftError, match="has no chat template"):
        asked.prompt("a1")
    assert Player("tiny", asked.student, plain=True).prompt("a1") == [11, 1]
