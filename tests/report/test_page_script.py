"""The page in a real browser: what its script does, compared with the traces that it shows."""

import pytest
from browser import choose, shown
from reports import HOSTILE, made_up_run, made_up_trace

from forkleft.report.page import write_report

# A browser takes seconds for each.
pytestmark = pytest.mark.slow
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
    assert caption.startswith(
        "Step 13 of 24 (block 2 of 3): writes “w11” at position 12. Of all open blanks in this block, the"
    )
    assert caption.endswith("the student was least sure of this one: its best guess had 87%.")
    assert page.locator("#tokens .now").inner_text().split() == ["w11", "13"]
    page.click("#forth")
    assert page.locator("#tokens .now").inner_text().split() == ["w10", "14"]
    # Those that follow are less uncertain than this one, which is certain.
    assert page.locator("#caption").inner_text().endswith("All blanks that are left in this block are certain by now.")


def test_steps_are_counted_from_one_without_passes_behind_the_end(opened, tmp_path):
    passes = [28, 3, 21, 7, 1, 18]
    trace = made_up_trace(0, tokens=6, commit_pass=passes)
    page = opened(write_report([made_up_run(tmp_path / "run", traces=[trace])]).as_uri())
    numbers = page.locator("#tokens .token small").all_inner_texts()
    assert numbers == ["6", "2", "5", "3", "1", "4"]
    assert "6 tokens in 6 steps" in page.locator("#caption").inner_text()
    told = []
    for step in range(6):
        page.locator("#pass").fill(str(step))
        told.append(page.locator("#caption").inner_text().split(":")[0].split(".")[0])
    assert told == ["All is blank", *(f"Step {step} of 6" for step in range(1, 6))]
    page.locator("#tokens .token").first.click()
    detail = page.locator("#detail")
    assert "written in step 6 of 6" in detail.inner_text() and "28" not in detail.inner_text()
    page.locator("#detail summary").click()
    assert "28" in detail.locator(".figures").inner_text().split("\n")


def test_play_goes_from_the_blanks_to_the_end(opened, address):
    page = opened(address, reduced=True)
    choose(page, 3)
    # The clock stands still, however slow the machine is.
    page.clock.install(time=0)
    page.clock.pause_at(1000)
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
    page.locator("#detail summary").click()
    detail = page.locator("#detail").inner_text()
    trace, k = TRACES[0], TRACES[0]["positions"].index(5)
    for told in (f"{trace['kl'][k]:.2f}", f"{trace['contrast'][k]:.2f}", "60%", "position 6"):
        assert told in detail
    odds = page.locator("#detail .odds").evaluate_all("all => all.map((e) => e.innerText.split(/\\s+/))")
    assert odds == [["w5", "60%", "x", "30%"], ["t", "70%", "w5", "20%"]]
    # When it was written, from right to left, two of its block were there; when it is taught, only the left is.
    assert page.locator("#detail .prefix").all_inner_texts() == ["▢▢▢▢▢?w6w7" + 16 * "▢", "w0w1w2w3w4?"]
    # The left stays, the right is pale.
    assert page.locator("#hidden-key").is_visible()
    gone = page.locator("#tokens .gone").evaluate_all("all => all.map((e) => Number(e.dataset.at))")
    assert gone == list(range(6, 24))
    page.locator("#tokens .target").focus()
    page.keyboard.press("ArrowRight")
    # The details stay open. Nothing is hidden where nothing is taught.
    assert "it was not drawn to be taught" in page.locator("#detail").inner_text()
    assert page.locator("#detail details[open]").count() == 1
    assert page.locator("#tokens .gone").count() == 0 and page.locator("#hidden-key").is_hidden()
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tokens .gone").count() == 18
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
    assert "Only the teacher is right" in why and "✗ wrong" in why and "✓ right" in why
    assert "Only the final answer is judged, not the steps before it" in why
    assert page.locator("#route option").all_inner_texts() == ["all (4)", "both right (1)", "teacher only (3)"]
    assert page.locator("#question option").nth(1).inner_text() == "both right: question 1?"
    page.select_option("#route", "CE")
    assert "Both are right" in page.locator("#why").inner_text()
    assert page.locator("#question option").count() == 1
    shade = page.locator("#tokens .token").nth(7).get_attribute("class")
    page.locator("input[value=pass]").check()
    assert page.locator("#scale").inner_text().split("\n")[0] == "first step of a block"
    assert "h6" in shade and "h7" in page.locator("#tokens .token").nth(7).get_attribute("class")


def test_blocks_are_shown_where_they_begin(opened, address, tmp_path):
    page = opened(address)
    choose(page, 0)
    edges = page.locator("#tokens .edge")
    assert [text.split() for text in edges.all_inner_texts()] == [["block", str(k)] for k in (1, 2, 3)]
    assert edges.evaluate_all("all => all.map((e) => Number(e.nextSibling.dataset.at))") == [0, 8, 16]
    # On the line of their first words, however narrow the page is.
    for width in (1280, *range(330, 420, 9)):
        page.set_viewport_size({"width": width, "height": 800})
        middle = "(x, box = x.getBoundingClientRect()) => box.top + box.height / 2"
        middles = f"all => all.map((e) => [({middle})(e), ({middle})(e.nextSibling)])"
        assert all(abs(one - other) < 4 for one, other in edges.evaluate_all(middles))
    told = page.locator("#blocks").inner_text()
    assert told.startswith("Passes restart in every block (3 here, one after the other)")
    assert page.locator("#orders-blocks").inner_text() == told
    page.locator("#tokens .token").nth(8).click()
    assert "at position 9 (block 2 of 3), written in step 16 of 24" in page.locator("#detail").inner_text()
    assert "block 2" in page.locator("#tokens .token").nth(8).get_attribute("aria-label")
    choose(page, 3)
    assert edges.count() == 0 and page.locator("#blocks").is_hidden()
    assert "block" not in page.locator("#detail").inner_text()


def test_runs_of_other_arms_say_so_and_are_not_walked_through(opened, tmp_path):
    recipe = {"rollout_order": "low_entropy", "view": "target_masked", "verifier": "my.judge:function"}
    other = made_up_run(tmp_path / "other", traces=[made_up_trace(0)], recipe=recipe)
    page = opened(write_report([other]).as_uri())
    assert page.locator("#walk-start").is_hidden()
    told = page.locator("#otherwise").inner_text()
    assert "writes its least uncertain word first" in told and "lets the student see both sides" in told
    assert "The run’s own verifier, my.judge:function, has judged both." in page.locator("#why").inner_text()
    assert "final answer" not in page.locator("#viewer").inner_text()
    page.locator("#tokens .token").nth(2).click()
    assert "When it is taught, the teacher sees" in page.locator("#detail").inner_text()
    assert page.locator("#caption").inner_text().startswith("● Position 3, where it was taught. The teacher saw")
    method = made_up_run(tmp_path / "method", traces=[made_up_trace(1)])
    page = opened(write_report([other, method], tmp_path / "both.html").as_uri())
    page.click("#walk-start")
    assert "question 1?" in page.locator("#prompt").inner_text() and page.locator("#otherwise").is_hidden()


def test_before_and_after_side_by_side(opened, address):
    page = opened(address)
    heads = page.locator("#cells h3").all_inner_texts()
    assert [head.split(",")[0] for head in heads] == ["Before training", "After 3 updates"] * 2
    assert ["uncertain" in head for head in heads] == [True, True, False, False]
    told = page.locator("#orders-count").inner_text()
    assert told == "Of these 2 questions, written as in use, 0 were right before training and 1 after."
    beside = page.locator("#orders .note").inner_text()
    assert beside.startswith("What is shown here is an illustration, not a measurement: so few questions may get worse")
    assert f"{told} Measured above: 50% → 70%, of 50 held-out questions right in use" in beside
    assert "Only the final answer is judged" in page.locator("#orders .lead").inner_text()
    page.select_option("#shown", label="✗→✓ question 1?")
    verdicts = page.locator("#cells h3 + p")
    assert [text[0] for text in verdicts.all_inner_texts()] == ["✗", "✓", "✗", "✓"]
    # A column for each order, with before above after.
    lefts = page.locator(".cell").evaluate_all("all => all.map((e) => e.getBoundingClientRect().left)")
    assert lefts[0] == lefts[1] < lefts[2] == lefts[3]
    page.locator("#cells .token").first.hover()
    assert page.locator("#cells .pointed").first.inner_text() == "“w0”: step 8 of 24, with 90% for its best guess"
    # With the keyboard, too.
    page.locator("#shown-prompt").hover()
    page.locator("#cells .tokens").nth(1).focus()
    for key in ("ArrowRight", "End", "ArrowLeft"):
        page.keyboard.press(key)
    pointed = page.locator("#cells .pointed")
    assert pointed.nth(1).inner_text() == "“w22”: step 18 of 24, with 84% for its best guess"
    assert pointed.first.inner_text() == "" and page.locator("#cells .target").count() == 1
    page.locator("#orders-pass").fill("50")
    # Whether it is right is not told before it is written.
    assert not any(verdicts.nth(k).is_visible() for k in range(4))
    visible = page.locator("#cells .tokens").evaluate_all(
        "all => all.map((e) => e.querySelectorAll('.token:not(.blank)').length)"
    )
    assert visible == [12] * 4
    page.locator("#orders-pass").fill("100")
    assert all(verdicts.nth(k).is_visible() for k in range(4))


def test_markup_of_chats_is_shown_as_small_signs(opened, tmp_path):
    tokens = ["4", "<|im_end|>"]
    trace = made_up_trace(0, tokens=2, prompt="<|im_start|>user\n2+2?<|im_end|>") | {"tokens": tokens}
    page = opened(write_report([made_up_run(tmp_path / "run", traces=[trace])]).as_uri())
    assert page.locator("#prompt .chip").all_inner_texts() == ["user", "end"]
    assert page.locator("#prompt").inner_text() == "user2+2?end"
    assert page.locator("#tokens .special").all_inner_texts() == ["end"]


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
    page.locator("#detail summary").click()
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
