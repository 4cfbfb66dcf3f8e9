"""The page in a real browser: what its script does, compared with the traces that it shows."""

import re

import pytest
from reports import HOSTILE, made_up_run, made_up_trace

from forkleft.report.page import write_report

TRACES = [
    made_up_trace(0),
    made_up_trace(1, route="CE"),
    made_up_trace(2, tokens=6) | {"tokens": HOSTILE, "prompt": HOSTILE[0], "student_extracted": HOSTILE[4]},
    made_up_trace(3, tokens=8, step=5),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = made_up_run(tmp_path_factory.mktemp("runs") / "run", traces=TRACES)
    return write_report([folder]).as_uri()


@pytest.fixture
def opened(chromium):
    """Opens a page. Afterwards, there must have been no error, and no request but for the page itself."""
    contexts, told, asked = [], [], []

    def open_page(address, *, width=1280, dark=False, reduced=False):
        scheme, motion = "dark" if dark else "light", "reduce" if reduced else "no-preference"
        viewport = {"width": width, "height": 900}
        context = chromium.new_context(viewport=viewport, color_scheme=scheme, reduced_motion=motion)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert told == []
    assert all(re.match(r"(file:.*\.html|data:.*)$", url) for url in asked)


def choose(page, index):
    page.select_option("#question", str(index))


def shown(page):
    """The tokens that can be read, by position."""
    places = page.locator("#tokens .token:not(.blank)")
    return dict(places.evaluate_all("all => all.map((e) => [Number(e.dataset.at), e.textContent])"))


def test_a_replay_shows_what_was_written_by_then(opened, address):
    page = opened(address)
    choose(page, 0)
    trace = TRACES[0]
    assert shown(page) == dict(enumerate(trace["tokens"]))
    for passes in (0, 1, 5, 8, 13, 24):
        page.locator("#pass").fill(str(passes))
        # In blocks of eight, each from right to left, one token a pass.
        block, within = divmod(passes, 8)
        done = set(range(8 * block)) | set(range(8 * block + 8 - within, 8 * block + 8))
        assert shown(page) == {i: trace["tokens"][i] for i in done if i < 24}
    page.locator("#pass").fill("13")
    caption = page.locator("#caption").inner_text()
    assert caption.startswith("Block 2 of 3, pass 5: writes “w11” at position 12.")
    assert "it was the one it was least sure of: its best guess had 87%, the entropy is 0.060 nats." in caption
    assert page.locator("#tokens .now").inner_text() == "w11"
    page.click("#forth")
    assert page.locator("#tokens .now").inner_text() == "w10"


def test_play_goes_from_the_blanks_to_the_end(opened, address):
    page = opened(address, reduced=True)
    choose(page, 3)
    page.clock.install()
    page.click("#play")
    assert shown(page) == {} and page.locator("#play").inner_text() == "Pause"
    page.clock.run_for(20_000)
    assert shown(page) == dict(enumerate(TRACES[3]["tokens"])) and page.locator("#play").inner_text() == "Play"


def test_a_position_shows_what_the_trace_says(opened, address):
    page = opened(address)
    choose(page, 0)
    # With the keyboard: to the tokens, and on to the second supervised position.
    page.locator("#tokens .token").first.focus()
    for key in ("ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.dataset.at") == "5"
    detail = page.locator("#detail").inner_text()
    trace, k = TRACES[0], TRACES[0]["positions"].index(5)
    for told in (f"{trace['kl'][k]:.2f}", f"{trace['contrast'][k]:.2f}", "60%", "position 6", "w0w1w2w3w4▢"):
        assert told in detail
    odds = page.locator("#detail .odds").evaluate_all("all => all.map((e) => e.innerText.split(/\\s+/))")
    assert odds == [["w5", "60%", "x", "30%"], ["t", "70%", "w5", "20%"]]
    # The left stays, the right fades.
    gone = page.locator("#tokens .gone").evaluate_all("all => all.map((e) => Number(e.dataset.at))")
    assert gone == list(range(6, 24))
    page.keyboard.press("ArrowRight")
    assert "It was not drawn for supervision." in page.locator("#detail").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tokens .gone").count() == 0
    # With the mouse, only while it is there; with a click it stays.
    page.locator("#tokens .token").nth(2).hover()
    assert "position 3" in page.locator("#detail").inner_text()
    page.locator("#prompt").hover()
    assert "Choose a word" in page.locator("#detail").inner_text()
    page.locator("#tokens .token").nth(2).click()
    page.locator("#prompt").hover()
    assert "position 3" in page.locator("#detail").inner_text()


def test_marks_routes_and_filters(opened, address):
    page = opened(address)
    choose(page, 0)
    marked = page.locator("#tokens .sup").evaluate_all("all => all.map((e) => Number(e.dataset.at))")
    assert marked == TRACES[0]["positions"]
    forks = page.locator("#tokens .fork").evaluate_all("all => all.map((e) => Number(e.dataset.at))")
    assert forks == [7, 15, 23]
    why = page.locator("#why").inner_text()
    assert "Only the teacher right" in why and "✗ wrong" in why and "✓ right" in why
    page.select_option("#route", "CE")
    assert "Both right" in page.locator("#why").inner_text()
    assert page.locator("#question option").count() == 1
    shade = page.locator("#tokens .token").nth(7).get_attribute("class")
    page.locator("input[value=entropy]").check()
    assert "h7" in shade and "h6" in page.locator("#tokens .token").nth(7).get_attribute("class")


def test_the_walk_explains_the_method_on_the_example(opened, address):
    page = opened(address)
    page.click("#walk-start")
    texts = [page.locator("#walk-text").inner_text()]
    assert shown(page) == {}
    while page.locator("#walk-next").is_enabled():
        page.click("#walk-next")
        texts.append(page.locator("#walk-text").inner_text())
    assert [text.split(":")[0] for text in texts[1:4:2]] == ["Face the fork first", "Teach on the left"]
    assert "the teacher says “t” with 70%" in texts[4]
    page.click("#walk-close")
    assert page.locator("#walk").is_hidden() and page.locator("#walk-start").is_visible()


def test_before_and_after_side_by_side(opened, address):
    page = opened(address)
    heads = page.locator("#cells h3").all_inner_texts()
    assert [head.split(",")[0] for head in heads] == ["Before training"] * 2 + ["After 3 updates"] * 2
    assert ["uncertain" in head for head in heads] == [True, False, True, False]
    # The question that was learned is first to be seen.
    assert page.locator("#shown option:checked").inner_text() == "✗→✓ question 1?"
    assert [text[0] for text in page.locator("#cells p").all_inner_texts()] == ["✗", "✗", "✓", "✓"]
    page.locator("#orders-pass").fill("50")
    visible = page.locator("#cells .tokens").evaluate_all(
        "all => all.map((e) => e.querySelectorAll('.token:not(.blank)').length)"
    )
    assert visible == [12] * 4


def test_what_models_write_is_text(opened, address):
    page = opened(address)
    choose(page, 2)
    assert list(shown(page).values()) == HOSTILE
    assert page.locator("#prompt").inner_text() == "<script>"
    assert HOSTILE[4] in page.locator("#why").inner_text()
    page.locator("#tokens .token").nth(2).click()
    assert "</script>" in page.locator("#detail").inner_text()
    assert page.evaluate("window.pwned") is None
    assert page.locator("#tokens script, #tokens img, #prompt script, #why img").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_light_and_dark(opened, address, width):
    grounds = []
    for dark in (False, True):
        page = opened(address, width=width, dark=dark)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == grounds[0]


def test_a_run_without_traces_says_so(opened, tmp_path):
    page = opened(write_report([made_up_run(tmp_path / "run", traces=[], updates=0)]).as_uri())
    assert "no traces here" in page.locator("#no-traces").inner_text()
    assert page.locator("#stage").is_hidden()


def test_earlier_versions_and_empty_responses(opened, tmp_path):
    old = made_up_trace(0)
    for name in ("block_starts", "kl", "contrast", "mask_entropy", "left_entropy", "left_confidence"):
        del old[name]
    empty = made_up_trace(1, tokens=0)
    page = opened(write_report([made_up_run(tmp_path / "run", traces=[old, empty])]).as_uri())
    page.locator("#tokens .token").nth(2).click()
    assert "did not keep KL, D and confidence" in page.locator("#detail").inner_text()
    choose(page, 1)
    assert "The response is empty." in page.locator("#tokens").inner_text()


def test_several_runs_can_be_chosen(opened, tmp_path):
    runs = [made_up_run(tmp_path / name, traces=[made_up_trace(k)]) for k, name in enumerate("ab")]
    page = opened(write_report(runs, tmp_path / "report.html").as_uri())
    page.select_option("#run", label="b")
    assert "question 1?" in page.locator("#prompt").inner_text()


@pytest.mark.slow
def test_many_long_traces_are_built_one_at_a_time(opened, tmp_path):
    folder = made_up_run(tmp_path / "run", traces=[made_up_trace(k, tokens=1024) for k in range(200)])
    page = opened(write_report([folder]).as_uri())
    assert page.locator(".token").count() == 1024 + 4 * 24
    choose(page, 150)
    assert page.locator("#tokens .token").count() == 1024
