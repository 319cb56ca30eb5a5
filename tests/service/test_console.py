"""The console without a browser: its files, its policy, who is let in and who is not."""

from __future__ import annotations

import base64
import re
from importlib import resources

import httpx2
import pytest
from starlette.requests import Request

from atoll.service.access.keys import SCOPES, Keys
from atoll.service.console import pages, signin
from atoll.service.http.problems import Problem
from atoll.service.storage.database import Database

STATIC = resources.files("atoll.service.console") / "static"
PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg==")  # fmt: skip


class Visitor(httpx2.Client):
    """A browser at the console, as far as headers go."""

    def __init__(self, service, key):
        super().__init__(base_url=service.url, timeout=60, trust_env=False)
        self.own = {"origin": service.url, "sec-fetch-site": "same-origin"}
        self._key = key

    def __enter__(self):
        super().__enter__()
        self.answer = self.post("/console/login", json={"key": self._key}, headers=self.own)
        self.token = self.answer.json()["token"]
        return self

    def ask(self, method, path, **options):
        headers = {**self.own, "x-atoll-csrf": self.token, **options.pop("headers", {})}
        headers = {name: one for name, one in headers.items() if one is not None}
        return self.request(method, path, headers=headers, **options)


@pytest.fixture
def visitor(service, request):
    tenant = f"v{abs(hash(request.node.nodeid))}"
    with Visitor(service, service.add_key(tenant=tenant, scopes=SCOPES)) as client:
        yield client
        for one in client.ask("GET", "/api/v1/sessions").json().get("items", []):
            client.ask("DELETE", f"/api/v1/sessions/{one['id']}")


def test_page_has_no_inline_script_and_a_policy_that_allows_none(service):
    page = httpx2.get(f"{service.url}/console", trust_env=False)
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert policy == pages.PAGE_POLICY
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["cross-origin-opener-policy"] == "same-origin"
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=", page.text)
    home = httpx2.get(f"{service.url}/", trust_env=False)
    assert (home.status_code, home.headers["location"]) == (307, "/console")


def test_files_have_a_version_in_their_address_and_nothing_else_is_served(service):
    with httpx2.Client(base_url=service.url, trust_env=False) as client:
        where = re.search(r"/console/files/\w{16}/", client.get("/console").text)[0]
        found = client.get(f"{where}main.js")
        assert found.status_code == 200
        assert found.headers["content-type"] == "text/javascript; charset=utf-8"
        assert found.headers["cache-control"].endswith("immutable")
        assert found.headers["content-encoding"] == "gzip"
        assert found.content == (STATIC / "main.js").read_bytes()
        for path in ("../pages.py", "%2e%2e/pages.py", "..%2fsignin.py", "/etc/passwd", "", "main"):
            assert client.get(where + path).status_code == 404, path
        assert client.get("/console/files/0123456789abcdef/main.js").status_code == 404


def test_modules_import_only_files_of_ours_that_exist():
    def walk(folder, prefix=""):
        for one in folder.iterdir():
            yield from walk(one, f"{prefix}{one.name}/") if one.is_dir() else [(prefix, one)]

    for prefix, file in walk(STATIC):
        if not file.name.endswith(".js") or prefix.startswith("vendor"):
            continue
        source = file.read_text("utf-8")
        assert "innerHTML" not in source
        for given in re.findall(r"""(?:from|import\()\s*["']([^"']+)["']""", source):
            assert given.startswith("."), (file.name, given)
            if "/vendor/" not in given:
                assert (STATIC / prefix / given).is_file(), (file.name, given)


def test_signing_in_sets_a_cookie_no_script_reads_and_no_other_site_sends(visitor):
    cookie = visitor.answer.headers["set-cookie"]
    assert re.match(
        r"atoll_\d+=[\w-]{43}; Path=/; HttpOnly; SameSite=Strict; Max-Age=28800\Z", cookie
    )
    assert visitor.answer.headers["cache-control"] == "no-store"
    me = visitor.ask("GET", "/console/me").json()
    assert set(me["scopes"]) == set(SCOPES)
    made = visitor.ask("POST", "/api/v1/sessions", json={})
    assert made.status_code == 201
    listed = visitor.ask("GET", "/api/v1/sessions").json()["items"]
    assert [one["id"] for one in listed] == [made.json()["id"]]


def test_cookie_over_tls_is_bound_to_the_host():
    request = _request(scheme="https", host="atoll.example")
    cookie = signin.set_cookie(request, "x", 60)
    assert cookie.startswith("__Host-atoll=x; Path=/;")
    assert cookie.endswith("; Secure")


@pytest.mark.parametrize(
    "headers",
    [
        {"x-atoll-csrf": None},
        {"x-atoll-csrf": ""},
        {"x-atoll-csrf": "A" * 43},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"cookie": "atoll_1=x"},
        {"cookie": ""},
    ],
)
def test_request_that_no_page_of_the_console_made_is_refused(visitor, headers):
    for method, path in (
        ("GET", "/api/v1/sessions"),
        ("POST", "/api/v1/run"),
        ("GET", "/console/me"),
    ):
        body = {"json": {"code": "1"}} if method == "POST" else {}
        done = visitor.ask(method, path, headers=headers, **body)
        assert done.status_code in (401, 403), (path, done.text)
        assert not any(name.startswith("access-control") for name in done.headers)


def test_cookie_of_one_sign_in_does_not_go_with_the_token_of_another(service, visitor):
    with Visitor(service, service.add_key(tenant="elsewhere")) as stranger:
        done = visitor.ask("GET", "/api/v1/sessions", headers={"x-atoll-csrf": stranger.token})
        assert (done.status_code, done.json()["code"]) == (401, "signed_out")


def test_request_with_a_cookie_and_a_key_is_refused(service, visitor):
    headers = {"authorization": f"Bearer {service.key}"}
    done = visitor.ask("GET", "/api/v1/sessions", headers=headers)
    assert (done.status_code, done.json()["code"]) == (400, "ambiguous")


def test_page_of_another_name_for_this_address_is_refused(service, visitor):
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    for method, path in (
        ("GET", "/console"),
        ("POST", "/console/login"),
        ("GET", "/api/v1/sessions"),
    ):
        done = visitor.ask(method, path, headers=headers)
        assert (done.status_code, done.json()["code"]) == (421, "host")


@pytest.mark.parametrize("origin", [None, "https://evil.example", "null"])
def test_signing_in_is_for_the_console_alone(service, origin):
    headers = {"origin": origin} if origin else {}
    done = httpx2.post(
        f"{service.url}/console/login", json={"key": service.key}, headers=headers, trust_env=False
    )
    assert (done.status_code, done.json()["code"]) == (403, "origin")
    assert "set-cookie" not in done.headers


def test_revoked_key_is_signed_out_at_once_and_signing_out_ends_the_cookie(service):
    key = service.add_key(scopes=SCOPES)
    with Visitor(service, key) as first, Visitor(service, key) as second:
        assert first.ask("POST", "/console/logout").status_code == 204
        assert first.ask("GET", "/console/me").status_code == 401
        assert second.ask("GET", "/console/me").status_code == 200
        service.call(lambda: service.service.keys.revoke(key.split("_")[1]))
        assert second.ask("GET", "/console/me").status_code == 401


def test_link_signs_in_once(service):
    ident = service.add_key(scopes=SCOPES).split("_")[1]
    secret = service.call(lambda: service.service.signins.secret(ident))
    own = {"origin": service.url}
    with httpx2.Client(base_url=service.url, headers=own, trust_env=False) as client:
        first = client.post("/console/login", json={"link": secret})
        assert (first.status_code, first.json()["key"]) == (200, ident)
        again = client.post("/console/login", json={"link": secret})
        assert (again.status_code, again.json()["code"]) == (401, "unauthorized")


def test_link_expires(tmp_path, monkeypatch):
    keys, signins = _signins(tmp_path)
    secret = signins.secret(keys.add().split("_")[1])
    now = signin.clock.now() + signin.LINK_SECONDS + 1
    monkeypatch.setattr(signin.clock, "now", lambda: now)
    with pytest.raises(Problem, match="older than ten minutes"):
        signins.sign_in(_request(), key="", link=secret)


def test_address_that_guesses_keys_has_to_wait_and_others_do_not(tmp_path):
    keys, signins = _signins(tmp_path)
    good = keys.add()
    for _ in range(signin.MAX_FAILURES):
        with pytest.raises(Problem, match="not known"):
            signins.sign_in(_request(), key="atl_guess", link="")
    with pytest.raises(Problem) as refused:
        signins.sign_in(_request(), key=good, link="")
    assert refused.value.status == 429
    assert refused.value.retry_after > 3500
    signins.sign_in(_request(address="10.0.0.2"), key=good, link="")


def test_sign_in_outlives_the_process_and_ends_after_eight_hours(tmp_path, monkeypatch):
    keys, signins = _signins(tmp_path)
    cookie, token, _ = signins.sign_in(_request(), key=keys.add(), link="")
    given = _request(cookie=cookie.split(";")[0], token=token)
    restarted = signin.SignIns(keys, Database(tmp_path))
    assert restarted.principal(given).tenant == "default"
    now = signin.clock.now() + signin.SIGNED_IN_SECONDS + 1
    monkeypatch.setattr(signin.clock, "now", lambda: now)
    with pytest.raises(Problem, match="signed out"):
        restarted.principal(given)


SHOW = """
class Shown:
    def _repr_html_(self): return '<script>parent.hacked = 1</script><b>bold</b>'
    def _repr_svg_(self): return '<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>'
    def _repr_png_(self): return {png!r}
    def _repr_markdown_(self): return '<img src=x onerror=alert(1)>'
Shown()
"""


def test_what_a_guest_displays_is_served_without_our_origin(visitor, service):
    session = visitor.ask("POST", "/api/v1/sessions", json={}).json()["id"]
    code = SHOW.format(png=PNG)
    done = visitor.ask("POST", f"/api/v1/sessions/{session}/executions", json={"code": code}).json()
    kinds = {one["media_type"]: one["n"] for one in done["displays"]}
    assert set(kinds) == {"text/html", "image/svg+xml", "image/png", "text/markdown"}
    for kind, number in kinds.items():
        path = f"/console/displays/{done['id']}/{number}"
        # As a frame or picture: the browser sends the cookie and no header of ours.
        found = visitor.ask("GET", path, headers={"x-atoll-csrf": None, "origin": None})
        policy = found.headers["content-security-policy"]
        assert policy.endswith("; sandbox")
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "script-src" not in policy
        expected = "text/plain" if kind == "text/markdown" else kind
        assert found.headers["content-type"].split(";")[0] == expected
        scripted = visitor.ask("GET", f"{path}?scripts=1", headers={"x-atoll-csrf": None})
        policy = scripted.headers["content-security-policy"]
        assert "sandbox allow-scripts;" in policy
        assert "allow-same-origin" not in policy
        assert "connect-src" not in policy  # so default-src 'none' holds
        for site in ("cross-site", "same-site", "none"):
            headers = {"sec-fetch-site": site, "x-atoll-csrf": None, "origin": None}
            assert visitor.ask("GET", path, headers=headers).status_code == 401
    with Visitor(service, service.add_key(tenant="nosy")) as stranger:
        path = f"/console/displays/{done['id']}/0"
        assert stranger.ask("GET", path).status_code == 404
    assert visitor.ask("GET", f"/console/displays/{done['id']}/99").status_code == 404


def test_picture_that_is_none_is_not_served_as_one(visitor):
    session = visitor.ask("POST", "/api/v1/sessions", json={}).json()["id"]
    code = "class P:\n    def _repr_png_(self): return b'<script>alert(1)</script>'\nP()"
    done = visitor.ask("POST", f"/api/v1/sessions/{session}/executions", json={"code": code}).json()
    found = visitor.ask("GET", f"/console/displays/{done['id']}/0")
    assert (found.status_code, found.json()["code"]) == (422, "display")


def test_colours_can_be_read_in_both_schemes():
    css = (STATIC / "base.css").read_text("utf-8")
    tokens = dict(re.findall(r"--([\w-]+): light-dark\(([^)]+)\)", css))
    for scheme in (0, 1):
        for ink in ("ink", "ink-2", "ink-3", "accent", "ok", "warn", "bad", "live"):
            for ground in ("bg", "panel"):
                pair = [_luminance(tokens[one].split(", ")[scheme]) for one in (ink, ground)]
                ratio = (max(pair) + 0.05) / (min(pair) + 0.05)
                assert ratio >= 4.5, (scheme, ink, ground, round(ratio, 2))


def _luminance(colour):
    parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _signins(folder):
    ledger = Database(folder)
    return Keys(ledger), signin.SignIns(Keys(ledger), ledger)


def _request(*, scheme="http", host="127.0.0.1:8437", address="10.0.0.1", cookie="", token=""):
    given = {"host": host, "cookie": cookie, "x-atoll-csrf": token}
    headers = [(name.encode(), one.encode()) for name, one in given.items() if one]
    return Request({
        "type": "http", "method": "GET", "scheme": scheme, "path": "/console/me", "query_string": b"",
        "headers": headers, "client": (address, 1), "server": ("127.0.0.1", 8437),
    })  # fmt: skip
