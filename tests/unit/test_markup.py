"""Results and answers in a notebook and in print: safe HTML, short reprs, the text itself."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import atoll
from atoll.agent.rlm.types import Ended
from atoll.search.coverage import Coverage
from atoll.search.evidence import Evidence
from atoll.text import markup
from atoll.types import Display, ExecuteResponse, Outcome, SandboxResult, Variable, Variables

EVIL = "</pre></div><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\ud800'\""
PNG = markup.PNG_SIGNATURE + b"data"
COVERAGE = Coverage(length=10, scanned=5, shown=1, map=".")
FINAL = atoll.Final(how="FINAL", value=EVIL, text=EVIL, coverage=COVERAGE)
RESULT = SandboxResult(
    kind=Outcome.ERROR, stdout=EVIL, stderr=EVIL, error=EVIL, value_repr=EVIL, files_created=(EVIL,)
)
SHOWN = [
    RESULT,
    SandboxResult(kind=Outcome.OK, displays=(Display(media_type="text/html", data=EVIL.encode("utf-8", "replace")),)),
    SandboxResult(kind=Outcome.OK, displays=(Display(media_type="text/markdown", data=EVIL.encode("utf-8", "replace")),)),
    ExecuteResponse(output=EVIL, exit_code=1, error=EVIL),
    Variables([Variable(name=EVIL, type=EVIL, size=5, shape=(1, 2))], truncated=True),
    atoll.Answer(text=EVIL, evidence=(Evidence(quote=EVIL, found=True, line=3),)),
    FINAL,
    atoll.Turn(number=1, observation=EVIL, result=RESULT, code=EVIL, final=FINAL),
    Display(media_type="text/html", data=EVIL.encode("utf-8", "replace")),
    Display(media_type="image/png", data=EVIL.encode("utf-8", "replace")),
]  # fmt: skip


class Tags(HTMLParser):
    """The elements of a page, and their attributes."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("shown", SHOWN, ids=lambda one: type(one).__name__)
def test_nothing_that_a_guest_made_is_live(shown):
    text = shown._repr_html_()
    tags = Tags(text).found
    names = {tag for tag, _ in tags}
    assert "script" not in names
    assert not [attrs for _, attrs in tags if any(name.startswith("on") for name in attrs)]
    for tag, attrs in tags:
        if tag == "iframe":
            assert attrs["sandbox"] == ""
            assert "src" not in attrs
            assert attrs["srcdoc"].startswith(
                '<meta http-equiv="Content-Security-Policy" content="default-src'
            )
        elif tag == "img":
            assert attrs["src"].startswith("data:image/")
    assert "\x1b" not in text
    assert "\u202e" not in text
    text.encode("utf-8")


def test_a_figure_is_an_image_and_what_only_says_so_is_not():
    figure = SandboxResult(kind=Outcome.OK, displays=(Display(media_type="image/png", data=PNG),))
    assert 'src="data:image/png;base64,' in figure._repr_html_()
    assert "<img" not in Display(media_type="image/png", data=b"<script>")._repr_html_()
    assert (
        "data:image/svg+xml;base64,"
        in Display(media_type="image/svg+xml", data=b"<svg/>")._repr_html_()
    )
    huge = Display(media_type="image/png", data=PNG + b"x" * markup.MAX_IMAGE_BYTES)
    assert "too large to show" in huge._repr_html_()


def test_long_output_is_cut_in_html_and_whole_in_print():
    result = SandboxResult(kind=Outcome.OK, stdout="x" * 100_000)
    assert "80,000 characters more" in result._repr_html_()
    assert len(result._repr_html_()) < 30_000
    assert str(result) == "x" * 100_000
    assert len(repr(result)) < 300


def test_a_large_listing_is_cut_in_html():
    many = Variables([Variable(name=f"v{n}", type="int") for n in range(1000)])
    assert many._repr_html_().count("<tr>") == markup.MAX_ROWS + 1
    assert "there are more" in many._repr_html_()


def test_print_shows_what_a_notebook_would():
    result = SandboxResult(kind=Outcome.OK, stdout="one\n", value_repr="2")
    assert str(result) == "one\n2"
    failed = SandboxResult(
        kind=Outcome.ERROR, stdout="one\n", error="ValueError: no", stderr="Trace\nValueError: no\n"
    )
    assert str(failed) == "one\nTrace\nValueError: no"
    late = SandboxResult(
        kind=Outcome.TIMEOUT, stderr="KeyboardInterrupt\n", error="TimeoutError: 1"
    )
    assert str(late) == "KeyboardInterrupt\nTimeoutError: 1"
    assert str(SandboxResult(kind=Outcome.OK)) == ""
    assert str(ExecuteResponse(output="done\n", exit_code=0)) == "done"


def test_print_of_an_answer_is_its_text():
    answer = atoll.Answer(
        text="Forty-two.", turns=3, calls=4, seconds=1.25, cost=0.5, ended=Ended.FORCED
    )
    assert str(answer) == "Forty-two."
    assert repr(answer) == "Answer('Forty-two.', 3 turns, 4 calls, 1.2 s, $0.5000, forced)"
    assert str(FINAL) == EVIL
    assert str(atoll.Turn(number=1, observation="seen", result=RESULT, code="")) == "seen"


def test_reprs_are_short_and_tell_the_outcome():
    result = SandboxResult(kind=Outcome.OK, stdout="hello\n", value_repr="3", duration_ms=1.5)
    assert repr(result) == "SandboxResult(ok, stdout='hello\\n', value=3, 1.5 ms)"
    assert (
        repr(ExecuteResponse(output="x", exit_code=2)) == "ExecuteResponse(exit_code=2, output='x')"
    )
    assert repr(Display(media_type="image/png", data=PNG)) == "Display(image/png, 12 bytes)"


def test_a_frame_of_a_real_guest_is_shown_in_a_frame(tmp_path):
    with atoll.create_sandbox(backend="native") as box:
        result = box.execute("import pandas as pd; pd.DataFrame({'a': ['<b>']})")
        listing = box.variables()
    shown = result._repr_html_()
    inner = html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1])
    assert "&lt;b&gt;" in inner
    assert "<table" in inner
    assert "<td>pd</td>" in listing._repr_html_()
    Path(tmp_path / "page.html").write_text(shown)
