"""The guided example of the page in a real browser."""

import re

import pytest
from browser import shown
from reports import made_up_run, made_up_trace

from forkleft.report.page import write_report

# A browser takes seconds for each.
pytestmark = pytest.mark.slow
# Both models differ most at the first position that is taught, so that the others are on its right.
TRACES = [made_up_trace(0, kl=[0.9, 0.5, 0.4, 0.3, 0.2, 0.1]), made_up_trace(1, route="CE"), made_up_trace(2, tokens=8)]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = made_up_run(tmp_path_factory.mktemp("runs") / "run", traces=TRACES)
    return write_report([folder]).as_uri()


def test_the_walk_explains_the_method_on_the_example(opened, address):
    page = opened(address)
    page.click("#walk-start")
    texts = [page.locator("#walk-text").inner_text()]
    assert shown(page) == {}
    while page.locator("#walk-next").inner_text() == "Next":
        page.click("#walk-next")
        texts.append(page.locator("#walk-text").inner_text())
    assert len(texts) == 6 and page.locator("#walk-next").inner_text() == "Before and after"
    assert [text.split(":")[0] for text in texts[1:4:2]] == ["Face the fork first", "Teach on the left"]
    assert "Only the final answer is judged: “2” is wrong; the right one is “4”" in texts[2]
    assert "the teacher says “t” with 70%" in texts[4] and texts[4].endswith("done at all 6 ●.")
    page.keyboard.press("Escape")
    assert page.locator("#walk").is_hidden() and page.locator("#walk-start").is_visible()


def entropies(**there):
    return [there.get(f"at_{i}", 0.01) for i in range(24)]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        # From right to left in each block of eight.
        ({"entropy": entropies(at_7=1.5)}, "at “w7”, position 8, .* in step 1 of the 8 of its block, before any"),
        ({"entropy": entropies(at_20=1.5)}, "at “w20”, position 21, .* in step 4 of the 8 of its block. In use"),
        ({"entropy": entropies(at_20=1.5), "block_starts": [0]}, r"at “w20”, position 21, .* in step 4 of 8\."),
        ({"entropy": entropies(at_20=0.3)}, "no blank was a fork here; the nearest to one was “w20”, position 21"),
    ],
    ids=["first", "later", "one block", "no fork"],
)
def test_the_walk_says_of_the_fork_what_the_trace_says(opened, tmp_path, changes, told):
    page = opened(write_report([made_up_run(tmp_path / "run", traces=[made_up_trace(0, **changes)])]).as_uri())
    page.click("#walk-start")
    page.click("#walk-next")
    text = page.locator("#walk-text").inner_text()
    assert re.search(told, text)
    # What would come of it in use, the trace does not know.
    assert text.endswith(
        "In use the surest word comes first: there, this blank would wait as long as another one is surer."
    )


def test_every_position_that_is_taught_is_marked_all_the_time(opened, address):
    page = opened(address, reduced=True)
    page.click("#walk-start")
    mark = "(e, s = getComputedStyle(e, '::after')) => [s.content, s.visibility, s.borderTopStyle, s.opacity]"
    for _ in range(6):
        places = page.locator("#tokens .token.sup")
        assert places.evaluate_all("all => all.map((e) => Number(e.dataset.at))") == TRACES[0]["positions"]
        shown_as = places.evaluate_all(f"all => all.map((e) => ({mark})(e))")
        assert shown_as == [['""', "visible", "solid", "1"]] * len(shown_as)
        assert set(places.evaluate_all("all => all.map((e) => getComputedStyle(e).opacity)")) == {"1"}
        page.click("#walk-next")


def within(page, element):
    """Whether an element is wholly seen: in the window, neither behind the head of the page nor behind the tour."""
    box, tour = page.locator(element).bounding_box(), page.locator("#walk").bounding_box()
    head = page.locator(".top").bounding_box()
    return max(0, head["y"] + head["height"]) <= box["y"] and box["y"] + box["height"] <= tour["y"]


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (390, 844)])
def test_the_walk_keeps_in_view_what_it_explains(opened, tmp_path, width, height):
    long = made_up_trace(0, tokens=160)
    for name, trace in (("short", made_up_trace(0)), ("long", long)):
        address = write_report([made_up_run(tmp_path / name, traces=[trace])]).as_uri()
        page = opened(address, width=width, height=height, reduced=True)
        page.click("#walk-start")
        for step in range(6):
            assert within(page, "#detail .models" if step == 4 else "#tokens") or (name == "long" and step != 4)
            # Where there is room, the choice of questions and the question are seen as well.
            if name == "short" and width > 1000:
                assert all(within(page, part) for part in ("#stage .pick", "#prompt", "#tokens"))
            word = page.locator("#tokens .now, #tokens .target")
            if step in (1, 3):
                assert word.count() == 1 and within(page, "#tokens .now, #tokens .target")
            # Nothing of the tour is cut, also where its last button has more words.
            sides = page.locator("#walk-count, .walk-buttons button").evaluate_all(
                "all => all.map((e) => [e.getBoundingClientRect().left, e.getBoundingClientRect().right])"
            )
            assert all(0 <= left < right <= width for left, right in sides)
            if step == 3 and width > 1000:
                assert within(page, "#detail .models")
            page.click("#walk-next")
        assert page.locator("#walk").is_hidden()
        assert 0 <= page.locator("#orders-title").bounding_box()["y"] < height / 2
