"""The page in a real browser, where there is one: no error, no request, <details> that open."""

import pytest
from browser import Browser, found
from runs import QUESTION, hostile, realistic

from atoll.agent.trajectory import Trajectory, TrajectoryWriter
from atoll.agent.trajectory.html import page

pytestmark = pytest.mark.skipif(found() is None, reason="no browser: apt-get install chromium")
LOUD = {
    "Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Page.javascriptDialogOpening",
}  # fmt: skip


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(str(tmp_path_factory.mktemp("browser"))) as opened:
        yield opened


@pytest.fixture
def load(browser, tmp_path):
    def load(story):
        writer, path = TrajectoryWriter(), tmp_path / "page.html"
        story(writer)
        path.write_text("".join(page(Trajectory(events=writer.events))), "utf-8")
        browser.events.clear()
        browser.open(path.as_uri())
        return path.as_uri()

    return load


@pytest.mark.parametrize("story", [realistic, hostile])
def test_a_page_asks_for_nothing_and_reports_no_error(browser, load, story):
    address = load(story)
    browser.js("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert (
        browser.js("document.scripts.length + document.images.length + document.links.length") == 0
    )
    assert browser.js("getComputedStyle(document.querySelector('pre')).whiteSpace").startswith(
        "pre"
    )
    asked = [
        one["params"]["request"]["url"]
        for one in browser.events
        if one["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [address]
    assert [one for one in browser.events if one["method"] in LOUD] == []


def test_the_policy_holds_off_a_script_that_got_in(browser, load):
    load(realistic)
    browser.js(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned=1\">')"
    )
    browser.js(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.owned=1'}))"
    )
    browser.wait("Log.entryAdded")
    assert browser.js("window.owned") is None
    assert "Content Security Policy" in str(
        [one for one in browser.events if one["method"] == "Log.entryAdded"]
    )


def test_a_turn_opens_by_a_click_and_shows_its_code(browser, load):
    load(realistic)
    turn = "[...document.querySelectorAll('h3')].find(one => one.textContent === 'Turn 1')"
    assert browser.js("document.querySelector('h1').textContent") == QUESTION
    assert browser.js(f"{turn}.closest('details').querySelector('pre').checkVisibility()") is False
    browser.js(f"{turn}.scrollIntoView({{block: 'center'}})")
    x, y = browser.js(
        f"(r => [r.x + r.width / 2, r.y + r.height / 2])({turn}.getBoundingClientRect())"
    )
    browser.click(x, y)
    assert browser.js(f"{turn}.closest('details').open") is True
    assert browser.js(f"{turn}.closest('details').querySelector('pre').checkVisibility()") is True


@pytest.mark.parametrize("story", [realistic, hostile])
def test_a_page_is_never_wider_than_its_window(browser, load, story):
    load(story)
    browser.js("document.querySelectorAll('details').forEach(one => one.open = true)")
    for width in (360, 1200):
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        browser.call("Emulation.setDeviceMetricsOverride", **size)
        assert browser.js("document.documentElement.scrollWidth") <= width
