"""The console's terminal in a real Chromium: typed into, resized, left and found again, attacked."""

from __future__ import annotations

import json

import console_browser as browser
import pytest
from clients import Api

from atoll.service.access.keys import SCOPES

pytestmark = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the PATH")

SCREEN = "document.querySelector('.xterm-rows')?.innerText.replaceAll('\\u00a0', ' ')"
ESC, BEL = "\x1b", "\x07"
HOSTILE = {
    "title": f"{ESC}]0;stolen title{BEL}{ESC}]2;stolen title{BEL}",
    "clipboard": f"{ESC}]52;c;c3RvbGVu{BEL}",
    "link": f"{ESC}]8;;javascript:window.__xss=1{BEL}link-to-press{ESC}]8;;{BEL}",
    "markup": "<img src=x onerror=window.__xss=1><script>window.__xss=1</script>",
    "counts": "".join(f"x{ESC}[2147483647{final}" for final in "bILMSTZ")
    + f"{ESC}[2147483647'}}{ESC}[2147483647'~{ESC}[2147483647 @{ESC}[2147483647 A",
    "window": f"{ESC}[8;9999;9999t{ESC}[3;0;0t{ESC}[21t{ESC}[14t",
    "strings": f"{ESC}P{'q' * 100_000}{ESC}\\{ESC}_{'x' * 100_000}{ESC}\\",
    "marks": "\u202e\u2066" + "e" + "\u0301" * 5000,
}


@pytest.fixture
def shell(signed_in, service):
    """Open a session's page with its terminal; return the page, a client and the session's path."""
    clients, pages = [], []

    def open_shell(tenant, **options):
        page = signed_in(tenant, **options)
        api = Api(service, service.add_key(tenant=tenant, scopes=SCOPES))
        clients.append(api)
        pages.append(page)
        session = api.session()
        page.goto(f"{service.url}/console#/sessions/{session.rpartition('/')[2]}")
        page.click(".head button", "Terminal")
        page.wait(f"/[$#] *$/.test({SCREEN}.trimEnd())", "a prompt")
        return page, api, session

    yield open_shell
    for page in pages:
        page.goto("about:blank")
    for api in clients:
        for one in api.get("/api/v1/sessions?limit=200").json()["items"]:
            api.delete(f"/api/v1/sessions/{one['id']}")
        api.close()


def typed(page, line):
    for key in line:
        page.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
    page.press("Enter")


def shows(page, text):
    page.wait(f"{SCREEN}.includes({json.dumps(text)})", f"{text!r} on the screen")


def test_a_shell_is_typed_into_resized_and_has_colours(shell):
    page, _, _ = shell("typist", width=1500)
    typed(page, r"printf '\e[31mred\e[0m \e[38;2;1;200;3mtrue\e[0m %s\n' $((6*7)); stty size")
    shows(page, "red true 42")
    columns = int(page.run(f"{SCREEN}.match(/^\\d+ (\\d+)$/m)[1]"))
    colours = page.run(
        "['red', 'true'].map((word) => getComputedStyle([...document.querySelectorAll('.xterm-rows span')].findLast((one) => one.textContent.startsWith(word))).color)"
    )
    assert len(set(colours)) == 2
    assert page.run("getComputedStyle(document.querySelector('.xterm-rows')).color") not in colours
    page.size(700, 860)
    typed(page, "clear; until [ $(stty size | cut -d' ' -f2) -lt 90 ]; do :; done; echo nar''row")
    shows(page, "narrow")
    assert columns > 90
    typed(page, "echo sl''eeps; sleep 1000")
    shows(page, "\nsleeps")
    page.press("c", control=True)
    page.wait(f"/sleeps\\s+\\^C\\s+bash\\S+ *$/.test({SCREEN}.trimEnd())", "a prompt")
    typed(page, "echo $?")
    shows(page, "130")
    page.press("k", control=True)  # the shell's, not the console's palette
    assert not page.run("Boolean(document.querySelector('.palette'))")


def test_a_terminal_runs_on_when_the_page_is_left_and_is_found_again(shell):
    page, api, session = shell("walker")
    typed(page, "name=atoll; printf '\\e[c'; read -rs -d c answer; echo ok''ay")
    shows(page, "okay")
    page.run("window.old = true; location.reload()")
    page.wait("!window.old && document.querySelector('.head button')")
    page.click(".head button", "Terminal")
    shows(page, "okay")  # out of what the service kept; its questions are not answered again
    typed(page, "echo $name-$name")
    shows(page, "atoll-atoll")
    assert "2c" not in page.run(SCREEN).rpartition("okay")[2]
    running = [one for one in api.get(f"{session}/processes").json()["items"] if one["running"]]
    assert len(running) == 1
    page.click(".terminals button", "New")
    page.wait("document.querySelectorAll('.terminals [aria-pressed]').length === 2")
    page.click(".terminals button", "Terminal 1")
    shows(page, "atoll-atoll")
    typed(page, "exit 3")
    page.see("It has ended with 3.")


def test_a_connection_that_breaks_goes_on_where_it_was(shell):
    page, _, _ = shell("cutter")
    typed(page, "echo be''fore")
    shows(page, "before")
    page.run("""(() => {
      const real = window.fetch;
      window.cuts = 0;
      window.fetch = async (path, options) => {
        const found = await real(path, options);
        if (!path.includes('/events?out=') || (window.cuts += 1) > 2) return found;
        const [reader, pieces] = [found.body.getReader(), []];
        return new Response(new ReadableStream({ async pull(to) {
          if (pieces.length) return to.error(new TypeError('cut'));
          pieces.push((await reader.read()).value);
          to.enqueue(pieces[0]);
        } }));
      };
    })()""")
    page.click(".terminals button", "Terminal 1")
    page.wait("window.cuts > 2")  # each time its first words came, then no more
    shows(page, "before")
    typed(page, "echo af''ter")
    shows(page, "after")
    assert page.run(f"{SCREEN}.match(/^before$/gm).length") == 1


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_output_does_no_harm(shell, kind):
    page, api, session = shell(f"victim-{kind}")
    before = page.run("[document.title, location.href]")
    api.put(f"{session}/files/content", params={"path": "out"}, content=HOSTILE[kind].encode())
    page.run("window.wrote = []; navigator.clipboard.writeText = async (text) => wrote.push(text)")
    page.run("window.open = (...where) => wrote.push(where)")
    typed(page, "cat out; echo; printf '\\ec'; echo still''-here")
    shows(page, "still-here")
    if kind == "link":
        typed(page, "clear; cat out")
        shows(page, "link-to-press")
        spot = page.run(
            "(({x, y}) => [x + 8, y + 8])([...document.querySelectorAll('.xterm-rows > div')].find((one) => one.textContent.startsWith('link-to')).getBoundingClientRect())"
        )
        for kind_of in ("mouseMoved", "mousePressed", "mouseReleased"):
            more = {} if kind_of == "mouseMoved" else {"button": "left", "clickCount": 1}
            page.send("Input.dispatchMouseEvent", type=kind_of, x=spot[0], y=spot[1], **more)
            page.run("new Promise((then) => requestAnimationFrame(() => setTimeout(then, 100)))")
        page.see("It is not opened.")
        page.see("javascript:window.__xss=1")
    assert page.run("[document.title, location.href]") == before
    assert page.run("[window.__xss ?? null, wrote.length]") == [None, 0]
    assert not page.run("Boolean(document.querySelector('.xterm img, .xterm script'))")


def test_a_flood_of_output_leaves_the_page_usable(shell):
    page, _, _ = shell("flooded")
    typed(page, "yes 'a line of a flood that does not end' & sleep 2; kill %1; clear; echo do''ne")
    page.run("new Promise((then) => setTimeout(then, 500))")
    assert page.run("1 + 1") == 2
    shows(page, "done")


@pytest.mark.parametrize("look", [{}, {"dark": True}, {"width": 390, "height": 844}])
def test_it_fits_and_takes_the_page_s_colours(shell, look):
    page, _, _ = shell("reader", **look)
    assert page.run("document.documentElement.scrollWidth") <= look.get("width", 1280)
    ground = page.run("getComputedStyle(document.querySelector('.xterm-scrollable-element')).backgroundColor")  # fmt: skip
    assert ground == ("rgb(22, 27, 28)" if look.get("dark") else "rgb(255, 255, 255)")
    page.run("document.documentElement.dataset.theme = 'dark'")
    page.wait("getComputedStyle(document.querySelector('.xterm-scrollable-element')).backgroundColor === 'rgb(22, 27, 28)'")  # fmt: skip
