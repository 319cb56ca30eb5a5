"""Keys, tenants and quotas: who is let in, and what is never reached."""

from __future__ import annotations

import concurrent.futures
import time

import pytest
from clients import Api

import atoll
from atoll.errors import SandboxStartError
from atoll.service.access.keys import Quota


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([("authorization", "Bearer nonsense")], 401),
        ([("authorization", "Bearer atl_00000000_" + "A" * 43)], 401),
        ([("authorization", "Basic dXNlcjpwYXNz")], 401),
        ([("authorization", "Bearer")], 401),
        ([("authorization", "Bearer a"), ("authorization", "Bearer b")], 400),
        ([("authorization", "Bearer a"), ("x-api-key", "b")], 400),
        ([("cookie", "key=atl_00000000_x")], 401),
    ],
)
def test_without_a_valid_key_nothing_is_served(service, headers, status):
    import httpx2

    for method, path in (
        ("POST", "/api/v1/run"),
        ("GET", "/api/v1/sessions"),
        ("GET", "/metrics"),
        ("GET", "/health/detailed"),
    ):
        done = httpx2.request(method, service.url + path, headers=headers, content=b"not even read")
        assert done.status_code == status, path


def test_a_revoked_an_expired_and_a_half_right_key_are_refused(service):
    keys = service.service.keys
    expired = service.add_key(seconds=0.01)
    revoked = service.add_key()
    good = service.add_key()
    service.call(lambda: keys.revoke(revoked.split("_")[1]))
    time.sleep(0.02)
    for key, status in ((expired, 401), (revoked, 401), (good[:-1] + "~", 401), (good, 200)):
        with Api(service, key) as client:
            assert client.get("/api/v1/sessions").status_code == status


def test_a_key_does_what_its_scopes_say_and_no_more(service):
    with Api(service, service.add_key(scopes=("files",))) as client:
        done = client.post("/api/v1/run", json={"code": "1"})
        assert (done.status_code, done.json()["code"]) == (403, "scope")
        assert client.get("/api/v1/keys").status_code == 403
        assert client.post("/api/v1/contexts", content=b"x").status_code == 201


def test_a_key_is_made_and_revoked_over_http_and_its_secret_is_not_stored(api, service):
    made = api.post("/api/v1/keys", json={"name": "n", "tenant": "acme"}).json()
    with Api(service, made["key"]) as client:
        assert client.get("/api/v1/sessions").status_code == 200
        assert api.delete(f"/api/v1/keys/{made['id']}").status_code == 204
        assert client.get("/api/v1/sessions").status_code == 401
    assert made["key"] not in api.get("/api/v1/keys").text
    assert made["key"].encode() not in service.service.database.path.read_bytes()


def test_every_id_of_one_tenant_is_404_for_another(api, other):
    session = api.session()
    execution = api.run(session, "x = 1")["id"]
    mark = api.post(f"{session}/checkpoints", json={}).json()["id"]
    state = api.post(f"{session}/save").json()["id"]
    context = api.post("/api/v1/contexts", content=b"secret").json()["id"]
    e, s = f"/api/v1/executions/{execution}", session
    tried = [
        ("GET", s, None), ("PATCH", s, {}), ("DELETE", s, None), ("POST", f"{s}/restart", {}),
        ("POST", f"{s}/executions", {"code": "1"}), ("POST", f"{s}/shell", {"command": "id"}),
        ("POST", f"{s}/cancel", None), ("POST", f"{s}/fork", {}), ("POST", f"{s}/checkpoints", {}),
        ("GET", f"{s}/checkpoints", None), ("POST", f"{s}/rollback", {"mark": mark}),
        ("POST", f"{s}/validate", {"code": "1"}), ("GET", f"{s}/variables", None),
        ("GET", f"{s}/variables/x", None), ("PUT", f"{s}/variables/x", {"value": 1}),
        ("POST", f"{s}/save", None), ("GET", f"{s}/files", None),
        ("GET", f"{s}/files/content?path=f", None), ("PUT", f"{s}/files/content?path=f", None),
        ("DELETE", f"{s}/files/content?path=f", None), ("POST", f"{s}/files/ls", {"path": "."}),
        ("GET", e, None), ("GET", f"{e}/events", None), ("POST", f"{e}/cancel", None),
        ("POST", f"{e}/tool_results", []), ("GET", f"{e}/displays/0", None),
        ("GET", f"/api/v1/states/{state}", None), ("DELETE", f"/api/v1/states/{state}", None),
        ("GET", f"/api/v1/contexts/{context}", None), ("DELETE", f"/api/v1/contexts/{context}", None),
        ("POST", "/api/v1/sessions", {"state": state}),
        ("POST", "/api/v1/sessions", {"context": {"id": context}}),
        ("POST", "/api/v1/run", {"code": "1", "context": {"id": context}}),
    ]  # fmt: skip
    for method, path, body in tried:
        done = (
            other.request(method, path, json=body)
            if body is not None
            else other.request(method, path)
        )
        assert (done.status_code, done.json()["code"]) == (404, "not_found"), (
            method,
            path,
            done.text,
        )
    assert session not in {one["id"] for one in other.get("/api/v1/sessions").json()["items"]}
    assert api.run(session, "x")["value"] == 1


def test_what_a_key_may_not_have_is_refused_and_not_silently_less(service):
    quota = Quota(memory_bytes=256 << 20, timeout_ms=1000, sessions=1, burst=50)
    with Api(service, service.add_key(tenant="small", quota=quota)) as client:
        for name in ("memory_bytes", "disk_bytes"):
            for asked in (None, 1 << 30):
                done = client.post("/api/v1/sessions", json={"policy": {name: asked}})
                assert (done.status_code, done.json()["code"]) == (403, "quota")
                assert done.json()["detail"] == (
                    f"the key may have policy.{name} of at most 268,435,456"
                )
        body = {"policy": {"memory_bytes": 128 << 20}}
        session = client.session(**body)
        done = client.post("/api/v1/sessions", json=body)
        assert (done.status_code, "1 sessions of at most 1" in done.text) == (403, True)
        assert (
            client.post(f"{session}/executions", json={"code": "1", "timeout_ms": 5000}).status_code
            == 403
        )
        assert client.delete(session).status_code == 204
        assert client.delete(client.session(**body)).status_code == 204


def test_what_was_not_asked_for_follows_the_key(service):
    quota = Quota(memory_bytes=64 << 20, timeout_ms=1000)
    with Api(service, service.add_key(tenant="small", quota=quota)) as client:
        session = client.session()
        found = client.get(session).json()
        assert found["policy"]["memory_bytes"] == found["policy"]["disk_bytes"] == 64 << 20
        assert found["timeout_ms"] == 1000
        assert client.post("/api/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"
        assert client.delete(session).status_code == 204


def test_a_quota_below_a_default_does_not_break_a_remote_sandbox(service):
    key = service.add_key(tenant="small", quota=Quota(memory_bytes=64 << 20))
    with atoll.create_sandbox(backend="remote", url=service.url, api_key=key) as box:
        assert box.execute("print(1)").stdout == "1\n"
    policy = {"memory_bytes": 1 << 30}
    with (
        pytest.raises(atoll.ConfigError, match="the key may have policy"),
        atoll.create_sandbox(backend="remote", url=service.url, api_key=key, policy=policy) as box,
    ):
        box.execute("1")


def test_a_plain_run_that_one_key_may_have_is_refused_for_a_key_that_may_not(service):
    """Such configurations are checked once for all requests that are alike."""
    wide, narrow = Quota(memory_bytes=256 << 20), Quota(memory_bytes=64 << 20)
    body = {"code": "6 * 7", "policy": {"memory_bytes": 128 << 20}, "timeout_ms": 20_000}
    answers = []
    for quota in (wide, narrow, wide):
        with Api(service, service.add_key(quota=quota)) as client:
            answers += [client.post("/api/v1/run", json=body) for _ in range(2)]
    assert [one.status_code for one in answers] == [200, 200, 403, 403, 200, 200]
    assert "policy.memory_bytes of at most 67,108,864" in answers[2].json()["detail"]


def test_disk_of_a_sandbox_has_a_quota_of_its_own(service):
    quota = Quota(memory_bytes=64 << 20, disk_bytes=128 << 20)
    with Api(service, service.add_key(tenant="small", quota=quota)) as client:
        session = client.session()
        assert client.get(session).json()["policy"]["disk_bytes"] == 128 << 20
        assert client.delete(session).status_code == 204


def test_a_burst_is_of_two_seconds_unless_it_is_given(service):
    with Api(service, service.add_key(quota=Quota(requests_per_second=5))) as client:
        answers = [client.get("/api/v1/whoami").status_code for _ in range(5 * 6)]
    assert answers[:10] == [200] * 10
    assert 429 in answers
    assert Quota(requests_per_second=0.1).room == 1
    assert Quota(requests_per_second=5, burst=25).room == 25


def test_a_key_that_asks_too_often_is_told_when_to_come_back(service):
    with Api(service, service.add_key(quota=Quota(requests_per_second=0.5, burst=2))) as client:
        answers = [client.get("/api/v1/sessions") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[-1].headers["retry-after"] == "2"
    assert answers[-1].json()["retryable"] is True


def test_fifty_retries_of_one_create_make_one_session(api):
    headers = {"idempotency-key": "create-1"}

    def create(_):
        return api.post("/api/v1/sessions", json={"metadata": {"a": "b"}}, headers=headers)

    with concurrent.futures.ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(create, range(50)))
    assert {one.status_code for one in answers} == {201}
    assert len({one.json()["id"] for one in answers}) == 1
    assert len(api.get("/api/v1/sessions").json()["items"]) == 1
    changed = api.post("/api/v1/sessions", json={"metadata": {}}, headers=headers)
    assert (changed.status_code, changed.json()["code"]) == (422, "key_reused")


def test_code_under_one_key_runs_once_whatever_way_it_is_read(api):
    session = api.session()
    api.run(session, "n = 0")
    body, headers = {"code": "n += 1\nprint(n)\nn"}, {"idempotency-key": "k"}
    first = api.post(f"{session}/executions", json=body, headers=headers)
    again = api.post(f"{session}/executions", json=body, headers=headers)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    *_, last = api.events(f"{session}/executions", body, **headers)
    assert last["result"] == first.json()
    assert api.run(session, "n")["value"] == 1


def test_a_key_whose_outcome_a_killed_service_took_along_is_not_run_again(api, service):
    tenant = service.call(
        lambda: service.service.database.one("SELECT tenant FROM keys ORDER BY created DESC")
    )["tenant"]
    import hashlib

    body = b'{"code":"1"}'
    row = (tenant, "POST /api/v1/run", "lost", hashlib.sha256(body).digest(), time.time())
    service.call(
        lambda: service.service.database.write(
            "INSERT INTO answers VALUES (?,?,?,?,NULL,NULL,?)", *row
        )
    )
    done = api.post("/api/v1/run", content=body, headers={"idempotency-key": "lost"})
    assert (done.status_code, done.json()["code"]) == (409, "outcome_unknown")


def test_a_sandbox_that_did_not_start_ran_nothing_and_its_key_can_be_used_again(
    api, service, monkeypatch
):
    async def refuse(*_args):
        raise SandboxStartError("guest", "the guest has gone")

    headers = {"idempotency-key": "start-1"}
    with monkeypatch.context() as patch:
        patch.setattr(service.service, "opener", refuse)
        done = api.post("/api/v1/run", json={"code": "6 * 7"}, headers=headers)
    told = done.json()
    assert (done.status_code, told["code"], told["retryable"]) == (503, "not_started", True)
    assert done.headers["retry-after"] == "2"
    assert api.post("/api/v1/run", json={"code": "6 * 7"}, headers=headers).json()["value"] == 42
