"""The playground in a real browser, from end to end."""

import re

import pytest
from playgrounds import ANSWER, QUESTION, Endless, failing, saying, served

from forkleft.report.play import writing
from forkleft.report.play.writing import Player
from forkleft.rollout import generate
from forkleft.students import load_student

# A browser takes seconds for each.
pytestmark = pytest.mark.slow
NAMES = ("lab:student-block", "lab:student-shifted")
# A mask is drawn, not written.
MASK = "▒"
MILLISECONDS = 60_000


@pytest.fixture(scope="module")
def players():
    return [Player(name, load_student(name)) for name in NAMES]


@pytest.fixture(scope="module")
def address(players):
    with served(players) as address:
        yield address


@pytest.fixture
def page(chromium_page, address):
    chromium_page.set_default_timeout(MILLISECONDS)
    chromium_page.goto(address)
    chromium_page.locator("#write:enabled").wait_for()
    return chromium_page


def set_up(page, **values):
    for name, value in ({"question": QUESTION, "max_new_tokens": "32"} | values).items():
        field = page.locator(f"[name={name}]")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)


def write(page):
    """Ask, and wait until all is written and shown."""
    page.locator("#write").click()
    page.locator("#pace").select_option("0")
    page.locator("#stop:disabled").wait_for()


def cells(page, side):
    """What is shown of an answer, a text for each position."""
    return [
        MASK if "mask" in name.split() else text
        for name, text in page.locator(".response")
        .nth(side)
        .evaluate("box => [...box.children].map((cell) => [cell.className, cell.textContent])")
    ]


def go_to(page, number):
    """Move the slider with the keyboard, from its beginning."""
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    for _ in range(number):
        page.keyboard.press("ArrowRight")
    assert page.locator("#where").text_content().startswith(f"pass {number} of ")


def watched(player, **settings):
    """What the student shows after each pass, and what it has written at the end."""
    shown = []
    (written,) = generate(
        player.student,
        [player.prompt(QUESTION)],
        max_new_tokens=32,
        watch=lambda number, ids, entropies: shown.append(ids),
        **settings,
    )
    return shown, written


def test_two_models_answer_and_the_passes_can_be_replayed(page, players):
    assert page.locator("#order-words").text_content() == "surest position first"
    set_up(page, expected=ANSWER, order="high_entropy", passes="16")
    assert page.locator("#order-words").text_content() == "most uncertain first, as in training"
    write(page)
    assert page.locator("#status").text_content() == "Done."
    for side, player in enumerate(players):
        shown, written = watched(player, order="high_entropy", passes=16)
        tokenizer, mask_id = player.student.tokenizer, player.student.vocabulary.mask_id
        assert cells(page, side)[: len(written.tokens)] == tokenizer.convert_ids_to_tokens(written.tokens)
        verdict = page.locator(".verdict").nth(side).text_content()
        assert verdict.startswith("✓ Right: 5" if f"#{ANSWER}" in written.text else "✗ Wrong")
        for number in (2, 3, 6):
            go_to(page, number)
            # What stands behind the stop token is drawn without its name.
            expected = [MASK if i == mask_id else tokenizer.convert_ids_to_tokens(i) for i in shown[number - 1]]
            found = cells(page, side)
            kept = len(written.tokens)
            assert found[:kept] == expected[:kept]
            assert [text == MASK for text in found] == [text == MASK for text in expected]
            assert page.locator(".verdict").nth(side).is_hidden()
        go_to(page, 0)
        assert cells(page, side) == []
        page.keyboard.press("End")


def test_a_token_says_how_it_was_committed(page, players):
    set_up(page)
    write(page)
    _, written = watched(players[0])
    box = page.locator(".response").first
    box.focus()
    place = 2
    for _ in range(place + 1):
        page.keyboard.press("ArrowRight")
    said = page.locator(".detail").first.text_content()
    assert said.startswith(f"Position {place + 1}: ")
    assert f"entropy {written.entropy[place]:.2f} nats" in said
    assert f"confidence {100 * written.confidence[place]:.0f}%" in said
    # A tap, or a mouse, does the same.
    box.locator(".cell").nth(5).click()
    assert page.locator(".detail").first.text_content().startswith("Position 6: ")
    # Colours follow the pass instead, where that is asked for.
    before = box.evaluate("box => [...box.children].map((cell) => cell.dataset.shade)")
    page.locator("#colour").select_option("pass")
    after = box.evaluate("box => [...box.children].map((cell) => cell.dataset.shade)")
    assert before != after and set(after) <= set("1234567")
    # As in the report: the strongest is the first.
    in_order = sorted(range(len(written.commit_pass)), key=written.commit_pass.__getitem__)
    shades = [int(after[place]) for place in in_order]
    assert shades == sorted(shades, reverse=True) and shades[0] > shades[-1]
    assert page.locator("#strong").text_content() == "pass 1"


def test_a_link_repeats_the_settings(page, address, chromium_page):
    values = {"question": "a=1;b=a+1;b?\n&#<é", "order": "random", "passes": "4", "threshold": "0.9"}
    values |= {"temperature": "0.5", "seed": "7", "max_new_tokens": "48", "expected": "2", "verifier": "math"}
    set_up(page, **values)
    write(page)
    first, link = cells(page, 0), page.url
    chromium_page.goto("about:blank")
    chromium_page.goto(link)
    chromium_page.locator("#write:enabled").wait_for()
    for name, value in values.items():
        assert page.locator(f"[name={name}]").input_value() == value
    assert page.locator("#order-words").text_content() == "in a random order"
    # Nothing is asked before a person says so.
    assert cells(page, 0) == [] and page.locator("#player").is_hidden()
    write(page)
    assert cells(page, 0) == first


def test_the_answer_of_the_example_goes_with_its_question(page):
    question, expected = page.locator("[name=question]"), page.locator("[name=expected]")
    assert question.input_value() and expected.input_value()
    question.fill(QUESTION)
    assert expected.input_value() == ""
    # What a person says stays, even if it is the same.
    expected.fill("4")
    question.fill(f"{QUESTION} ")
    assert expected.input_value() == "4"


def test_the_stop_button_ends_the_writing(page, monkeypatch):
    endless = Endless()
    monkeypatch.setattr(writing, "decode", endless)
    set_up(page)
    page.locator("#write").click()
    page.locator(".cell.mask").first.wait_for()
    assert page.locator("#write").is_disabled()
    page.locator("#stop").click()
    assert endless.ended.wait(60)
    page.locator("#write:enabled").wait_for()
    assert re.fullmatch(r"Stopped at pass \d+\.", page.locator("#status").text_content())


def test_a_closed_page_ends_the_writing_and_a_second_page_waits(page, address, chromium, monkeypatch):
    endless = Endless()
    monkeypatch.setattr(writing, "decode", endless)
    set_up(page)
    page.locator("#write").click()
    page.locator(".cell.mask").first.wait_for()
    other = chromium.new_page()
    other.goto(address)
    other.locator("#write:enabled").wait_for()
    set_up(other)
    other.locator("#write").click()
    other.get_by_text("Waiting: 1 request before yours.").wait_for()
    page.goto("about:blank")
    assert endless.ended.wait(60)
    other.get_by_text("Writing …").wait_for()
    other.close()


def test_what_models_and_people_write_is_shown_as_text(page, monkeypatch):
    text = "<script>document.title='bad'</script><img src=x onerror=alert(1)>"
    monkeypatch.setattr(writing, "decode", saying(text))
    set_up(page, question=text, expected="<b>5</b>", max_new_tokens="200")
    write(page)
    assert "".join(cells(page, 0)) == text
    assert "<b>5</b>" in page.locator(".verdict").first.text_content()
    assert page.title() == "ForkLeft playground" and page.locator("main img, main script, main b").count() == 0


def test_errors_are_told_on_the_page(page, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(writing, "decode", failing)
        set_up(page)
        write(page)
        for side in range(2):
            shown = page.locator(".error").nth(side)
            assert "RuntimeError: no memory is left <b>here</b>" in shown.text_content() and shown.is_visible()
    set_up(page, max_new_tokens="511")
    write(page)
    assert "exceed the model's context of 512" in page.locator(".error").first.text_content()
    set_up(page, question=" ")
    page.locator("#write").click()
    page.get_by_text("the question is empty; type one").wait_for()
    set_up(page)
    write(page)
    assert page.locator(".error:visible").count() == 0 and cells(page, 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_of_it(page, scheme):
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    set_up(page)
    write(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    first, second = (page.locator(".side").nth(side).bounding_box() for side in range(2))
    assert first["y"] + first["height"] <= second["y"]


def test_everything_can_be_reached_with_the_keyboard(page):
    set_up(page)
    page.locator("[name=question]").focus()
    page.keyboard.press("Control+Enter")
    page.locator("#player").wait_for()
    page.locator("#stop:disabled").wait_for()
    page.locator("[name=question]").focus()
    reached = []
    for _ in range(30):
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.name || 'response'"))
        page.keyboard.press("Tab")
    assert {"order", "passes", "threshold", "seed", "write", "link", "play", "slider", "pace", "colour"} <= set(reached)
    assert "response" in reached
