"""A headless Chromium that is installed on this machine; nothing is downloaded."""

import re
import shutil
from collections.abc import Iterator

import pytest
from skips import skip_or_fail


# Not for the whole session: while it is there, no test in this thread can run an event loop.
@pytest.fixture(scope="module")
def chromium() -> Iterator:
    """The browser. Skips, or fails if nothing may be skipped, where there is none."""
    path = shutil.which("chromium")
    if path is None:
        skip_or_fail("there is no chromium on the path; install it (Debian: apt-get install chromium)")
    # Loads much, and most tests need no browser.
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def chromium_page(chromium) -> Iterator:
    """A fresh page, 1280 pixels wide. The test fails if a script on it did, or its policy was violated."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    # The browser also notes every reply that refuses something, which tests ask for.
    problems = [problem for problem in problems if not problem.startswith("Failed to load resource")]
    assert not problems, problems


@pytest.fixture
def opened(chromium) -> Iterator:
    """Opens a report. Afterwards, there must have been no error, and no request but for the page itself."""
    contexts, told, asked = [], [], []

    def open_page(address, *, width=1280, height=900, dark=False, reduced=False):
        scheme, motion = "dark" if dark else "light", "reduce" if reduced else "no-preference"
        viewport = {"width": width, "height": height}
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
    """Choose a question of a report."""
    page.select_option("#question", str(index))


def shown(page):
    """The tokens of a report's viewer that can be read, by position."""
    places = page.locator("#tokens .token:not(.blank)")
    return dict(places.evaluate_all("all => all.map((e) => [Number(e.dataset.at), e.firstChild.textContent])"))
