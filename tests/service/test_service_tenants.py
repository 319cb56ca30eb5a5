"""Every route with an id, as another tenant asks for it: not found, whatever the id is of."""

from __future__ import annotations

import json
import re
import time

import pytest
from clients import Api
from own_service import OwnService

from atoll.service.routes import all_routes

BODIES: dict[str, object] = {
    "execute": {"code": "1"}, "shell": {"command": "id"}, "rollback": {"mark": "m"},
    "validate": {"code": "1"}, "set_variable": {"value": 1}, "search": {"pattern": "x"},
    "start": {"command": ["id"]}, "tool_results": [],
}  # fmt: skip
OF_THE_SERVICE = {"revoke_key", "remove_key"}
"""Routes of administrators, who see every tenant."""
_ID = re.compile(r"\{(\w+)\}")
ROUTES = [
    one for one in all_routes()
    if one.path.startswith("/api/v1") and _ID.search(one.path)
    and one.handler.__name__ not in OF_THE_SERVICE
]  # fmt: skip


@pytest.fixture(scope="module")
def ids(own_service: OwnService) -> dict[str, str]:
    """One of everything that a tenant can have."""
    own_service.start()
    key = own_service.add_key(tenant="owner", scopes=("execute", "sessions", "files", "runs"))
    with Api(own_service, key) as api:
        session = api.session()
        execution = api.run(session, "x = 1\nopen('f', 'w').close()")["id"]
        run = api.post("/api/v1/runs/upload", content=json.dumps({"event": "planned"}).encode())
        return {
            "session": session.rpartition("/")[2],
            "execution": execution,
            "context": api.post("/api/v1/contexts", content=b"secret").json()["id"],
            "state": api.post(f"{session}/save").json()["id"],
            "run": run.json()["id"],
            "process": api.post(f"{session}/processes", json={"command": ["true"]}).json()["id"],
            "name": "x", "number": "0", "operation": "ls",
        }  # fmt: skip


@pytest.mark.parametrize("route", ROUTES, ids=lambda one: f"{one.method} {one.path}")
def test_a_strangers_id_is_not_found(other: Api, ids: dict[str, str], route: object) -> None:
    names = set(_ID.findall(route.path))
    assert names <= ids.keys(), f"{route.path} has an id that this test does not know"
    path = _ID.sub(lambda match: ids[match[1]], route.path) + "?path=f"
    body = BODIES.get(
        route.handler.__name__, {} if route.method in ("POST", "PUT", "PATCH") else None
    )
    if route.body is bytes:
        body = None
    started = time.perf_counter()
    done = other.request(route.method, path, **({} if body is None else {"json": body}))
    assert done.status_code == 404, (path, done.text)
    if route.method != "HEAD":
        assert done.json()["code"] == "not_found"
    assert time.perf_counter() - started < 5, "it waits for nothing of the owner's"


def test_the_routes_of_another_dialect_have_an_owner_too() -> None:
    """Their ids are tried in test_librechat; a dialect that is new has to do so itself."""
    prefixes = {one.path.split("/")[1] for one in all_routes() if _ID.search(one.path)}
    assert prefixes <= {"api", "v1", "files", "sessions", "download", "e2b", "jupyter", "console"}
