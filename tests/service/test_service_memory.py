"""What one tenant makes the service hold in memory: counted, bounded, and never another's loss.

Each test does what an attack did, and looks at three things: what the service's budget says, what
the process takes, and whether another tenant is served.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients import Api, connect
from own_service import OwnService

from atoll.service.access.admission import Budget
from atoll.service.access.keys import SCOPES, Principal, Quota
from atoll.service.http.problems import Problem

MIB = 1 << 20
TOTAL, EACH = 96 * MIB, 32 * MIB
OTHERS = 10 * MIB
"""What a small run of another tenant takes."""


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A service with a small budget, so that an attack is small too."""
    service = OwnService(
        tmp_path_factory.mktemp("small"), tier="bare", memory_bytes=TOTAL,
        tenant_memory_bytes=EACH, max_output_bytes=4 * MIB, body_seconds=5,
    )  # fmt: skip
    service.start()
    yield service
    service.stop()


@pytest.fixture
def evil(small, request):
    tenant = f"e{abs(hash(request.node.nodeid))}"
    with Api(small, small.add_key(tenant=tenant, scopes=SCOPES)) as api:
        yield api
        for one in api.get("/api/v1/sessions?limit=200").json()["items"]:
            api.delete(f"/api/v1/sessions/{one['id']}")


@pytest.fixture
def good(small):
    with Api(small, small.add_key(tenant="good", scopes=SCOPES)) as api:
        yield api


def resident() -> int:
    """Bytes that this process, which has the service in it, takes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """Watches the service's figures from a thread of its own, until the block ends."""

    def __init__(self, service: OwnService) -> None:
        self._budget, self._over = service.service.memory, threading.Event()
        self._first, self._before = resident(), self._budget.held  # other tests' results, say
        self.held = self.grown = 0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exc):
        self._over.set()
        self._thread.join()

    def _watch(self):
        while not self._over.wait(0.02):
            self.held = max(self.held, self._budget._held - self._before)
            self.grown = max(self.grown, resident() - self._first)


def is_served(client: Api) -> bool:
    return client.post("/api/v1/run", json={"code": "6 * 7"}).json().get("value") == 42


def at_once(number: int, work):
    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(work, range(number)))


def until(check, seconds=90):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def held(service: OwnService, tenant: str) -> int:
    return service.call(lambda: service.service.memory.held_by(tenant))


def tenant_of(client: Api) -> str:
    return client.get("/api/v1/whoami").json()["tenant"]


def principal(tenant: str = "t") -> Principal:
    return Principal(key=tenant, tenant=tenant)


def budget(total: int = 100, each: int = 40) -> Budget:
    return Budget(("memory_bytes", total), ("tenant_memory_bytes", each), "memory")


def test_a_budget_refuses_before_it_counts_and_says_why():
    made = budget()
    first = made.admit(principal("a"), 30, "a body")
    with pytest.raises(Problem) as full:
        made.admit(principal("a"), 11, "a body")
    assert (full.value.status, full.value.retry_after) == (429, 2)
    assert "the key has 40 bytes in all" in full.value.detail
    with pytest.raises(Problem) as never:
        made.admit(principal("a"), 41, "a body")
    assert never.value.status == 413
    assert "a body of 41 bytes" in never.value.detail
    assert "ATOLL_SERVE_TENANT_MEMORY_BYTES" in never.value.detail
    others = [made.admit(principal(name), 35, "a body") for name in ("b", "c")]
    with pytest.raises(Problem) as crowded:
        made.admit(principal("d"), 1, "a body")
    assert (crowded.value.status, crowded.value.code) == (503, "memory")
    assert made.rejected == {"tenant": 1, "too_large": 1, "process": 1}
    assert made.held == 100
    first.release()
    others[0].resize(5)
    assert (made.held, made.held_by("a"), made.held_by("b")) == (40, 0, 5)


def test_what_is_held_is_given_back_once_and_at_the_latest_with_its_object():
    made = budget()
    shared = made.admit("a", 10, "it").share()
    shared.release()
    assert made.held == 10
    shared.release()
    shared.release()
    assert made.held == 0
    shared.resize(5)
    assert (made.held, shared.size) == (0, 0), "after its release it stays empty"
    forgotten = made.admit("a", 20, "it")
    assert made.held == 20
    del forgotten
    assert made.held == 0


def test_what_can_be_dropped_is_dropped_for_the_tenant_that_needs_room():
    made, kept = budget(), []
    made.reclaim.append(lambda tenant: bool(kept and (kept.pop().release() or tenant)))
    kept += [made.admit("a", 20, "a result"), made.admit("a", 20, "a result")]
    made.admit("a", 15, "a body").release()
    assert len(kept) == 1


def test_outputs_beyond_the_limit_are_refused_and_large_ones_are_counted(evil, good, small):
    huge = {"code": "1", "policy": {"stdout_max_bytes": 256 * MIB}}
    refused = evil.post("/api/v1/run", json=huge)
    assert (refused.status_code, "at most 4,194,304" in refused.json()["detail"]) == (403, True)
    code = "import sys\nfor n in range(40): print('\\0' * 100_000); print('y' * 100_000, file=sys.stderr)"
    most = {"stdout_max_bytes": 4 * MIB, "stderr_max_bytes": 4 * MIB}
    body = {"code": code, "max_output_length": 4 * MIB, "policy": most}
    with Peak(small) as peak:
        answers = at_once(8, lambda _: evil.post("/api/v1/run", json=body))
        assert is_served(good)
    assert {one.status_code for one in answers} <= {200, 429}
    assert 200 in {one.status_code for one in answers}
    assert peak.held <= TOTAL
    assert peak.grown < 4 * TOTAL


def test_a_body_of_many_values_is_refused_before_it_is_decoded(evil, good, small):
    values = b"[" + b"[]," * 2_000_000 + b"[]]"
    bodies = {
        "/api/v1/run": b'{"code": "1", "context": {"value": %b}}',
        "/api/v1/sessions": b'{"tools": [{"name": "f", "x": %b}]}',
        "/api/v1/runs": b'{"question": "q", "model": "m", "context": {"value": %b}}',
        "/v1/exec": b'{"code": "1", "args": %b}',
    }
    with Peak(small) as peak:
        for path, body in bodies.items():
            refused = evil.post(path, content=body % values)
            assert refused.status_code == 413, (path, refused.text)
            assert "values" in refused.text
        assert is_served(good)
    assert peak.grown < TOTAL
    assert evil.post("/api/v1/run", content=b'{"code": ' + b"[" * 10**6).status_code == 400


def test_bodies_that_wait_for_their_last_byte_are_counted_and_the_rest_refused(evil, good, small):
    tenant, size, socks = tenant_of(evil), 10 * MIB, []
    key = evil.headers["authorization"]
    head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\nContent-Length: {size}\r\n\r\n"
    statuses = []
    for _ in range(5):
        sock = connect(small)
        socks.append(sock)
        try:
            sock.sendall(head.encode() + b" " * (size - 1))
            sock.settimeout(0.3)
            statuses.append(sock.recv(64)[9:12])
        except TimeoutError:
            statuses.append(b"waits")
        except OSError:
            statuses.append(b"closed")
    assert statuses[:3] == [b"waits"] * 3
    assert b"waits" not in statuses[3:]
    assert 20 * MIB < held(small, tenant) <= EACH
    assert is_served(good)
    for sock in socks:
        sock.close()
    until(lambda: held(small, tenant) < MIB)


def test_a_body_is_hardly_read_before_a_key_was_checked(small):
    host = small.url.removeprefix("http://")
    with Api(small, "") as nobody:
        body = json.dumps({"key": "x" * 20_000})
        refused = nobody.post("/console/login", content=body, headers={"origin": f"http://{host}"})
        assert (refused.status_code, "8,192 bytes" in refused.json()["detail"]) == (413, True)


@pytest.mark.parametrize("second", ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"])
def test_a_body_with_two_lengths_is_refused_and_the_connection_closed(small, second):
    head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {small.key}\r\nContent-Length: 12\r\n{second}\r\n\r\n"
    with connect(small) as sock:
        sock.sendall(head.encode() + b"0\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert answer.count(b"HTTP/1.1 ") == 1


def test_a_tenant_loses_its_own_oldest_results_first(tmp_path):
    service = OwnService(tmp_path, tier="bare", kept_bytes=4 * MIB)
    service.start()
    try:
        with (
            Api(service, service.add_key(tenant="good")) as good,
            Api(service, service.add_key(tenant="evil")) as evil,
        ):
            mine = good.post("/api/v1/run", json={"code": "'mine'", "detach": True}).json()["id"]
            made = [
                evil.post("/api/v1/run", json={"code": "print('x' * 400_000)", "detach": True})
                for _ in range(12)
            ]
            for one in made:
                until(
                    lambda one=one: (
                        evil.get(f"/api/v1/executions/{one.json()['id']}").status_code != 202
                    )
                )
            assert good.get(f"/api/v1/executions/{mine}").json()["value"] == "mine"
            assert evil.get(f"/api/v1/executions/{made[0].json()['id']}").status_code == 404
            assert evil.get(f"/api/v1/executions/{made[-1].json()['id']}").status_code == 200
    finally:
        service.stop()


def test_operators_see_what_is_held_and_what_was_refused(evil, small):
    evil.post("/api/v1/run", content=b" " * (33 * MIB))
    seen = evil.get("/health/detailed").json()
    assert seen["memory"]["max_bytes"] == TOTAL
    assert seen["memory"]["max_tenant_bytes"] == EACH
    assert 0 <= seen["memory"]["held_bytes"] <= TOTAL
    text = evil.get("/metrics").text
    assert "atoll_held_bytes " in text
    assert 'atoll_held_rejections_total{budget="memory",reason="too_large"}' in text


def test_no_text_of_a_client_becomes_a_label(evil, small):
    refused = evil.post("/v1/exec", json={"code": "1", "lang": "cobol-7"})
    assert refused.json()["error"] == "Unsupported language: cobol-7"
    text = evil.get("/metrics").text
    assert "cobol" not in text
    assert 'atoll_rejected_total{reason="unsupported_language"}' in text


def unfinished(client: Api, path: str, size: int, method: str = "PUT"):
    """Send a request whose body lacks its last byte; return the connection."""
    key = client.headers["authorization"]
    sock = connect(client.service)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\nContent-Length: {size}\r\n\r\n"
    sock.sendall(head.encode() + b"z" * (size - 1))
    return sock


def test_files_that_lack_their_last_byte_take_disk_and_no_memory(evil, good, small):
    session, tenant = evil.session(), tenant_of(evil)
    disk = small.service.disk
    with Peak(small) as peak:
        socks = [unfinished(evil, f"{session}/files/content?path=f{n}", 12 * MIB) for n in range(8)]
        socks += [unfinished(evil, "/api/v1/states", 12 * MIB, "POST") for _ in range(4)]
        until(lambda: small.call(lambda: disk.held_by(tenant)) == 12 * (12 * MIB - 1))
        assert held(small, tenant) < MIB
        assert is_served(good)
        socks[0].sendall(b"z")
        assert b" 204 " in socks[0].recv(100)
        for sock in socks:
            sock.close()
        until(lambda: small.call(lambda: disk.held_by(tenant)) == 0)
    assert peak.grown < TOTAL, "that is 144 MiB of files"
    assert evil.run(session, "import os; os.stat('f0').st_size")["value"] == 12 * MIB


def test_a_file_that_does_not_arrive_is_given_up(evil, small):
    with unfinished(evil, f"{evil.session()}/files/content?path=f", 100_000) as sock:
        assert b" 408 " in sock.recv(100), "five seconds bring 20 KiB at least"


def test_uploads_on_their_way_have_a_budget_on_disk(tmp_path):
    service = OwnService(tmp_path, tier="bare", tenant_spool_bytes=3 * MIB)
    service.start()
    try:
        with Api(service, service.key) as api:
            session = api.session()
            path = f"{session}/files/content?path=f"
            assert api.put(path, content=b"x" * (2 * MIB)).status_code == 204
            with unfinished(api, path, 2 * MIB):
                until(lambda: service.call(lambda: service.service.disk.held) > MIB)
                refused = api.put(path, content=b"x" * (2 * MIB))
                assert (refused.status_code, refused.json()["code"]) == (429, "disk")
            assert api.put(path, content=b"x" * (4 * MIB)).status_code == 413
    finally:
        service.stop()


def test_a_context_is_held_once_as_it_is_in_shared_memory(evil, good, small):
    tenant = tenant_of(evil)
    text = "x" * (3 * MIB) + "\U0001f600"
    ident = evil.post("/api/v1/contexts", content=text.encode()).json()["id"]
    with Peak(small) as peak:
        sessions = [evil.session(context={"id": ident}) for _ in range(3)]
        assert 12 * MIB <= held(small, tenant) < 16 * MIB, "four bytes a character, once"
        found = [evil.run(one, "len(context), context[-1]")["value"] for one in sessions]
        assert found == [{"$": "tuple", "v": [len(text), "\U0001f600"]}] * 3
        large = evil.post("/api/v1/contexts", content=b"y" * (9 * MIB) + text[-1].encode())
        refused = evil.post("/api/v1/sessions", json={"context": {"id": large.json()["id"]}})
        assert refused.status_code == 413, "36 MiB can never be held"
        again = evil.post("/api/v1/contexts", content=b"y" * (24 * MIB))
        refused = evil.post("/api/v1/sessions", json={"context": {"id": again.json()["id"]}})
        assert refused.status_code == 429
        assert is_served(good)
        for one in sessions:
            evil.delete(one)
        until(lambda: held(small, tenant) < MIB)
        assert evil.session(context={"id": again.json()["id"]})
    assert peak.grown < 2 * TOTAL


def test_a_context_in_a_body_is_moved_to_shared_memory(evil, small):
    tenant, text = tenant_of(evil), "é" * 2_000_000
    session = evil.session(context={"text": text})
    assert 2_000_000 <= held(small, tenant) < 4_000_000
    assert evil.run(session, "context == 'é' * 2_000_000")["value"] is True
    assert evil.get(session).json()["context"]["length"] == 2_000_000
    value = {"rows": [[n, "ä"] for n in range(20_000)], "one": {"$": "tuple", "v": [1, 2]}}
    assert evil.post(f"{session}/restart", json={"context": {"value": value}}).status_code == 200
    found = evil.run(session, "len(context['rows']), context['rows'][7], context['one']")["value"]
    assert found["v"] == [20_000, [7, "ä"], {"$": "tuple", "v": [1, 2]}]
    bad = evil.post("/api/v1/sessions", json={"context": {"value": {"$": "set", "v": 5}}})
    assert (bad.status_code, "not a value" in bad.json()["detail"]) == (400, True)


def test_looking_into_contexts_is_counted_and_given_up_for_other_work(evil, small):
    tenant = tenant_of(evil)
    idents = [
        evil.post("/api/v1/contexts", content=f"{n} line\n".encode() * 300_000).json()["id"]
        for n in range(6)
    ]
    for ident in idents:
        hits = evil.post(f"/api/v1/contexts/{ident}/search", json={"pattern": "line", "most": 1})
        assert hits.status_code == 200
        assert 6_000_000 <= held(small, tenant) <= EACH


def websocket(client: Api, kernel: str):
    """Open a kernel's websocket as a plain connection."""
    key = client.headers["authorization"].removeprefix("Bearer ")
    sock = connect(client.service)
    head = (
        f"GET /jupyter/api/kernels/{kernel}/channels?token={key} HTTP/1.1\r\nHost: localhost\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n"
    )
    sock.sendall(head.encode())
    assert b" 101 " in sock.recv(4096)
    return sock


def frame(code: str, *, metadata=None, size: int | None = None) -> bytes:
    """A message that asks for a cell; with `size`, the head of a frame that claims so many bytes."""
    header = {"msg_id": os.urandom(4).hex(), "msg_type": "execute_request", "session": "s"}
    body = json.dumps({"channel": "shell", "header": header, "parent_header": {},
                       "metadata": metadata or {}, "content": {"code": code}}).encode()  # fmt: skip
    return struct.pack(">BBQ", 0x81, 0x80 | 127, size or len(body)) + bytes(4) + body


def test_messages_that_wait_behind_a_cell_are_counted_and_the_socket_closed(evil, good, small):
    kernel, tenant = evil.post("/jupyter/api/kernels", json={}).json()["id"], tenant_of(evil)
    with Peak(small) as peak, websocket(evil, kernel) as sock:
        sock.sendall(frame("import time; time.sleep(60)"))
        until(lambda: small.service.gateway.get(principal(tenant), kernel).state == "busy")
        with pytest.raises(OSError):
            for _ in range(40):
                sock.sendall(frame("x" * (2 * MIB)))
            while sock.recv(1 << 20):
                pass
            raise OSError("closed")
        assert held(small, tenant) <= EACH
        assert is_served(good)
    assert peak.grown < 2 * TOTAL
    assert evil.delete(f"/jupyter/api/kernels/{kernel}").status_code == 204
    until(lambda: held(small, tenant) < MIB)


def test_metadata_of_a_message_is_not_kept_and_too_many_values_close_the_socket(evil, small):
    kernel, tenant = evil.post("/jupyter/api/kernels", json={}).json()["id"], tenant_of(evil)
    with websocket(evil, kernel) as sock:
        sock.sendall(frame("1", metadata={"x": [[]] * 600_000}))
        text = b""
        while piece := sock.recv(1 << 16):
            text += piece
        assert b"a message" in text, "refused before it was decoded"
    until(lambda: held(small, tenant) < MIB)


def test_parts_of_websocket_messages_are_counted_as_they_come(evil, good, small):
    kernel, tenant = evil.post("/jupyter/api/kernels", json={}).json()["id"], tenant_of(evil)
    socks = [websocket(evil, kernel) for _ in range(6)]
    with Peak(small) as peak:
        refused = 0
        for sock in socks:
            try:
                sock.sendall(frame("1", size=20 * MIB) + b"x" * (10 * MIB))
            except OSError:
                refused += 1
        assert is_served(good)
        assert held(small, tenant) <= EACH
    assert peak.held <= EACH + OTHERS
    assert peak.grown < TOTAL
    for sock in socks:
        sock.close()
    until(lambda: held(small, tenant) < MIB)


@pytest.mark.parametrize("dialect", ["native", "e2b"])
def test_a_command_that_is_too_long_is_refused_and_none_of_it_is_kept(evil, small, dialect):
    tenant, word = tenant_of(evil), "x" * (3 * MIB)
    if dialect == "native":
        session = evil.session()
        for _ in range(5):
            refused = evil.post(f"{session}/processes", json={"command": ["true", word]})
            assert refused.status_code == 413
        assert evil.get(f"{session}/processes").json()["items"] == []
        assert evil.post(f"{session}/processes", json={"command": ["/no/such"]}).status_code == 422
        assert evil.get(f"{session}/processes").json()["items"] == [], "it never ran"
    else:
        key = evil.headers["authorization"].removeprefix("Bearer ")
        made = evil.post("/e2b/v2/sandboxes", json={}, headers={"x-api-key": key}).json()
        sent = json.dumps({"process": {"cmd": "true", "args": [word]}}).encode()
        headers = {
            "e2b-sandbox-id": made["sandboxID"], "x-access-token": made["envdAccessToken"],
            "content-type": "application/connect+json",
        }  # fmt: skip
        body = struct.pack(">BI", 0, len(sent)) + sent
        done = evil.post("/e2b/process.Process/Start", content=body, headers=headers)
        assert b"resource_exhausted" in done.content, done.content[:300]
    assert held(small, tenant) < 2 * MIB


def test_answers_kept_by_key_and_trajectories_count_as_stored(small):
    key = small.add_key(tenant="stores", scopes=SCOPES, quota=Quota(stored_bytes=100_000))
    with Api(small, key) as api:
        code = {"code": "print('x' * 60_000)"}
        first = api.post("/api/v1/run", json=code, headers={"idempotency-key": "a"})
        assert first.status_code == 200
        second = api.post("/api/v1/run", json=code, headers={"idempotency-key": "b"})
        assert second.status_code == 200, "it ran; only its answer cannot be kept"
        again = api.post("/api/v1/run", json=code, headers={"idempotency-key": "b"})
        assert (again.status_code, again.json()["code"]) == (409, "answer_not_kept")
        line = (json.dumps({"kind": "x", "text": "y" * 15_000}).encode() + b"\n") * 2
        assert api.post("/api/v1/runs/upload", content=line).status_code == 201
        refused = api.post("/api/v1/runs/upload", content=line)
        assert (refused.status_code, refused.json()["code"]) == (403, "quota")
        refused = api.post("/api/v1/contexts", content=b"z" * 20_000)
        assert (refused.status_code, refused.json()["code"]) == (403, "quota")
        for one in api.get("/api/v1/runs").json()["items"]:
            assert api.delete(f"/api/v1/runs/{one['id']}").status_code == 204
        assert api.post("/api/v1/contexts", content=b"z" * 20_000).status_code == 201


def test_uploads_at_one_time_cannot_pass_the_quota_together(small):
    key = small.add_key(tenant="many", scopes=SCOPES, quota=Quota(stored_bytes=1_000))
    with Api(small, key) as api, contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(small)) for _ in range(10)]
        for sock in socks:
            head = f"POST /api/v1/contexts HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Length: 900\r\n\r\n"
            sock.sendall(head.encode() + b"x" * 899)
        until(lambda: small.call(lambda: small.service.stored.used("many")) >= 899)
        for sock in socks:
            sock.sendall(b"x")
        statuses = sorted(sock.recv(100)[9:12] for sock in socks)
        assert statuses == [b"201"] + [b"403"] * 9
        assert sum(one["size"] for one in api.get("/api/v1/contexts").json()["items"]) == 900


def test_a_run_that_cannot_begin_does_not_count(tmp_path):
    service = OwnService(tmp_path, tier="bare", models=("openai/none",))
    service.start()
    try:
        with Api(service, service.key) as api:
            body = {"question": "q", "model": "openai/none", "budget": {"bogus": 1}}
            for _ in range(20):
                refused = api.post("/api/v1/runs", json=body)
                assert refused.status_code == 400, refused.text
            assert api.get("/api/v1/runs").json()["items"] == []
            assert service.service.runs.running == 0
    finally:
        service.stop()


def test_children_that_have_ended_are_not_listed_for_ever(evil):
    parent = evil.session()
    made = evil.post(f"{parent}/fork", json={"count": 2}).json()
    first, second = (one["session"]["id"] for one in made)
    assert evil.get(parent).json()["children"] == [first, second]
    evil.delete(f"/api/v1/sessions/{first}")
    assert evil.get(parent).json()["children"] == [second]


def test_many_slow_readers_of_a_large_result_are_counted(evil, good, small):
    body = {"code": "print('x' * 3_000_000)", "max_output_length": 4 * MIB, "detach": True}
    ident = evil.post("/api/v1/run", json=body).json()["id"]
    until(lambda: evil.get(f"/api/v1/executions/{ident}").status_code == 200)
    key, socks = evil.headers["authorization"], []
    with Peak(small) as peak:
        for _ in range(30):
            sock = connect(small, buffer=4096)
            sock.sendall(
                f"GET /api/v1/executions/{ident} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n\r\n".encode()
            )
            socks.append(sock)
        statuses = [sock.recv(64)[9:12] for sock in socks]
        assert set(statuses) <= {b"200", b"404", b"429"}, "404: it was given up for its readers"
        assert 1 <= statuses.count(b"200") < 12
        assert is_served(good)
    for sock in socks:
        sock.close()
    assert peak.held <= EACH + OTHERS
