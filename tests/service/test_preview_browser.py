"""Previews in a real Chromium: opened from the console, kept apart from it and from each other."""

from __future__ import annotations

import json

import console_browser as browser
import pytest
from test_previews import Preview, shown  # noqa: F401 - a fixture

from atoll.service.access.keys import SCOPES

pytestmark = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the PATH")

PAGE = """
import http.server, threading
class Page(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self):
        body = b'<!doctype html><title>guest</title><h1>page of the guest</h1>'
        if self.path == '/cookies':
            body = (self.headers.get('cookie') or 'none').encode()
        self.send_response(200)
        self.send_header('content-type', 'text/html')
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
pages = http.server.ThreadingHTTPServer(('127.0.0.1', 9000), Page)
threading.Thread(target=pages.serve_forever, daemon=True).start()
"""


@pytest.fixture
def two(shown):  # noqa: F811
    """Previews of two tenants, with pages on port 9000."""
    made = [Preview(shown, tenant=name) for name in ("reader", "stranger")]
    for one in made:
        one.api.run(one.path, PAGE)
        one.link = one.expose(9000)
    yield made
    for one in made:
        one.end()


def fetched(page, url, options):
    """What a script of the page gets: the text, or `refused`."""
    script = f"fetch({json.dumps(url)}, {json.dumps(options)}).then(r => r.text())"
    return page.run(f"{script}.catch(() => 'refused')")


def test_a_link_opens_the_page_and_leaves_no_token_in_the_address(chromium, two):
    page, link = chromium.page(), two[0].link
    page.goto(link["url"])
    page.see("page of the guest")
    assert page.run("location.href") == f"http://{link['host']}/"
    assert page.run("document.cookie") == ""
    page.run("document.cookie = 'own=1'")
    assert fetched(page, "/cookies", {}) == "own=1"


def test_pages_of_two_previews_and_the_console_cannot_use_each_other(chromium, two, shown):  # noqa: F811
    page = chromium.page()
    for one in two:  # a visitor of both
        page.goto(one.link["url"])
        page.see("page of the guest")
    own, other = two[1], two[0]
    url = f"http://{other.link['host']}/cookies"
    assert fetched(page, url, {"credentials": "include"}) == "refused"
    opened = (
        "new Promise(done => {{ const s = new WebSocket({}); s.onopen = () => done('open');"
        " s.onerror = () => done('refused') }})"
    )
    assert page.run(opened.format(json.dumps(f"ws://{other.link['host']}/ws"))) == "refused"
    page.run(f"document.body.innerHTML = '<iframe src=http://{other.link['host']}/></iframe>'")
    page.wait("document.querySelector('iframe').contentDocument === null")
    console = f"{shown.url}/api/v1/sessions"
    assert fetched(page, console, {"credentials": "include"}) == "refused"
    assert fetched(page, "/cookies", {}) == "none", own.link


def test_the_console_lists_ports_and_opens_a_preview(chromium, two, shown):  # noqa: F811
    ident = shown.add_key(tenant="reader", scopes=SCOPES).split("_")[1]
    secret = shown.call(lambda: shown.service.signins.secret(ident))
    page = chromium.page()
    page.goto(f"{shown.url}/console#login={secret}")
    page.wait("document.querySelector('.rail')")
    page.run(f"location.hash = '#/sessions/{two[0].path.rpartition('/')[2]}'")
    page.click("[role=tab]", "Ports")
    page.see("9000")
    page.run("window.open = (...asked) => { window.asked = asked }")
    page.click("tr:nth-child(2) button", "Open")
    page.wait("window.asked")
    url, *how = page.run("window.asked")
    assert how == ["_blank", "noopener"]
    visitor = chromium.page()
    visitor.goto(url)
    visitor.see("page of the guest")
    assert fetched(visitor, "/cookies", {}) == "none"
