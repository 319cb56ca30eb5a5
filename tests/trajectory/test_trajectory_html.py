"""A trajectory as a page: nothing in it runs, nothing is loaded, all is told, large ones too."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest
from runs import HOSTILE, QUESTION, hostile, realistic

from atoll.agent.trajectory import (
    CodeRan,
    ModelAnswered,
    ModelAsked,
    Planned,
    RunStarted,
    Trajectory,
    TrajectoryWriter,
    from_dict,
)
from atoll.agent.trajectory.html import page
from atoll.agent.trajectory.html.steps import PAGE_CAP, SHORT, Steps, Texts, one

VOID = {"meta", "rect", "path"}
ELEMENTS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "h1", "h2", "h3",
    "h4", "h5", "p", "b", "i", "span", "q", "code", "pre", "details", "summary", "ol", "ul", "li",
    "dl", "dt", "dd", "svg", "rect", "div", "g", "text", "path",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "aria-hidden", "aria-label", "role",
    "viewbox", "preserveaspectratio", "x", "y", "rx", "d", "width", "height",
}  # fmt: skip


class Strict(HTMLParser):
    """Reads a page, and fails over any element or attribute that is not ours, or not nested."""

    def __init__(self) -> None:
        super().__init__()
        self.open, self.text, self.seen = [], [], []

    def handle_starttag(self, tag, attrs):
        assert tag in ELEMENTS
        assert {name for name, _ in attrs} <= ATTRIBUTES
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in {"rect", "path"}
        assert {name for name, _ in attrs} <= ATTRIBUTES

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_data(self, data):
        self.text.append(data)


def made(story) -> str:
    writer = TrajectoryWriter()
    story(writer)
    return "".join(page(Trajectory(events=writer.events)))


def parsed(text: str) -> Strict:
    reader = Strict()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


@pytest.mark.parametrize("story", [realistic, hostile])
def test_a_page_has_no_element_and_no_attribute_but_ours(story):
    parsed(made(story))


def test_hostile_text_is_shown_as_text():
    text = "".join(parsed(made(hostile)).text)
    for bad in HOSTILE[:3]:
        assert bad in text
    assert "\\x1b]0;owned\\x07" in text
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text
    )


def test_a_page_can_be_written_as_utf_8():
    assert made(hostile).encode()


def test_the_policy_allows_our_style_and_nothing_else():
    text = made(realistic)
    metas = [attrs for tag, attrs in parsed(text).seen if tag == "meta"]
    (policy,) = (
        one["content"] for one in metas if one.get("http-equiv") == "Content-Security-Policy"
    )
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert (
        policy
        == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    assert "url(" not in style
    assert "@import" not in style


def test_a_page_tells_what_happened():
    text = "".join(parsed(made(realistic)).text)
    for part in (
        QUESTION,
        "Clause 17.2: on the third anniversary",
        "The Tenant may determine this Lease on the third anniversary",
        "at 6,702,114-6,702,174, line 14,031",
        "6.6 % shown to a model, 76 % scanned by code",
        "$0.2513",
        "38 model calls",
        "coder-mini",
        "32 sub-calls, 8 at once",
        "the model took longer than 30 s",
        "What does leaving early cost the tenant?",
        "the same code as before",
        "usd: 0.2 of 0.25 (80 %)",
    ):
        assert part in text


def test_calls_at_the_same_time_have_bars_that_overlap():
    text = made(realistic)
    batch = text[text.index("32 sub-calls, 8 at once") :].split("</ol>")[0]
    bars = [
        (float(x), float(x) + float(width))
        for x, width in re.findall(r'class="on" x="([\d.]+)" width="([\d.]+)"', batch)
    ]
    assert len(bars) == 32
    assert sum(start < 1 for start, _ in bars) == 8
    assert all(end <= 100.5 for _, end in bars)


def test_every_step_is_closed_until_somebody_looks():
    assert "<details open" not in made(realistic)


def test_a_thousand_turns_are_a_page_of_a_few_megabytes():
    def story(writer):
        writer.emit(RunStarted(question="?", model="m"))
        for turn in range(1000):
            call = writer.new_call()
            writer.emit(ModelAsked(call=call, model="m"))
            writer.emit(ModelAnswered(call=call, text="I look further. " * 200))
            writer.emit(
                CodeRan(turn=turn, code="total = rows < 2\n" * 100, observation="<text>" * 800)
            )

    text = made(story)
    assert text.count("<details>") == 2001
    assert "more characters</span>" in text
    assert len(text) < 2 * PAGE_CAP


def test_a_page_has_no_more_steps_than_a_browser_lives_with():
    writer = TrajectoryWriter()
    realistic(writer)
    (run,) = Trajectory(events=writer.events).tree()
    text = "".join(Steps(Texts(), run, most=10).all())
    assert text.count("<li>") == 10
    assert "… 27 more: atoll trace show --full has them" in text
    parsed(text)


def test_a_long_text_says_how_much_is_missing():
    assert (
        Texts().many("a" * 1000, 400)
        == "a" * 400 + '<span class="cut">… 600 more characters</span>'
    )


def test_when_the_page_is_full_texts_keep_their_beginning():
    texts = Texts(room=1000)
    assert len(texts.many("a" * 1000, 4000)) == 1000
    assert texts.many("b" * 1000, 4000).startswith("b" * SHORT + "<span")


@pytest.mark.parametrize(
    ("code", "markup"),
    [
        ("# <b>", '<span class="c"># &lt;b&gt;</span>'),
        ("x = 'if'", 'x = <span class="s">&#x27;if&#x27;</span>'),
        (
            "if 1: pass",
            '<span class="k">if</span> <span class="n">1</span>: <span class="k">pass</span>',
        ),
        ('f"{a}"', '<span class="s">f&quot;{a}&quot;</span>'),
        ("'''a\n# b", '<span class="s">&#x27;&#x27;&#x27;a\n# b</span>'),
        ("notify(orders)", "notify(orders)"),
    ],
)
def test_code_is_marked(code, markup):
    assert Texts().code(code, 1000) == markup


def test_no_code_takes_long_to_mark():
    for bad in ("'" * 6000, '"""' * 2000, "\\'" * 3000, "rb" * 3000, "'\\" * 3000, "#\n" * 3000):
        plain = re.sub(r"<[^>]+>", "", Texts().code(bad, 6000))
        assert plain.count("&") <= 6000


def test_one_line_is_cut_and_escaped_for_attributes():
    assert one("\"'<&>\n" * 3, 8) == "&quot;&#x27;&lt;&amp;&gt; &quot;…"


def test_a_trajectory_of_nothing_is_a_page_that_says_so():
    text = "".join(page(Trajectory(events=(), torn=True, skipped=1, cut=True)))
    assert "Nothing has happened in it yet." in text
    assert "1 line could not be read." in text


def test_events_and_fields_of_newer_versions_are_shown_as_such():
    events = (
        from_dict({"event": "dreamt", "about": "<sheep>"}),
        Planned(way="loop", extra={"mood": 1}),
    )
    text = "".join(page(Trajectory(events=events)))
    assert "dreamt: of a newer version, or malformed" in text
    assert "about &lt;sheep&gt;" in text
    assert "Also: mood 1" in text
