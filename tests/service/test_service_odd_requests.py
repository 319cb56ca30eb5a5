"""Requests that no client of ours makes, clients that never read, and what is kept for others."""

from __future__ import annotations

import asyncio
import json
import re
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from clients import Api, connect
from own_service import OwnService

from atoll.config import SandboxConfig
from atoll.service import clock
from atoll.service.access.admission import Budget
from atoll.service.access.keys import SCOPES, Principal, Quota
from atoll.service.core.executions import OVERHEAD, Execution
from atoll.service.core.history import MAX_BYTES, MAX_CELLS, History
from atoll.service.core.work import MAX_KEPT_TEXT, RunRequest, Verb
from atoll.service.http.problems import encode


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A service with one slot, and little patience with clients that do not read."""
    folder = tmp_path_factory.mktemp("odd")
    images = (f"lost=oci:{folder / 'no-image'}",)
    options = {"max_running": 1, "stall_seconds": 0.5, "session_images": images}
    service = OwnService(folder, tier="bare", **options)
    service.start()
    yield service
    service.stop()


@pytest.fixture
def key(strict, request):
    return strict.add_key(tenant=f"t{abs(hash(request.node.nodeid))}", scopes=SCOPES)


@pytest.fixture
def client(strict, key):
    with Api(strict, key) as api:
        yield api
        for one in api.get("/api/v1/sessions").json()["items"]:
            api.delete(f"/api/v1/sessions/{one['id']}")


def connections(strict, key):
    """How many requests of a key are open."""
    return strict.service.quotas._uses[key.split("_")[1]].connections


async def until(check):
    async with asyncio.timeout(30):
        while not check():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/sessions?" + "&".join(f"a{n}=1" for n in range(101)), None),
        ("GET", "/api/v1/runs?cursor=%ff", None),
        ("GET", "/api/v1/sessions?cursor=%ff", None),
        ("GET", "/api/v1/sessions?cursor=ses_never", None),
        ("GET", "/api/v1/sessions?limit=%EF%BC%91%C2%B2", None),
        ("GET", "/api/v1/usage?from=%ed%a0%80", None),
        ("POST", "/api/v1/sessions", b'{"state": "\\ud800"}'),
        ("POST", "/api/v1/keys", b'{"name": "\\udfff"}'),
        ("POST", "/api/v1/run", b'{"code": "1", "code": 2}'),
        ("POST", "/api/v1/run", b'{"code": "1"} trailing'),
        ("POST", "/api/v1/run", b'{"code": "1", "timeout_ms": 1e999}'),
        ("POST", "/api/v1/run", b'{"code": "1", "timeout_ms": NaN}'),
        ("POST", "/api/v1/run", b'{"code": "1", "context": {}}'),
        ("POST", "/api/v1/run", b'{"code": "1", "stdin": "\\ud800"}'),
        ("POST", "/api/v1/run", b'{"code": "1", "env": {"A": "\\ud800"}}'),
        ("POST", "/api/v1/sessions", b'{"context": {"text": "a", "value": 1}}'),
        ("POST", "/api/v1/run", b"\xff\xfe{"),
        ("POST", "/api/v1/run", b'{"code": "1", "env": {"a\\u0000": "b"}}'),
        ("POST", "/api/v1/run", b'{"code": "1", "files": [{"path": "a", "content_b64": "?"}]}'),
        ("POST", "/api/v1/run", b'{"code": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    ],
)
def test_a_request_that_makes_no_sense_is_the_clients_fault(client, method, path, body):
    done = client.request(method, path, content=body)
    assert (done.status_code, done.json()["code"]) == (400, "invalid"), done.text


@pytest.mark.parametrize("path", ["/api/v1/sessions", "/api/v1/run", "/e2b/sandboxes"])
def test_an_image_that_cannot_be_used_shows_no_path_of_the_host(client, key, caplog, path):
    asked = {"templateID": "lost"} if "e2b" in path else {"code": "1", "image": "lost"}
    if path.endswith("sessions"):
        del asked["code"]
    done = client.post(path, json=asked, headers={"x-api-key": key} if "e2b" in path else {})
    assert done.status_code == 422
    assert "the service cannot read the files of this one. Tell its operator" in done.text
    assert "/" not in done.text.replace("about:blank", "")
    assert "no-image/index.json does not exist" in caplog.text


def test_a_method_that_does_not_exist_is_counted_without_its_name(client):
    assert client.request("BREW", "/health").status_code == 405
    assert client.request("BREW", "/nowhere").status_code == 404
    text = client.get("/metrics").text
    assert "BREW" not in text
    assert 'atoll_http_requests_total{method="other",route="(none)",status="405"}' in text


def test_metrics_are_what_prometheus_reads_and_have_units(client):
    from prometheus_client.parser import text_string_to_metric_families

    client.run(client.session(), "1")
    found = {one.name: one for one in text_string_to_metric_families(client.get("/metrics").text)}
    names = {name for name in found if name.startswith("atoll_")}
    assert {"atoll_queue_wait_seconds", "atoll_sessions", "atoll_sessions_closed"} <= names
    assert {one.labels["state"] for one in found["atoll_sessions"].samples} == {"running", "paused"}
    assert all(one.documentation for one in found.values())
    assert "process_open_fds" in found


def test_a_reader_that_never_reads_is_cut_off(strict, client, key):
    assert client.get("/api/v1/sessions").status_code == 200
    most = {"max_output_length": 8 << 20, "policy": {"stdout_max_bytes": 8 << 20}}
    body = json.dumps({"code": "print('x' * (7 << 20))", **most})
    head = (
        f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        f"Accept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with connect(strict, buffer=4096) as sock:
        sock.sendall((head + body).encode())
        strict.call(lambda: until(lambda: connections(strict, key) == 1))
        strict.call(lambda: until(lambda: connections(strict, key) == 0))
        left = sum(iter(lambda: len(sock.recv(1 << 20)), 0))
    assert left < 7 << 20, "the rest of the answer is not waited for"


def test_a_socket_that_never_reads_holds_up_neither_its_kernel_nor_the_service(strict, client, key):
    made = client.post("/jupyter/api/kernels", json={"name": "bare"}).json()["id"]
    kernel = strict.service.gateway.get(strict.service.keys.of_key(key), made)
    header = {"msg_id": "1", "msg_type": "execute_request", "session": "s", "version": "5.3"}
    content = {"code": "for _ in range(2000): print('x' * 10_000)"}
    message = json.dumps({"channel": "shell", "header": header, "parent_header": {},
                          "metadata": {}, "content": content}).encode()  # fmt: skip
    head = (
        f"GET /jupyter/api/kernels/{made}/channels?token={key} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    with connect(strict, buffer=4096) as sock:
        sock.sendall(head.encode())
        assert b" 101 " in sock.recv(1000)
        frame = b"\x81\xfe" + len(message).to_bytes(2) + bytes(4) + message
        sock.sendall(frame * 24)  # a cell prints a part; the kernel buffers some of all
        strict.call(lambda: until(lambda: kernel.state == "busy"))
        strict.call(lambda: until(lambda: not kernel.sockets))
        assert client.delete(f"/jupyter/api/kernels/{made}").status_code == 204


def test_requests_at_one_time_are_limited_for_each_key(strict, client):
    key = strict.add_key(quota=Quota(connections=2), scopes=("sessions", "execute"))
    with Api(strict, key) as greedy:
        streams = [greedy.stream("GET", "/api/v1/overview/events") for _ in range(2)]
        for one in streams:
            one.__enter__()
        done = greedy.get("/api/v1/sessions")
        assert (done.status_code, done.json()["code"]) == (429, "rate_limited")
        assert client.get("/api/v1/sessions").status_code == 200
        streams[0].__exit__(None, None, None)
        strict.call(lambda: until(lambda: connections(strict, key) < 2))
        assert greedy.get("/api/v1/sessions").status_code == 200
        streams[1].__exit__(None, None, None)


def test_the_place_in_the_queue_is_told_and_how_long_it_took(strict, client):
    first = client.post(
        "/api/v1/run", json={"code": "import time\ntime.sleep(0.5)", "detach": True}
    ).json()["id"]
    events = client.events("/api/v1/run", {"code": "1"})
    assert [one["type"] for one in events] == ["accepted", "queued", "started", "result"]
    assert events[1]["position"] == 1
    assert events[-1]["result"]["queue_ms"] > 100
    assert client.get(f"/api/v1/executions/{first}").json()["queue_ms"] < 100


def test_a_long_execution_can_be_asked_for_after_its_end(strict, client, monkeypatch):
    started = client.post(
        "/api/v1/run", json={"code": "import time\ntime.sleep(0.5)", "detach": True}
    )
    ident = started.json()["id"]
    (execution,) = (one for one in strict.service.executions.running if one.id == ident)
    execution.created -= 2 * strict.settings.kept_seconds
    while (found := client.get(f"/api/v1/executions/{ident}")).status_code == 202:
        pass
    assert (found.status_code, found.json()["kind"]) == (200, "ok")
    real = clock.now
    monkeypatch.setattr(clock, "now", lambda: real() + strict.settings.kept_seconds + 1)
    strict.call(strict.service.executions.sweep)
    assert client.get(f"/api/v1/executions/{ident}").status_code == 404


@pytest.mark.parametrize("kind", ["application/x-ndjson", "text/event-stream"])
def test_an_answer_that_is_replayed_has_the_form_that_is_asked_for(client, kind):
    headers = {"accept": kind, "idempotency-key": f"again {kind}"}
    first = client.post("/api/v1/run", json={"code": "'x'"}, headers=headers)
    again = client.post("/api/v1/run", json={"code": "'x'"}, headers=headers)
    assert again.headers["content-type"].partition(";")[0] == kind
    assert again.headers["idempotent-replayed"] == "true"
    result = re.search(rb'"result":({.*})}', first.content)[1]
    assert result in again.content


def test_a_page_of_sessions_begins_after_its_cursor_also_when_that_session_has_ended(client):
    made = [client.session() for _ in range(4)]
    first = client.get("/api/v1/sessions?limit=2").json()
    shown = [one["id"] for one in first["items"]]
    client.delete(f"/api/v1/sessions/{first['next_cursor']}")
    rest = client.get(f"/api/v1/sessions?cursor={first['next_cursor']}").json()
    shown += [one["id"] for one in rest["items"]]
    assert shown == [one.rpartition("/")[2] for one in made]
    assert rest["next_cursor"] is None


def test_another_tenants_id_is_no_cursor(strict, client):
    run = client.post("/api/v1/runs/upload", content=b'{"event": "planned"}').json()["id"]
    session = client.session()
    with Api(strict, strict.add_key(tenant="elsewhere")) as other:
        other.post("/api/v1/runs/upload", content=b'{"event": "planned"}')
        ident = session.rpartition("/")[2]
        assert other.get(f"/api/v1/sessions?cursor={ident}").status_code == 400
        assert other.get(f"/api/v1/runs?cursor={run}").json()["items"] == []


def test_a_file_is_changed_only_if_it_is_as_if_match_says(client):
    session = client.session()
    path = f"{session}/files/content?path=a.txt"
    missing = client.put(path, content=b"1", headers={"if-match": "*"})
    assert (missing.status_code, missing.json()["code"]) == (412, "changed")
    assert client.put(path, content=b"1").status_code == 204
    tag = client.get(path).headers["etag"]
    client.run(session, "open('a.txt', 'w').write('two')")
    assert client.put(path, content=b"3", headers={"if-match": tag}).status_code == 412
    assert client.delete(path, headers={"if-match": tag}).status_code == 412
    tag = client.get(path).headers["etag"]
    assert client.put(path, content=b"3", headers={"if-match": f'"x", {tag}'}).status_code == 204
    assert client.delete(path, headers={"if-match": "*"}).status_code == 204


def test_what_one_tenant_reads_of_a_context_another_with_the_same_text_does_not_see(strict, client):
    text = b"the same words\n" * 100
    own = client.post("/api/v1/contexts", content=text).json()["id"]
    client.get(f"/api/v1/contexts/{own}/text?start=0&end=40")
    with Api(strict, strict.add_key(tenant="neighbour")) as other:
        theirs = other.post("/api/v1/contexts", content=text).json()["id"]
        seen = other.get(f"/api/v1/contexts/{theirs}/coverage").json()["ranges"]
    assert not any(seen.values())
    assert any(client.get(f"/api/v1/contexts/{own}/coverage").json()["ranges"].values())


def test_the_same_bytes_are_text_to_one_session_and_data_to_another(client):
    text = client.post("/api/v1/contexts", content=b"[1, 2]").json()["id"]
    data = client.post(
        "/api/v1/contexts", content=b"[1, 2]", headers={"content-type": "application/json"}
    ).json()["id"]
    for ident, kind in ((text, "str"), (data, "list")):
        session = client.session(context={"id": ident})
        assert client.run(session, "type(context).__name__")["value"] in (kind, "Context")
        assert client.run(session, "len(context)")["value"] == {"str": 6, "list": 2}[kind]


def test_the_use_of_keys_that_do_nothing_is_forgotten(strict, client, key):
    quotas = strict.service.quotas
    assert client.get("/api/v1/sessions").status_code == 200
    strict.call(lambda: until(lambda: connections(strict, key) == 0))
    use = quotas._uses[key.split("_")[1]]
    strict.call(quotas.save)
    assert use in quotas._uses.values()
    use.bucket.filled -= 10_000
    strict.call(quotas.save)
    assert use not in quotas._uses.values()
    assert client.get("/api/v1/sessions").status_code == 200


def test_a_method_that_is_not_served_is_answered_with_those_that_are(client):
    done = client.request("TRACE", "/api/v1/contexts")
    assert (done.status_code, done.headers["allow"]) == (405, "GET, POST")


def test_the_openapi_document_names_the_query_and_the_credentials_of_each_api(client):
    paths = client.get("/openapi.json").json()["paths"]
    content = paths["/api/v1/sessions/{session}/files/content"]["get"]
    named = {one["name"]: one["required"] for one in content["parameters"] if one["in"] == "query"}
    assert named == {"path": True}
    ways = {
        name: next(iter(paths[path][method]["security"][0]))
        for name, path, method in (
            ("native", "/api/v1/run", "post"),
            ("librechat", "/v1/exec", "post"),
            ("jupyter", "/jupyter/api/kernels", "get"),
            ("e2b control", "/e2b/sandboxes", "get"),
            ("e2b sandbox", "/e2b/execute", "post"),
        )
    }
    assert ways == {"native": "key", "librechat": "librechat", "jupyter": "jupyter",
                    "e2b control": "e2b_key", "e2b sandbox": "e2b_token"}  # fmt: skip
    assert "content" not in paths["/e2b/sandboxes"]["get"]["responses"]["default"]


def test_a_finished_execution_keeps_its_answer_and_not_its_sandbox(strict, client):
    events = client.events("/api/v1/run", {"code": "print(1)", "context": {"text": "x" * 10**6}})
    ident = events[0]["execution"]
    kept = strict.call(lambda: strict.service.executions._finished[ident])  # after what it does now
    assert (kept.has_run, kept.interrupt, kept.task) == (True, None, None)
    assert kept.held.size < 10_000, "the answer is kept once"
    again = client.get(f"/api/v1/executions/{ident}/events?after=1").content.splitlines()
    assert [json.loads(one) for one in again] == events[1:]


def executed(budget, principal):
    """An execution that no service runs."""
    settings = SimpleNamespace(event_bytes=1 << 20)
    service: Any = SimpleNamespace(settings=settings)
    held = budget.admit(principal, OVERHEAD, "it")
    return Execution(service, principal, RunRequest(code="", config=SandboxConfig()), held)


def test_an_execution_that_is_cancelled_before_it_begins_has_an_answer(strict):
    principal = strict.call(lambda: strict.service.keys.of_key(strict.key))

    async def cancel_at_once() -> Execution:
        request = RunRequest(code="1", config=SandboxConfig(backend="native"))
        execution = strict.service.start(principal, request)
        await execution.cancel()
        await execution.wait()
        return execution

    ended = strict.call(cancel_at_once)
    strict.call(lambda: None)  # what is done when a task has ended is done by now
    assert (ended.status, json.loads(ended.body)["code"]) == (503, "cancelled")
    assert ended.id in strict.service.executions


def test_what_finished_executions_are_counted_with_is_what_they_take_in_memory():
    principal, kept = Principal(key="k", tenant="t"), []
    budget = Budget(("memory_bytes", 1 << 30), ("tenant_memory_bytes", 1 << 30), "memory")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(500):
            one = executed(budget, principal)
            one.begin()
            one.emit("stdout", text=f"{number}\n")
            one.finish(200, encode({"id": one.id, "stdout": f"{number}\n", "value": None}))
            one.settle()
            kept.append(one)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    counted = sum(one.held.size for one in kept)
    assert 0.7 < counted / (after - before) < 1.4


def test_a_history_forgets_its_oldest_cells_by_number_and_by_size():
    principal = Principal(key="k", tenant="t")
    budget = Budget(("memory_bytes", 1 << 30), ("tenant_memory_bytes", 1 << 30), "memory")
    history = History()
    for _ in range(MAX_CELLS + 5):
        execution = executed(budget, principal)
        history.add(execution, Verb.EXECUTE, "1")
        execution.finish(200, b"{}")
    assert (len(history.cells), history.cells[0].number) == (MAX_CELLS, 6)
    for _ in range(100):
        execution = executed(budget, principal)
        history.add(execution, Verb.EXECUTE, "x" * MAX_KEPT_TEXT)
        execution.finish(200, b"{}")
    fork = History(history)
    assert sum(one.size for one in history.cells) <= MAX_BYTES
    assert len(fork.cells) == len(history.cells) == MAX_BYTES // MAX_KEPT_TEXT - 1
