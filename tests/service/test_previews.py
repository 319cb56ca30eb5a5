"""Previews of servers in sessions: what visitors see, and what they, pages and guests cannot do."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from clients import Api
from own_service import OwnService

import atoll
from atoll.service import clock
from atoll.service.access.keys import SCOPES, Quota
from atoll.service.previews.limits import VisitorLimits

SERVER = """
import base64, hashlib, http.server, json, threading
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def log_message(self, *_): pass
    def do_GET(self):
        if self.path == '/events':
            self.send_response(200)
            self.send_header('content-type', 'text/event-stream')
            self.end_headers()
            for number in range(3):
                self.wfile.write(b'data: %d\\n\\n' % number)
                self.wfile.flush()
                self.rfile.read(0)
            self.close_connection = True
            return
        if self.headers.get('upgrade') == 'websocket':
            key = self.headers['sec-websocket-key'] + '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
            made = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_response(101)
            for pair in (('upgrade', 'websocket'), ('connection', 'upgrade')):
                self.send_header(*pair)
            self.send_header('sec-websocket-accept', made)
            self.end_headers()
            self.wfile.write(b'first')
            while data := self.connection.recv(65536):
                self.wfile.write(data.upper())
            self.close_connection = True
            return
        self.answer()
    def answer(self):
        if self.headers.get('transfer-encoding'):
            body = b''
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get('content-length') or 0))
        seen = {'path': self.path, 'method': self.command, 'body': body.decode('latin-1')}
        seen['headers'] = [[name.lower(), value] for name, value in self.headers.items()]
        data = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header('content-length', str(len(data)))
        self.send_header('set-cookie', 'app=1; Domain=localhost; Path=/')
        self.send_header('set-cookie', 'atoll-preview=stolen; Path=/')
        self.send_header('set-cookie', 'atoll_8437=stolen; Path=/')
        self.send_header('clear-site-data', '"cookies"')
        self.send_header('alt-svc', 'h3=":1"')
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(data)
    do_POST = do_HEAD = do_PUT = answer
server = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnService]:
    made = OwnService(tmp_path_factory.mktemp("previews"), preview_port=0, tier="bare")
    made.start()
    yield made
    made.stop()


class Preview:
    """A session with a server, and its preview."""

    def __init__(self, shown: OwnService, **key: Any) -> None:
        self.shown, self.key = shown, shown.add_key(scopes=SCOPES, **key)
        self.api = Api(shown, self.key)
        self.path = self.api.session()
        assert self.api.run(self.path, SERVER)["kind"] == "ok"
        self.link = self.expose()

    def expose(self, port: int = 8000, **body: Any) -> dict[str, Any]:
        made = self.api.post(f"{self.path}/ports/{port}/expose", json=body)
        assert made.status_code == 200, made.text
        return made.json()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.shown.service.previews.site.port

    def get(self, path: str = "/", method: str = "GET", **headers: str) -> httpx2.Response:
        """Visit; `token` is shown unless it is given as an empty text."""
        headers = {"host": self.link["host"], "atoll_preview": self.link["token"], **headers}
        given = {name.replace("_", "-"): text for name, text in headers.items() if text}
        url = "http://{}:{}".format(*self.address) + path
        with httpx2.Client(trust_env=False, timeout=30) as client:
            return client.request(method, url, headers=given)

    def raw(self, text: str) -> bytes:
        with socket.create_connection(self.address, 30) as sock:
            sock.sendall(text.encode("latin-1"))
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def seen(self, response: httpx2.Response) -> dict[str, str]:
        assert response.status_code == 200, response.text
        return dict(response.json()["headers"])

    def end(self) -> None:
        self.api.delete(self.path)
        self.api.close()


@pytest.fixture(scope="module")
def one(shown: OwnService) -> Iterator[Preview]:
    made = Preview(shown, tenant="one")
    yield made
    made.end()


@pytest.fixture
def own(shown: OwnService) -> Iterator[Preview]:
    made = Preview(shown, tenant="own")
    yield made
    made.end()


def cookie(preview: Preview) -> str:
    return f"atoll-preview={preview.link['token']}"


def refused(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.headers.get("x-atoll-refused", "")


def test_ports_are_listed_and_a_link_has_a_host_of_its_own(one: Preview) -> None:
    listed = one.api.get(f"{one.path}/ports").json()
    assert listed == {
        "items": [{"port": 8000, "address": "127.0.0.1", "public": False}],
        "previews": True,
    }
    ident = one.path.rpartition("/")[2].lower()
    assert one.link["host"] == f"8000-{ident}.localhost:{one.address[1]}"
    assert one.link["url"] == f"http://{one.link['host']}/?atoll-preview={one.link['token']}"


def test_a_browser_that_follows_a_link_gets_a_cookie_and_a_clean_address(one: Preview) -> None:
    token = one.link["token"]
    found = one.get(
        f"/a/b?x=1&atoll-preview={token}&y=2", atoll_preview="", sec_fetch_mode="navigate"
    )
    whole = f"http://{one.link['host']}/a/b?x=1&y=2"
    assert (found.status_code, found.headers["location"]) == (303, whole)
    given = found.headers["set-cookie"]
    assert given.startswith(f"atoll-preview={token}; Path=/; HttpOnly; SameSite=Lax; Max-Age=")
    assert "domain" not in given.lower()
    assert one.get("/a", atoll_preview="", cookie=cookie(one)).json()["path"] == "/a"


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "/%5cevil.example/"])
def test_a_link_never_leads_to_another_host(one: Preview, path: str) -> None:
    head = f"Host: {one.link['host']}\r\nSec-Fetch-Mode: navigate\r\n"
    answer = one.raw(f"GET {path}?atoll-preview={one.link['token']} HTTP/1.1\r\n{head}\r\n")
    assert f"location: http://{one.link['host']}{path}\r\n".encode() in answer


def test_many_visitors_at_once(one: Preview) -> None:
    shown = {"atoll-preview": one.link["token"]}
    opened = [websocket(one, **shown) for _ in range(100)]
    try:
        assert all(b" 101 " in head for _, head in opened)
        for sock, _ in opened:
            sock.sendall(b"x")
        for sock, head in opened:
            rest = head.partition(b"\r\n\r\n")[2]
            while len(rest) < len(b"firstX"):
                rest += sock.recv(100)
            assert rest == b"firstX"
    finally:
        for sock, _ in opened:
            sock.close()


def test_a_program_may_show_its_token_in_the_address(one: Preview) -> None:
    found = one.get(f"/a?atoll-preview={one.link['token']}", atoll_preview="")
    assert found.json()["path"] == "/a"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
def test_requests_reach_the_server_in_the_guest(one: Preview, method: str) -> None:
    found = one.get("/x?y=%20", method)
    assert found.status_code == 200
    assert method == "HEAD" or found.json()["path"] == "/x?y=%20"


def test_bodies_with_a_length_and_in_chunks_arrive(one: Preview) -> None:
    host, token = one.link["host"], one.link["token"]
    head = f"POST / HTTP/1.1\r\nHost: {host}\r\natoll-preview: {token}\r\nConnection: close\r\n"
    for rest in (
        "Content-Length: 3\r\n\r\nabc",
        "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
        "Content-Length: 3\r\nExpect: 100-continue\r\n\r\nabc",
    ):
        assert json.loads(one.raw(head + rest).rpartition(b"\r\n\r\n")[2])["body"] == "abc"


def test_server_sent_events_come_as_they_are_sent(one: Preview) -> None:
    assert one.get("/events").text == "data: 0\n\ndata: 1\n\ndata: 2\n\n"


def websocket(one: Preview, **headers: str) -> tuple[socket.socket, bytes]:
    sock = socket.create_connection(one.address, 30)
    given = {"Host": one.link["host"], "Upgrade": "websocket", "Connection": "keep-alive, Upgrade"}
    given |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13"}
    lines = [f"{name}: {text}" for name, text in {**given, **headers}.items()]
    sock.sendall("\r\n".join(["GET /ws HTTP/1.1", *lines, "", ""]).encode())
    head = b""
    while b"\r\n\r\n" not in head and (data := sock.recv(65536)):
        head += data
    return sock, head


def test_a_websocket_carries_bytes_both_ways(one: Preview) -> None:
    origin = f"http://{one.link['host']}"
    sock, head = websocket(one, Cookie=cookie(one), Origin=origin)
    with sock:
        assert b" 101 " in head.split(b"\r\n")[0]
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
        rest = head.partition(b"\r\n\r\n")[2]
        while len(rest) < len(b"first"):
            rest += sock.recv(100)
        sock.sendall(b"abc")
        assert rest + sock.recv(100) == b"firstABC"


def test_cookies_and_keys_of_the_service_never_reach_a_guest(one: Preview) -> None:
    seen = one.seen(
        one.get(
            atoll_preview="",
            cookie=f"a=1; {cookie(one)}; atoll_8437=secret; __Host-atoll=secret; b=2",
            authorization=f"Bearer {one.key}",
            x_api_key=one.key,
            x_forwarded_for="1.2.3.4",
            x_atoll_csrf="secret",
        )
    )
    assert seen["cookie"] == "a=1; b=2"
    assert seen["x-forwarded-host"] == seen["host"] == one.link["host"]
    assert not {"authorization", "x-api-key", "x-forwarded-for", "x-atoll-csrf"} & set(seen)
    assert not {"atoll-preview"} & set(seen)
    assert one.seen(one.get(authorization="Basic dTpw"))["authorization"] == "Basic dTpw"


def test_a_guest_sets_cookies_for_its_own_host_alone(one: Preview) -> None:
    found = one.get()
    assert found.headers.get_list("set-cookie") == ["app=1; Path=/"]
    assert not {"clear-site-data", "alt-svc"} & set(found.headers)
    assert found.headers["cache-control"] == "private"


@pytest.mark.parametrize(
    "token", ["", "x", "1.2.3", "9999999999.0123abcd.", f"9999999999.00000000.{'A' * 43}"]
)
def test_a_missing_or_forged_token_is_refused(one: Preview, token: str) -> None:
    assert refused(one.get(atoll_preview=token)) == (403, "preview")
    assert refused(one.get(atoll_preview="", cookie=f"atoll-preview={token}")) == (403, "preview")


def test_a_token_opens_one_port_of_one_session(one: Preview, own: Preview) -> None:
    other = one.link["host"].replace("8000-", "8001-", 1)
    assert refused(one.get(host=other)) == (403, "preview")
    assert refused(one.get(host=own.link["host"])) == (403, "preview")
    assert refused(one.get(atoll_preview=own.link["token"])) == (403, "preview")
    until, key, signature = one.link["token"].split(".")
    later = f"{int(until) + 1}.{key}.{signature}"
    assert refused(one.get(atoll_preview=later)) == (403, "preview")


def test_an_expired_token_is_refused(own: Preview, monkeypatch: pytest.MonkeyPatch) -> None:
    own.link = own.expose(seconds=60)
    assert own.get().status_code == 200
    later = time.time() + 61
    monkeypatch.setattr(clock, "now", lambda: later)
    assert refused(own.get()) == (403, "preview")


def test_a_key_that_is_revoked_shows_nothing_any_more(own: Preview) -> None:
    sock, head = websocket(own, **{"atoll-preview": own.link["token"]})
    with sock:
        assert b" 101 " in head
        keys, streams = own.shown.service.keys, own.shown.service.streams
        own.shown.call(lambda: (keys.revoke(own.key.split("_")[1]), streams.end_refused()))
        while sock.recv(100):  # until it is closed
            pass
    assert refused(own.get()) == (403, "preview")


def test_a_session_that_was_deleted_shows_nothing_any_more(own: Preview) -> None:
    sock, head = websocket(own, **{"atoll-preview": own.link["token"]})
    with sock:
        assert b" 101 " in head
        own.api.delete(own.path)
        while sock.recv(100):
            pass
    assert refused(own.get()) == (403, "preview")


def test_a_public_port_needs_no_token_until_it_is_withdrawn(own: Preview) -> None:
    private, public = own.link, own.expose(public=True)
    assert public["token"] is None
    assert public["url"] == f"http://{private['host']}/"
    assert own.get(atoll_preview="").status_code == 200
    assert own.api.get(f"{own.path}/ports").json()["items"][0]["public"] is True
    assert own.api.delete(f"{own.path}/ports/8000/expose").status_code == 204
    assert refused(own.get(atoll_preview="")) == (403, "preview")
    assert refused(own.get(atoll_preview=private["token"])) == (403, "preview")


def test_another_tenant_neither_sees_nor_exposes_a_port(own: Preview) -> None:
    with Api(own.shown, own.shown.add_key(tenant="stranger", scopes=SCOPES)) as stranger:
        assert stranger.get(f"{own.path}/ports").status_code == 404
        assert stranger.post(f"{own.path}/ports/8000/expose", json={}).status_code == 404
        assert stranger.delete(f"{own.path}/ports/8000/expose").status_code == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "evil.example", "localhost", "8000-x.evil.example"])
def test_a_host_of_somebody_else_is_refused(one: Preview, host: str) -> None:
    assert refused(one.get(host=host)) == (421, "host")


def test_another_page_cannot_use_a_visitors_cookie(one: Preview, own: Preview) -> None:
    mine = {"atoll_preview": "", "cookie": cookie(one)}
    page = f"http://{own.link['host']}"
    assert refused(one.get(**mine, origin=page)) == (403, "origin")
    assert refused(one.get("/", "POST", **mine, origin="null")) == (403, "origin")
    for site in ("same-site", "cross-site"):
        assert refused(one.get(**mine, sec_fetch_site=site)) == (403, "origin")
        frame = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
        assert refused(one.get(**mine, **frame)) == (403, "origin")
        assert one.get(**mine, **{**frame, "sec_fetch_dest": "document"}).status_code == 200
    sock, head = websocket(one, Cookie=cookie(one), Origin=page)
    sock.close()
    assert b" 403 " in head
    assert one.get(**mine, origin=f"http://{one.link['host']}").status_code == 200


def test_the_consoles_pages_are_not_at_a_preview_nor_previews_at_the_console(one: Preview) -> None:
    assert one.get("/console", atoll_preview="").status_code == 403
    assert one.api.get("/", headers={"host": one.link["host"]}).status_code == 421


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        ("POST / HTTP/1.1", "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", 400),
        ("POST / HTTP/1.1", "Content-Length: 3\r\nContent-Length: 4\r\n", 400),
        ("POST / HTTP/1.1", "Transfer-Encoding: chunked, gzip\r\n", 400),
        ("POST / HTTP/1.0", "Transfer-Encoding: chunked\r\n", 400),
        ("GET http://evil.example/ HTTP/1.1", "", 400),
        ("CONNECT 127.0.0.1:80 HTTP/1.1", "", 405),
        ("GET / HTTP/1.1", "Host: evil.example\r\n", 400),
        ("GET / HTTP/1.1", "X: a\x00b\r\n", 400),
        ("GET / HTTP/1.1", "Bad Name: x\r\n", 400),
        ("nothing", "", 400),
    ],
)
def test_ambiguous_requests_are_refused(
    one: Preview, request_line: str, headers: str, status: int
) -> None:
    head = f"Host: {one.link['host']}\r\natoll-preview: {one.link['token']}\r\n"
    answer = one.raw(f"{request_line}\r\n{head}{headers}\r\n")
    assert answer.split()[1:2] == [str(status).encode()]
    assert answer.count(b"HTTP/1.") == 1


def test_a_smuggled_request_is_part_of_the_first_ones_body(one: Preview) -> None:
    inner = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"Host: {one.link['host']}\r\natoll-preview: {one.link['token']}\r\n"
    sent = f"POST /a HTTP/1.1\r\n{head}Content-Length: {len(inner)}\r\n\r\n{inner}"
    sent += f"GET /b HTTP/1.1\r\n{head}Connection: close\r\n\r\n"
    answer = one.raw(sent)
    assert answer.count(b"HTTP/1.1 200") == 2
    assert [b'"path": "/a"' in answer, b'"path": "/b"' in answer] == [True, True]
    assert b'"path": "/smuggled"' not in answer


def test_a_port_without_a_server_says_so(own: Preview) -> None:
    own.link = own.expose(4000)
    found = own.get()
    assert refused(found) == (502, "preview_server")
    assert "port 4000 of the sandbox: nothing listens there" in found.text


def test_a_paused_session_is_not_woken_by_visitors(own: Preview) -> None:
    assert own.api.post(f"{own.path}/pause").status_code < 300
    assert refused(own.get()) == (503, "paused")
    assert own.api.get(own.path).json()["state"] == "paused"


def test_a_flood_of_visitors_is_stopped_by_the_limits_of_the_key(shown: OwnService) -> None:
    quota = Quota(
        requests_per_second=1e6,
        burst=10**6,
        memory_bytes=None,
        preview_requests_per_second=1,
        preview_connections=2,
        preview_bytes_per_day=100_000,
    )
    made = Preview(shown, tenant="flooded", quota=quota)
    try:
        opened = [websocket(made, **{"atoll-preview": made.link["token"]}) for _ in range(3)]
        assert [b" 101 " in head for _, head in opened] == [True, True, False]
        assert b" 429 " in opened[2][1]
        for sock, _ in opened:
            sock.close()
        answers = [refused(made.get()) for _ in range(20)]
        assert (429, "rate_limited") in answers
        assert made.api.get(made.path).status_code == 200  # the key's own requests go on
        traffic = shown.call(lambda: shown.service.previews.limits.of(_principal(shown, made)))
        assert traffic.requests > 0
        assert traffic.bytes > 0
        rows = made.api.get("/api/v1/usage").json()["items"]
        (used,) = (row for row in rows if row["tenant"] == "flooded")
        assert (used["preview_requests"], used["preview_bytes"]) == (
            traffic.requests,
            traffic.bytes,
        )
        again = shown.call(  # as a service that is started again
            lambda: VisitorLimits(shown.service.database, None).of(_principal(shown, made))
        )
        assert (again.requests, again.bytes) == (traffic.requests, traffic.bytes)
    finally:
        made.end()


def test_the_volume_of_a_day_is_limited(shown: OwnService) -> None:
    quota = Quota(
        requests_per_second=1e6, burst=10**6, memory_bytes=None, preview_bytes_per_day=2000
    )
    made = Preview(shown, tenant="volume", quota=quota)
    try:
        answers = [refused(made.get()) for _ in range(8)]
        assert answers[0] == (200, "")
        assert answers[-1] == (429, "rate_limited")
    finally:
        made.end()


def _principal(shown: OwnService, made: Preview) -> Any:
    return shown.service.sessions.find(made.path.rpartition("/")[2]).principal


def test_a_service_without_a_listener_says_what_to_type(api: Api) -> None:
    path = api.session()
    assert api.get(f"{path}/ports").json() == {"items": [], "previews": False}
    found = api.post(f"{path}/ports/8000/expose", json={})
    assert (found.status_code, found.json()["code"]) == (501, "unsupported")
    assert "start it with --preview-port PORT" in found.json()["detail"]


@pytest.mark.parametrize("port", ["0", "65536", "x", "-1"])
def test_a_port_must_be_a_number_of_a_port(one: Preview, port: str) -> None:
    found = one.api.post(f"{one.path}/ports/{port}/expose", json={})
    assert (found.status_code, found.json()["code"]) == (400, "invalid")


@pytest.mark.parametrize("body", [{"seconds": 0}, {"seconds": 1e9}, {"public": "yes"}, {"x": 1}])
def test_what_a_preview_is_asked_for_is_checked(one: Preview, body: Any) -> None:
    assert one.api.post(f"{one.path}/ports/8000/expose", json=body).status_code in (400, 422)


def test_e2bs_sandboxes_are_reached_at_get_host(shown: OwnService) -> None:
    key = shown.add_key(tenant="e2b", scopes=SCOPES)
    with httpx2.Client(base_url=f"{shown.url}/e2b", trust_env=False, timeout=30) as http:
        hosts = []
        for network in ({}, {"network": {"allowPublicTraffic": False}}):
            made = http.post("/v2/sandboxes", json=network, headers={"x-api-key": key}).json()
            ident, place = made["sandboxID"], made["domain"]
            headers = {"e2b-sandbox-id": ident, "x-access-token": made["envdAccessToken"]}
            http.post("/execute", json={"code": SERVER}, headers=headers)
            hosts.append((f"8000-{ident}.{place}", made["trafficAccessToken"]))
        visitor = Preview.__new__(Preview)
        visitor.shown, visitor.link = shown, {"host": "", "token": ""}
        assert visitor.get(host=hosts[0][0]).status_code == 200
        assert refused(visitor.get(host=hosts[1][0])) == (403, "preview")
        private = visitor.get(host=hosts[1][0], e2b_traffic_access_token=hosts[1][1])
        assert "e2b-traffic-access-token" not in visitor.seen(private)
        for host, _ in hosts:
            http.delete(
                f"/sandboxes/{host.split('-', 1)[1].split('.')[0]}", headers={"x-api-key": key}
            )


def test_a_remote_sandbox_exposes_its_ports(shown: OwnService) -> None:
    with atoll.create_sandbox(backend="remote", url=shown.url, api_key=shown.key) as box:
        box.execute(SERVER)
        made = box.expose(8000, seconds=60)
        assert made.url.endswith(f"/?atoll-preview={made.token}")
        assert made.expires_at is not None
        assert box.expose(8000, public=True).token is None
    with pytest.raises(atoll.SandboxClosedError):
        box.expose(8000)


def test_a_sandbox_without_a_service_has_no_previews() -> None:
    words = r"cannot show servers .* Use port\(\)"
    with (
        atoll.create_sandbox(backend="native") as box,
        pytest.raises(atoll.UnsupportedError, match=words),
    ):
        box.expose(8000)
