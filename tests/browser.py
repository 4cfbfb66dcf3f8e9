"""A headless Chromium that is installed on this machine; nothing is downloaded."""

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
