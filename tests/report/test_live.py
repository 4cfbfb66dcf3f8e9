import io
import re

from rich.console import Console
from tiny import FAMILIES, MASK, STOP, tiny_student, tiny_tokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from forkleft.report.live import LiveText, coloured, legend
from forkleft.rollout import generate

# What stands behind a code of the terminal that turns reverse on.
REVERSE = re.compile(r"\x1b\[(?:\d+;)*7(?:;\d+)*m(.)")


def test_colours_follow_the_entropy_and_masks_are_shaded():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    text = coloured(student, [1, 2, MASK, 3, 4, STOP, 5], [0.0, 0.3, 0.0, 0.7, 2.0, 0.0, 0.0])
    assert text.plain == "12▒34"
    assert [str(span.style) for span in text.spans] == ["default", "cyan", "dim", "yellow", "bold red"]
    assert "0.1 – 0.5" in legend().plain and "1 and more" in legend().plain


def test_a_terminal_obeys_nothing_that_a_model_writes(monkeypatch):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    monkeypatch.setattr("forkleft.report.live.pieces", lambda student, ids: [("a\x1b[2J\tb\n\x9b", [0])])
    assert coloured(student, [1], [0.0]).plain == "a[2J\tb\n"


def test_what_a_pass_has_just_written_can_be_marked():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    text = coloured(student, [1, 2, MASK, 3], [0.0, 0.3, 0.0, 0.7], marked={1, 2})
    assert [str(span.style) for span in text.spans] == ["default", "cyan reverse", "dim", "yellow"]


def test_slowly_every_pass_is_shown_for_a_while_and_marks_what_is_new(monkeypatch):
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    clock, slept = [100.0], []
    monkeypatch.setattr("forkleft.report.live.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("forkleft.report.live.time.sleep", lambda seconds: slept.append(round(seconds, 3)))
    out = io.StringIO()
    terminal = {"file": out, "force_terminal": True, "width": 40, "color_system": "standard"}
    with LiveText(Console(**terminal), student, pause=0.5) as live:
        frames = []
        for ids, later in (([1, MASK, MASK], 0.1), ([1, MASK, 2], 0.7), ([1, 3, 2, MASK, 4], 0.0)):
            start = len(out.getvalue())
            live.show(0, ids, [0.0] * len(ids))
            frames.append(out.getvalue()[start:])
            clock[0] += later
    # The model took 0.1 s of the first pause, and longer than the second.
    assert slept == [0.0, 0.4, 0.0]
    assert [REVERSE.findall(frame) for frame in frames] == [["1"], ["2"], ["3", "4"]]
    out.truncate(0)
    with LiveText(Console(**terminal), student) as live:
        live.show(0, [1, MASK], [0.0, 0.0])
    assert (len(slept), REVERSE.findall(out.getvalue())) == (3, [])


def byte_tokenizer():
    """A token for every byte, as large tokenizers have for what they have no word for; and one special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|special|>"]})
    return tokenizer


def test_characters_of_several_tokens_come_out_whole():
    tokenizer = byte_tokenizer()
    student = tiny_student(FAMILIES[0])
    student.tokenizer = tokenizer
    student.vocabulary = student.vocabulary.__class__(frozenset(range(999)), 998, (997,))
    text = "é → 😀\n次"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    shown = coloured(
        student, [*ids, tokenizer.convert_tokens_to_ids("<|special|>")], [0.0, 0.7, *[0.0] * (len(ids) - 1)]
    )
    assert shown.plain == text == tokenizer.decode(ids)
    # The character is as uncertain as the worst of its tokens.
    assert str(shown.spans[0].style) == "yellow"


def test_a_response_is_shown_while_it_is_written_and_once_when_it_is_done():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer(), stop_ids=(36,))
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=10, height=6)
    with LiveText(console, student) as live:
        (written,) = generate(student, [[1, 2, 3]], max_new_tokens=80, passes=2, watch=live.show)
        before = out.getvalue()
        live.finish(written.tokens, written.entropy)
    assert "pass 1, 2" in " ".join(before.split())
    # A text higher than the terminal would be left on it by every pass, were it not cut.
    assert max(frame.count("\n") for frame in before.split("\x1b[2K")) <= 6
    assert "nats" in out.getvalue()[len(before) :]
