"""The console for people who do not use a mouse or do not see well: axe-core, and the keyboard alone."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import console_browser as browser
import pytest
from clients import Api

from atoll.agent.trajectory import events as kinds
from atoll.agent.trajectory.events import to_dict
from atoll.service.access.keys import SCOPES

pytestmark = [
    pytest.mark.long,  # each page is examined by a program of 500 KB
    pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the PATH"),
]
ROOT = Path(__file__).resolve().parents[2]
AXE = {
    "version": "4.14.0",
    "integrity": "sha512-9WTZxEjsZ7b13TH8JPmbV2z8CHbl80/2hm3XPEG4JgNdQLK81IBRXmSxHfMAOkSqQeRxT/0dwNDz2GOm3zzpcQ==",
}
LOOKS = {
    "light": {"width": 1280, "height": 860},
    "dark": {"width": 1280, "height": 860, "dark": True},
    "phone": {"width": 390, "height": 844},
    "phone, dark": {"width": 390, "height": 844, "dark": True},
}
RUN_AXE = """axe.run(document, { iframes: false, resultTypes: ['violations'] }).then((found) =>
  found.violations.map((one) => `${one.id} (${one.impact}): ${one.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + (n.any[0]?.message ?? '')).join(' | ')}`))"""
SHOWN = "document.querySelector('main h1') && !document.querySelector('main .loading')"


@pytest.fixture(scope="module")
def axe():
    """The text of axe-core, which npm fetches by version and hash; it is not part of Atoll."""
    spec = importlib.util.spec_from_file_location("vendor_axe", ROOT / "tools/vendor_console.py")
    tool = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = tool
    spec.loader.exec_module(tool)
    try:
        return tool.package_files("axe-core", AXE, ("axe.min.js",))["axe.min.js"].decode()
    except tool.VendorError as exc:
        pytest.skip(f"axe-core cannot be fetched: {exc}")


@pytest.fixture
def pages(service, chromium):
    """Routes of a tenant that has one of everything, and a function that opens a signed-in page."""
    with Api(service, service.add_key(tenant="reader", scopes=SCOPES)) as api:
        context = api.post("/api/v1/contexts", params={"name": "a.log"}, content=b"one\ntwo\n" * 99)
        ident = context.json()["id"]
        session = api.session(metadata={"name": "root"}, context={"id": ident})
        api.run(session, "print('out')\nopen('a.csv', 'w').write('k,v\\n1,2\\n')\nx = 1\nx")
        api.run(session, "#\n" * 60 + "print('long\\n' * 200)")
        api.run(session, "import sys\nprint('err', file=sys.stderr)\n1 / 0")
        api.post(f"{session}/checkpoints", json={"name": "good"})
        api.post(f"{session}/fork", json={"name": "twin"})
        run = api.post("/api/v1/runs/upload", content=_trajectory(ident)).json()["id"]
        routes = ["overview", "sessions", f"sessions/{session.rpartition('/')[2]}", "sessions/ses_none", "contexts",
                  f"contexts/{ident}", "runs", f"runs/{run}", "health", "keys", "operators"]  # fmt: skip

        def open_page(tenant="reader", **look):
            key = service.add_key(tenant=tenant, scopes=SCOPES).split("_")[1]
            secret = service.call(lambda: service.service.signins.secret(key))
            page = chromium.page(**look)
            page.goto(f"{service.url}/console#login={secret}")
            page.wait("document.querySelector('.rail')")
            return page

        yield routes, open_page
        for one in api.get("/api/v1/sessions?limit=200").json()["items"]:
            api.delete(f"/api/v1/sessions/{one['id']}")


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    "part", range(4)
)  # each in the time that one test may take on a busy machine
def test_axe_finds_nothing_on_any_page(service, pages, axe, look, part):
    routes, open_page = pages
    page, found = open_page(**LOOKS[look]), {}
    for route in routes[part::4]:
        page.goto(f"{service.url}/console#/{route}")
        page.wait(SHOWN, route)
        found[route] = _examined(page, axe)
        if "/ses_" in route and "none" not in route:
            page.wait("document.querySelector('.cell .error, .cell .badge.bad')")
            for tab in ("Files", "Variables", "Facts", "Tree"):
                page.run(f"[...document.querySelectorAll('[role=tab]')].find((one) => one.textContent === {tab!r}).click()")  # fmt: skip
                page.wait("!document.querySelector('.pane .loading')")
                found[f"{route} {tab}"] = _examined(page, axe)
            page.click(".head button", "Terminal")
            page.wait("document.querySelector('.terminals .xterm-rows')?.textContent.trim()")
            found[f"{route} terminal"] = _examined(page, axe)
    assert _told(found) == ""


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_in_dialogs_and_before_there_is_anything(
    service, chromium, pages, axe, look
):
    found, (_, open_page) = {}, pages
    page = chromium.page(**LOOKS[look])
    page.goto(f"{service.url}/console")
    page.wait("document.querySelector('.sign-in input')")
    found["sign-in"] = _examined(page, axe)
    page = open_page("nobody", **LOOKS[look])
    for route in ("overview", "sessions", "contexts", "runs"):
        page.goto(f"{service.url}/console#/{route}")
        page.wait(SHOWN, route)
        found[f"empty {route}"] = _examined(page, axe)
    for key, there in {"n": "dialog select", "?": ".shortcuts", "k": ".palette input"}.items():
        page.press(key, control=key == "k")
        page.wait(f"document.querySelector({there!r})")
        found[there] = _examined(page, axe)
        page.press("Escape")
        page.wait("!document.querySelector('dialog')")  # its input had the focus till then
    assert _told(found) == ""


@pytest.mark.parametrize("part", range(2))
def test_every_control_is_reached_by_tab_and_shows_that_it_has_the_focus(service, pages, part):
    routes, open_page = pages
    page = open_page()
    for route in routes[part::2]:
        page.goto(f"{service.url}/console#/{route}")
        page.wait(SHOWN, route)
        page.run("document.activeElement.blur(); window.reached = new Set(); window.faint = []")
        count = page.run(STOPS)
        for _ in range(count + 10):
            page.press("Tab")
            page.run(NOTE)
        missed = page.run(f"{CONTROLS}.filter((one) => !reached.has(one)).map((one) => one.outerHTML.slice(0, 120))")  # fmt: skip
        assert (missed, page.run("faint")) == ([], []), route


CONTROLS = """[...document.querySelectorAll('main a[href], main button, main input, main select, main textarea, .rail a, .rail button')]
  .filter((one) => !one.disabled && one.offsetParent && !one.closest('[inert]') && one.tabIndex >= 0)"""
STOPS = "[...document.querySelectorAll('*')].filter((one) => one.tabIndex >= 0).length"
NOTE = """(() => { const one = document.activeElement; reached.add(one);
  if (one === document.body || one.matches('.code-editor')) return;  // its frame has a line around it
  const looks = getComputedStyle(one); if (looks.outlineStyle === 'none' && looks.boxShadow === 'none') faint.push(one.outerHTML.slice(0, 120)); })()"""


def _examined(page, axe):
    if not page.run("Boolean(window.axe)"):
        page.run(f"{axe}\n;1")
    return page.run(RUN_AXE)


def _told(found):
    return "\n".join(f"{name}: {one}" for name, all_of in found.items() for one in all_of)


def _trajectory(context):
    found = [
        kinds.RunStarted(id="1", run="r", question="How many?", model="m", budget={"usd": 1.0}, context={"id": context}),
        kinds.CodeRan(id="2", run="r", turn=1, code="len(context)", observation="8", outcome="ok", duration_ms=5),
        kinds.SubcallStarted(id="3", run="r", call="s", kind="llm_query", prompt="Count"),
        kinds.SubcallEnded(id="4", run="r", call="s", answer="8", ended="ok"),
        kinds.FinalGiven(id="5", run="r", how="FINAL", text="Eight.", evidence=({"quote": "one", "found": True, "start": 0, "end": 3},)),
        kinds.RunEnded(id="6", run="r", outcome="answered", usd=0.25, seconds=1.0),
    ]  # fmt: skip
    return "\n".join(json.dumps(to_dict(one)) for one in found).encode()
