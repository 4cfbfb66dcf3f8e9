import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise

import pytest
from reports import HOSTILE, made_up_run, made_up_trace

from forkleft.errors import ForkLeftError
from forkleft.report.page import SCRIPTS, STYLES, json_block, write_report


class Scripts(HTMLParser):
    """The scripts and styles of a page, and the addresses that it names."""

    def __init__(self, html):
        super().__init__()
        self.found, self.addresses, self.handlers = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        if tag in ("script", "style"):
            self.found.append([tag, dict(attributes), ""])
        self.addresses += [value for name, value in attributes if name in ("src", "href")]
        self.handlers += [name for name, _ in attributes if name.startswith("on") or name == "style"]

    def handle_data(self, text):
        if self.found and self.cdata_elem:
            self.found[-1][2] += text


def written(folder, **settings):
    return Scripts(write_report([folder], **settings).read_text(encoding="utf-8"))


def test_the_page_is_complete_and_lets_nothing_else_run(tmp_path):
    path = write_report([made_up_run(tmp_path / "run")])
    assert path == tmp_path / "run" / "report.html"
    html = path.read_text(encoding="utf-8")
    page = Scripts(html)
    (policy,) = re.findall(r'Content-Security-Policy" content="(.*?)"', html)
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "http" not in policy
    running = [text for tag, kind, text in page.found if kind.get("type") != "application/json"]
    assert len(running) == 2
    for text in running:
        assert "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    assert all(address == "data:," or address.startswith("#") for address in page.addresses)
    assert page.handlers == []


def test_data_come_back_as_they_were(tmp_path):
    folder = made_up_run(tmp_path / "run", traces=[made_up_trace(0, tokens=6) | {"tokens": HOSTILE}])
    blocks = {kind["id"]: json.loads(text) for _, kind, text in written(folder).found if "id" in kind}
    assert blocks["trace-0"]["tokens"] == HOSTILE
    assert blocks["page-data"]["traces"] == [{"run": 0, "step": 1, "route": "LEFTOPD", "label": "question 0?"}]
    assert [group["in_use"] for group in blocks["page-data"]["showcase"]] == [[False, False], [False, True]]
    assert [group["label"] for group in blocks["page-data"]["showcase"]] == ["✗→✗ question 0?", "✗→✓ question 1?"]
    assert len(blocks["showcase-1"]) == 4


def test_nothing_in_a_block_ends_it():
    text = json_block("x", {"a": "</script><script>", "b": "<!-- é \ud800"})
    assert text.count("<") == 2
    assert json.loads(text[text.index(">") + 1 : text.rindex("<")])["a"] == "</script><script>"


def test_several_runs_go_to_the_working_folder_or_where_one_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [made_up_run(tmp_path / name) for name in ("a", "b")]
    assert str(write_report(runs)) == "report.html"
    assert write_report(runs, tmp_path / "new" / "x.html").is_file()
    (tmp_path / "file").touch()
    with pytest.raises(ForkLeftError, match="cannot write to"):
        write_report(runs, tmp_path / "file" / "x.html")


def test_the_sources_are_in_the_package():
    assert {"page.html", *STYLES, *SCRIPTS} <= {path.name for path in files("forkleft.report").iterdir()}


def test_the_script_never_writes_markup():
    script = "".join(files("forkleft.report").joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("):
        assert word not in script


def test_the_report_of_a_run_needs_no_torch():
    """Nor Transformers and Matplotlib: they take seconds to import, and a report takes less than one."""
    check = (
        "import sys, forkleft.report.page\n"
        "sys.exit(' '.join({'torch', 'transformers', 'accelerate', 'matplotlib'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stderr.strip() == ""


def luminance(colour):
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_shades_can_be_told_apart_and_words_on_them_read(theme):
    style = files("forkleft.report").joinpath("colours.css").read_text(encoding="utf-8")
    both = dict(re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", style))
    colour = {name: pair.split(", ")[theme] for name, pair in both.items()}
    shades = [colour[f"shade-{k}"] for k in range(8)]
    # The grounds of the report and of the playground.
    assert min(contrast(shades[0], colour[ground]) for ground in ("bg", "surface")) >= 1.25
    for weak, strong in pairwise(shades):
        assert contrast(weak, strong) >= 1.2 and contrast(strong, colour["bg"]) > contrast(weak, colour["bg"])
    assert all(contrast(shade, colour["on-weak" if k < 5 else "on-strong"]) >= 4.5 for k, shade in enumerate(shades))
    for name in ("soft", "accent", "student", "teacher", "good", "bad"):
        assert contrast(colour[name], colour["bg"]) >= 4.5
    assert contrast(colour["field"], colour["bg"]) >= 2.99


def test_report_and_playground_colour_alike():
    """An entropy has the same shade on both pages, from the colours that they share."""
    sources = [
        files("forkleft.report").joinpath(name).read_text(encoding="utf-8") for name in ("tokens.js", "play/play.js")
    ]
    bounds = [re.search(r"(?:SHADES|ENTROPIES) = (\[.*?\]);", text)[1] for text in sources]
    assert bounds[0] == bounds[1] and len(json.loads(bounds[0])) == 7
    for name in ("page.css", "play/play.css"):
        style = files("forkleft.report").joinpath(name).read_text(encoding="utf-8")
        assert "var(--shade-7)" in style and "prefers-color-scheme" not in style
