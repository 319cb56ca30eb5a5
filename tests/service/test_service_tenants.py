"""Every route of the app's own table, as another tenant asks: nothing of the owner's is found.

A route that is new has to be judged: one with an id in its path is attacked without further ado,
any other one is in AIMED, with requests that name ids of the owner, or in WITHOUT_IDS.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from own_service import OwnService

from atoll.service.access.keys import SCOPES
from atoll.service.console import pages
from atoll.service.dialects.e2b.dialect import GONE
from atoll.service.dialects.e2b.routes import by_key, by_signature, by_token
from atoll.service.dialects.e2b.wire import refuse_stream
from atoll.service.dialects.librechat.routes import who as by_librechat
from atoll.service.http.routes import Route, all_routes

_ID = re.compile(r"\{(\w+)(?::path)?\}")
BODIES: dict[str, object] = {
    "execute": {"code": "1"}, "shell": {"command": "id"}, "rollback": {"mark": "m"},
    "validate": {"code": "1"}, "set_variable": {"value": 1}, "search": {"pattern": "x"},
    "start": {"command": ["id"]}, "tool_results": [],
}  # fmt: skip
OPERATORS = {
    "DELETE /api/v1/keys/{key}", "PATCH /api/v1/keys/{key}", "GET /api/v1/admin/sessions/{session}",
    "DELETE /api/v1/admin/sessions/{session}", "POST /api/v1/admin/sessions/{session}/pause",
}  # fmt: skip
"""Routes of administrators, who see every tenant."""
PUBLIC = {
    "GET /console/files/{version}/{path:path}", "GET /jupyter/api/kernelspecs/{name}",
    "GET /e2b/templates/aliases/{alias}",
}  # fmt: skip
"""Routes whose names are the same for everybody."""
_EXEC = {"lang": "py", "code": "1"}
AIMED: dict[str, tuple[object, ...]] = {
    "POST /api/v1/run": (
        {"code": "1", "context": {"id": "{context}"}}, {"code": "1", "state": "{state}"},
        {"code": "1", "files": [{"path": "a", "file": "{file}"}]},
    ),
    "POST /api/v1/sessions": ({"context": {"id": "{context}"}}, {"state": "{state}"}),
    "POST /api/v1/runs": ({"question": "?", "model": "m", "context": {"id": "{context}"}},),
    "POST /v1/exec": (
        {**_EXEC, "files": [{"id": "{file}", "resource_id": "someone", "name": "a.txt",
                             "storage_session_id": "{storage}", "kind": "user"}]},
    ),
    "POST /v1/exec/programmatic": (
        {"continuation_token": "{continuation}", "tool_results": [{"call_id": "call_001", "result": 1, "is_error": False}]},
    ),
    "POST /jupyter/api/terminals": ({"kernel": "{kernel}"},),
    "POST /e2b/v2/sandboxes": ({"templateID": "{template}"},),
    "POST /e2b/contexts": (), "POST /e2b/execute": ({"code": "1", "context_id": "{e2b_context}"},),
    "POST /e2b/filesystem.Filesystem/GetWatcherEvents": ({"watcherId": "{watcher}"},),
    "POST /e2b/filesystem.Filesystem/RemoveWatcher": ({"watcherId": "{watcher}"},),
}  # fmt: skip
"""Bodies that name what the owner has. Each is refused as if that did not exist."""
AIMED |= {
    name.replace("/v1/", "/").replace("/v2/", "/"): bodies
    for name, bodies in AIMED.items()
    if name.startswith(("POST /v1", "POST /e2b/v2"))
}
WITHOUT_IDS = {
    "GET /", "GET /console", "GET /console/", "GET /console/me", "POST /console/login",
    "POST /console/logout", "GET /health", "GET /ready", "GET /v1/health", "GET /health/detailed",
    "GET /metrics", "GET /api/v1/sessions", "POST /api/v1/states", "POST /api/v1/contexts",
    "GET /api/v1/contexts", "POST /api/v1/runs/upload", "GET /api/v1/runs", "GET /api/v1/whoami",
    "GET /api/v1/stats", "GET /api/v1/overview/events", "GET /api/v1/usage", "POST /api/v1/drain",
    "DELETE /api/v1/drain", "POST /api/v1/keys", "GET /api/v1/keys", "GET /e2b/v2/sandboxes",
    "GET /e2b/sandboxes", "GET /e2b/snapshots", "GET /jupyter/api", "GET /jupyter/api/kernelspecs",
    "GET /jupyter/api/terminals", "GET /jupyter/api/kernels", "POST /jupyter/api/kernels", "POST /run_code", "POST /run_jupyter",
    "GET /v1/ping", "GET /api/v1/admin/sessions", "GET /api/v1/audit",
    *(f"POST {at}/{name}" for at in ("", "/v1") for name in ("exec/programmatic/cancel", "upload", "upload/batch")),
}  # fmt: skip
"""Routes that name nothing: lists of one's own, uploads, what is open to all. A request id that
LibreChat cancels by is the client's own, and kept for each user."""


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def attacked(route: Route) -> bool:
    return bool(_ID.search(route.path)) and name_of(route) not in OPERATORS | PUBLIC


def in_a_sandbox(route: Route) -> bool:
    """Whether its sandbox is named by a header, and opened by a token."""
    return route.who in (by_token, by_signature)


ROUTES = [*all_routes(), *pages.ROUTES]


class Tenant:
    """A client of every API of the service, with a sandbox of its own."""

    def __init__(self, service: OwnService, name: str) -> None:
        self.key = service.add_key(tenant=name, scopes=SCOPES)
        self.http = httpx2.Client(base_url=service.url, timeout=60, trust_env=False)
        made = self.ask("POST", "/e2b/sandboxes", by_key, json={"templateID": "bare"}).json()
        self.sandbox = made["sandboxID"]
        self.tokens = {
            "e2b-sandbox-id": self.sandbox,
            "x-access-token": made["envdAccessToken"],
            "e2b-traffic-access-token": made["trafficAccessToken"],
        }

    def ask(self, method: str, path: str, who: object = None, **more: Any) -> httpx2.Response:
        """Send a request in the way its dialect knows clients."""
        headers = {"authorization": f"Bearer {self.key}"}
        if who in (by_key, by_librechat):
            headers = {"x-api-key": self.key}
        elif who in (by_token, by_signature):
            headers = self.tokens
        return self.http.request(
            method, path, headers={**headers, **more.pop("headers", {})}, **more
        )

    def made(self, path: str, who: object = None, **more: Any) -> dict[str, Any]:
        done = self.ask("POST", path, who, **more)
        assert done.status_code in (200, 201), (path, done.text)
        return done.json()


@pytest.fixture(scope="module")
def stranger(own_service: OwnService) -> Iterator[Tenant]:
    own_service.start()
    made = Tenant(own_service, "stranger")
    yield made
    made.ask("DELETE", f"/e2b/sandboxes/{made.sandbox}", by_key)
    made.http.close()


@pytest.fixture(scope="module")
def owner(own_service: OwnService) -> Iterator[Tenant]:
    own_service.start()
    made = Tenant(own_service, "owner")
    yield made
    made.ask("DELETE", f"/e2b/sandboxes/{made.sandbox}", by_key)
    made.http.close()


@pytest.fixture(scope="module")
def ids(owner: Tenant) -> dict[str, str]:
    """One of everything that a tenant can have, in every dialect."""
    native, session = owner.made, f"/api/v1/sessions/{owner.sandbox}"
    ran = native(f"{session}/executions", json={"code": "x = 1\nopen('f', 'w').write('secret')"})
    upload = {"data": {"kind": "user", "id": "someone"}, "files": {"file": ("a.txt", b"secret")}}
    stored = native("/v1/upload", by_librechat, **upload)
    waiting = {"code": "print(await ask())", "tools": [{"name": "ask"}]}
    run = owner.ask("POST", "/api/v1/runs/upload", content=json.dumps({"event": "planned"}))
    return {
        "session": owner.sandbox,
        "execution": ran["id"],
        "context": owner.ask("POST", "/api/v1/contexts", content=b"secret").json()["id"],
        "state": native(f"{session}/save")["id"],
        "run": run.json()["id"],
        "storage": stored["storage_session_id"],
        "file": stored["files"][0]["fileId"],
        "continuation": native("/v1/exec/programmatic", by_librechat, json=waiting)["continuation_token"],
        "template": native(f"/e2b/sandboxes/{owner.sandbox}/snapshots", by_key, json={})["snapshotID"],
        "e2b_context": native("/e2b/contexts", by_token, json={})["id"],
        "watcher": native("/e2b/filesystem.Filesystem/CreateWatcher", by_token, json={"path": "/app"})["watcherId"],
        "kernel": native("/jupyter/api/kernels", json={"name": "bare"})["id"],
        "process": native(f"{session}/processes", json={"command": ["sleep", "60"]})["id"],
        "name": "x", "number": "0", "port": "8000",
    }  # fmt: skip


def test_every_route_is_judged() -> None:
    known = {name_of(one) for one in ROUTES}
    judged = OPERATORS | PUBLIC | WITHOUT_IDS | AIMED.keys()
    judged |= {name_of(one) for one in ROUTES if attacked(one) or in_a_sandbox(one)}
    assert known - judged == set(), "what may these find of another tenant? Say so here"
    assert judged - known == set(), "these are no routes any more"


@pytest.mark.parametrize("route", [one for one in ROUTES if attacked(one)], ids=name_of)
def test_an_id_of_the_owner_in_a_path_is_not_found(
    stranger: Tenant, ids: dict[str, str], route: Route
) -> None:
    known = {**ids, "context": ids["e2b_context"]} if in_a_sandbox(route) else ids
    path = _ID.sub(lambda match: known[match[1]], route.path)
    body = BODIES.get(
        route.handler.__name__, {} if route.method in ("POST", "PUT", "PATCH") else None
    )
    more = {} if body is None or route.body is bytes else {"json": body}
    done = stranger.ask(route.method, f"{path}?path=f&kind=user&id=someone", route.who, **more)
    allowed = (403, 404) if route.who is by_librechat else (404,)
    empty = route.handler.__name__ == "list_files" and done.text == "[]"  # as if nothing were there
    assert empty or done.status_code in allowed, (path, done.text)
    assert "secret" not in done.text
    if route.path.startswith("/api/v1") and route.method != "HEAD":
        assert done.json()["code"] == "not_found"


@pytest.mark.parametrize("route", [one for one in ROUTES if in_a_sandbox(one)], ids=name_of)
def test_a_sandbox_of_the_owner_is_not_opened_by_another_token(
    stranger: Tenant, ids: dict[str, str], route: Route
) -> None:
    path = _ID.sub(lambda match: ids[f"e2b_{match[1]}"], route.path)
    for tokens in ({}, {"x-access-token": "", "e2b-traffic-access-token": ""}):
        headers = {"e2b-sandbox-id": ids["session"], **tokens}
        done = stranger.ask(
            route.method, f"{path}?path=f&signature=v1_x", route.who, headers=headers
        )
        if route.who is by_signature:
            assert done.status_code == 401, done.text
        else:  # the protocol of streams tells an error with status 200
            assert done.status_code == (200 if route.refuse is refuse_stream else 502), done.text
            assert route.refuse is not refuse_stream or GONE in done.text


@pytest.mark.parametrize(
    ("name", "body"), [(name, one) for name, bodies in AIMED.items() for one in bodies]
)
def test_an_id_of_the_owner_in_a_body_is_not_found(
    stranger: Tenant, ids: dict[str, str], name: str, body: object
) -> None:
    (route,) = [one for one in ROUTES if name_of(one) == name]

    def answer(known: dict[str, str]) -> httpx2.Response:
        text = re.sub(r"\{(\w+)\}", lambda match: known[match[1]], json.dumps(body))
        return stranger.ask(route.method, route.path, route.who, content=text)

    done, nobodys = answer(ids), answer({one: _another(ident) for one, ident in ids.items()})
    assert 400 <= done.status_code < 500, done.text
    assert "secret" not in done.text
    if route.who is not by_librechat:  # there it is 403
        assert done.status_code == nobodys.status_code


def _another(ident: str) -> str:
    """Return an id of the same form that nobody has."""
    return ident[:-1] + ("a" if ident[-1] != "a" else "b")


def test_lists_have_nothing_of_the_owner_and_nothing_of_it_was_touched(
    stranger: Tenant, owner: Tenant, ids: dict[str, str]
) -> None:
    lists = [one for one in ROUTES if name_of(one) in WITHOUT_IDS and one.method == "GET"]
    secrets = {one for one in ids.values() if len(one) > 8}
    for route in lists:
        if route.path.endswith(
            ("events", "/keys", "/usage", "/metrics", "/admin/sessions", "/audit")
        ):
            continue  # an operator's, or without an end
        found = stranger.ask("GET", route.path, route.who).text
        assert not [one for one in secrets if one in found], route.path
    value = owner.ask("GET", f"/api/v1/sessions/{ids['session']}/variables/x").json()["value"]
    assert value == 1
    for path, who in (
        (f"/api/v1/states/{ids['state']}", None), (f"/api/v1/contexts/{ids['context']}", None),
        (f"/api/v1/runs/{ids['run']}", None), (f"/v1/download/{ids['storage']}/{ids['file']}?kind=user&id=someone", by_librechat),
        (f"/jupyter/api/kernels/{ids['kernel']}", None), (f"/api/v1/sessions/{ids['session']}/processes/{ids['process']}", None),
    ):  # fmt: skip
        assert owner.ask("GET", path, who).status_code == 200, path
