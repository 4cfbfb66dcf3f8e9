import io

from rich.console import Console
from tiny import FAMILIES, MASK, STOP, tiny_student, tiny_tokenizer

from forkleft.report.live import LiveText, coloured, legend
from forkleft.rollout import generate


def test_colours_follow_the_entropy_and_masks_are_shaded():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    text = coloured(student, [1, 2, MASK, 3, 4, STOP, 5], [0.0, 0.3, 0.0, 0.7, 2.0, 0.0, 0.0])
    assert text.plain == "12▒34"
    assert [str(span.style) for span in text.spans] == ["default", "cyan", "dim", "yellow", "bold red"]
    assert "0.1 – 0.5" in legend().plain and "1 and more" in legend().plain


def test_a_response_is_shown_while_it_is_written():
    student = tiny_student(FAMILIES[0], tokenizer=tiny_tokenizer())
    out = io.StringIO()
    with LiveText(Console(file=out, force_terminal=True, width=60), student) as live:
        (written,) = generate(student, [[1, 2, 3]], max_new_tokens=8, passes=2, watch=live.show)
        live.finish(written.tokens, written.entropy)
    told = out.getvalue()
    assert "pass 1, 2 tokens, 2 masked" in told
    assert "nats of entropy at commit" in told
