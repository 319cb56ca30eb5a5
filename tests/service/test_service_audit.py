"""Operators: the sessions of every tenant, the limits of a key, and the record of what they did."""

from __future__ import annotations

import pytest
from clients import Api

ADMIN = ("execute", "sessions", "files", "admin")


@pytest.fixture
def operator(service):
    with Api(service, service.add_key(tenant="operators", scopes=ADMIN)) as client:
        yield client


@pytest.fixture
def user(service):
    with Api(service, service.add_key(tenant="acme")) as client:
        yield client


@pytest.fixture
def session(user):
    made = user.post("/api/v1/sessions", json={}).json()["id"]
    yield made
    user.delete(f"/api/v1/sessions/{made}")


def audited(operator, search):
    return operator.get("/api/v1/audit", params={"search": search}).json()["items"]


def test_an_operator_sees_every_tenants_sessions_and_a_user_none_of_others(operator, user, session):
    listed = operator.get("/api/v1/admin/sessions", params={"tenant": "acme"}).json()
    assert listed["total"] == len(listed["items"]) >= 1
    [shown] = [item for item in listed["items"] if item["id"] == session]
    assert shown["tenant"] == "acme"
    assert operator.get(f"/api/v1/admin/sessions/{session}").json()["key"] == shown["key"]
    assert operator.get(f"/api/v1/sessions/{session}").status_code == 404  # it is not his own
    page = operator.get("/api/v1/admin/sessions", params={"offset": listed["total"] + 99}).json()
    assert page["items"] == []
    for method, path in (
        ("GET", "/admin/sessions"),
        ("GET", f"/admin/sessions/{session}"),
        ("DELETE", f"/admin/sessions/{session}"),
        ("POST", f"/admin/sessions/{session}/pause"),
        ("GET", "/audit"),
    ):
        refused = user.request(method, f"/api/v1{path}")
        assert (refused.status_code, refused.json()["code"]) == (403, "scope"), path


def test_a_session_that_an_operator_pauses_goes_on_and_one_that_he_ends_says_so(
    operator, user, session
):
    user.post(f"/api/v1/sessions/{session}/executions", json={"code": "x = 5"})
    paused = operator.post(f"/api/v1/admin/sessions/{session}/pause").json()
    assert paused["state"] == "paused"
    done = user.post(f"/api/v1/sessions/{session}/executions", json={"code": "print(x)"}).json()
    assert done["stdout"] == "5\n"
    assert operator.delete(f"/api/v1/admin/sessions/{session}").status_code == 204
    gone = user.post(f"/api/v1/sessions/{session}/executions", json={"code": "1"})
    assert gone.status_code == 410
    assert "ended by an operator" in gone.json()["detail"]
    entries = audited(operator, session)
    assert [entry["action"] for entry in entries] == ["session ended", "session paused"]
    assert {entry["detail"]["of"] for entry in entries} == {"acme"}
    assert {entry["tenant"] for entry in entries} == {"operators"}
    assert operator.delete(f"/api/v1/admin/sessions/{session}").status_code == 404


def test_limits_of_a_key_change_from_its_next_request_on(service, operator):
    made = operator.post("/api/v1/keys", json={"name": "trainer", "tenant": "acme"}).json()
    path = f"/api/v1/keys/{made['id']}"
    with Api(service, made["key"]) as client:
        assert client.get("/api/v1/whoami").json()["quota"]["sessions"] == 64
        changed = operator.patch(path, json={"quota": {"sessions": 1, "memory_bytes": None}})
        assert changed.json()["quota"]["sessions"] == 1
        quota = client.get("/api/v1/whoami").json()["quota"]
        assert (quota["sessions"], quota["memory_bytes"]) == (1, None)
        assert quota["executions"] == 32  # what is not given stays
        first = client.post("/api/v1/sessions", json={})
        assert client.post("/api/v1/sessions", json={}).status_code in (403, 429)
        client.delete(f"/api/v1/sessions/{first.json()['id']}")
    for wrong, words in (
        ({"quota": {"sesions": 1}}, "did you mean 'sessions'?"),
        ({"quota": {"sessions": 0}}, "sessions"),
        ({"quota": {"sessions": "many"}}, ""),
        ({"quotas": {}}, "quota"),
    ):
        refused = operator.patch(path, json=wrong)
        assert refused.status_code == 400, wrong
        assert words in refused.json()["detail"]
    assert operator.patch("/api/v1/keys/00000000", json={}).status_code == 404
    assert operator.delete(path).status_code == 204
    actions = [entry["action"] for entry in audited(operator, made["id"])]
    assert actions == ["key revoked", "key changed", "key made"]


def test_the_record_is_searched_and_read_page_by_page(operator):
    for _ in range(3):
        operator.post("/api/v1/drain")
        operator.delete("/api/v1/drain")
    seen, before = [], 0
    while before is not None:
        params = {"search": "DRAIN", "limit": 2, "before": before}
        page = operator.get("/api/v1/audit", params=params).json()
        seen += [entry["number"] for entry in page["items"]]
        before = page["next_before"]
    assert len(seen) >= 6
    assert seen == sorted(set(seen), reverse=True)
    assert audited(operator, "%") == []  # a text, not a pattern


def test_what_an_operator_did_is_kept_for_a_year(service, operator, monkeypatch):
    operator.post("/api/v1/keys", json={"name": "kept"})
    service.call(service.service.audit.sweep)
    assert audited(operator, "kept")
    now = service.call(lambda: __import__("time").time())
    monkeypatch.setattr("atoll.service.access.audit.clock.now", lambda: now + 366 * 86_400)
    service.call(service.service.audit.sweep)
    monkeypatch.undo()
    assert not audited(operator, "kept")
