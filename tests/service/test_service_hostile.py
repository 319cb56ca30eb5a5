"""Clients that are slow, huge, gone or lying; a full disk; an end under load."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import threading
import time

import pytest
from clients import Api, connect
from own_service import OwnService

from atoll.service.access.keys import SCOPES


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A service with short limits."""
    service = OwnService(
        tmp_path_factory.mktemp("strict"), tier="bare", body_seconds=0.3, header_seconds=0.3,
        max_body_bytes=100_000, event_bytes=20_000, max_running=1, max_queue=1, drain_seconds=20,
    )  # fmt: skip
    service.start()
    yield service
    service.stop()


@pytest.fixture
def client(strict):
    with Api(strict, strict.key) as api:
        yield api


def idle(service: OwnService) -> bool:
    made = service.service
    return not made.executions.running and made.limit.running == 0 and made.limit.waiting == 0


def until(check, seconds=20):
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def test_a_body_that_trickles_in_is_given_up(strict, client):
    with connect(strict) as sock:
        head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {strict.key}\r\nContent-Length: 50\r\n\r\n"
        sock.sendall(head.encode() + b"{")
        assert b" 408 " in sock.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
def test_a_head_that_never_comes_is_given_up(strict, sent):
    with connect(strict) as sock:
        sock.sendall(sent)
        while sock.recv(65536):
            pass


def test_huge_headers_and_huge_bodies_are_refused(strict, client):
    with connect(strict) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000)
        assert b" 400 " in sock.recv(4096)
    assert client.post("/api/v1/run", content=b"x" * 200_000).status_code == 413

    def chunks():
        for _ in range(30):
            yield b"x" * 10_000

    refused = client.post("/api/v1/run", content=chunks())
    assert refused.status_code == 413
    said = refused.json()["detail"]
    assert "at most 100,000 bytes" in said
    assert "operator can raise the limit: ATOLL_SERVE_MAX_BODY_BYTES" in said


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8437", "127.0.0.1.evil.example", ""]
)
def test_a_foreign_host_name_is_refused(strict, client, host):
    done = client.get("/health", headers={"host": host})
    assert (done.status_code, done.json()["code"]) == (421, "host")


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_what_a_client_ran_ends_when_it_goes_away(strict, client, accept):
    body = json.dumps({"code": "print('on', flush=True)\nwhile True: pass"})
    head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {strict.key}\r\nAccept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n"
    with connect(strict) as sock:
        sock.sendall((head + body).encode())
        until(lambda: strict.service.limit.running == 1)
    until(lambda: idle(strict))
    assert client.post("/api/v1/run", json={"code": "1"}).json()["value"] == 1


def test_a_client_that_goes_in_each_phase_leaves_nothing(strict, client):
    body = json.dumps({"code": "print('x' * 100)"})
    whole = (
        f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {strict.key}\r\n"
        f"Accept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
    for cut in (1, 20, len(whole) - len(body), len(whole) - 1, len(whole)):
        with connect(strict) as sock:
            sock.sendall(whole[:cut])
    until(lambda: idle(strict))
    assert len(strict.service.sessions) == 0


def test_a_slow_reader_does_not_grow_the_service(strict, client):
    code = "for n in range(3000): print('x' * 1000)"
    body = json.dumps({"code": code, "max_output_length": 8 * 10**6})
    head = f"POST /api/v1/run HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {strict.key}\r\nAccept: application/x-ndjson\r\nContent-Length: {len(body)}\r\n\r\n"
    made = strict.service.executions
    with connect(strict, buffer=4096) as sock:
        sock.sendall((head + body).encode())
        text = b""
        while (accepted := re.search(rb"exe_[\w-]{21}", text)) is None:
            text += sock.recv(200)
        ident = accepted[0].decode()
        until(lambda: ident in made._finished)
        running = made._finished[ident]
        assert running._size < 100_000 + len(running.body)
        while b'"type":"result"' not in text:
            text += sock.recv(1 << 20)
        assert b'"type":"dropped"' in text


def test_a_full_queue_is_503_and_says_when_to_come_back(strict, client):
    started = [
        client.post("/api/v1/run", json={"code": "while True: pass", "detach": True}).json()["id"]
        for _ in range(2)
    ]
    until(lambda: strict.service.limit.running == 1 and strict.service.limit.waiting == 1)
    done = client.post("/api/v1/run", json={"code": "1"})
    assert (done.status_code, done.json()["code"], done.json()["retryable"]) == (503, "busy", True)
    assert done.headers["retry-after"] == "2"
    for one in started:
        client.post(f"/api/v1/executions/{one}/cancel")
    until(lambda: idle(strict))


def test_a_full_disk_refuses_what_has_to_be_kept_and_runs_code_all_the_same(
    strict, client, monkeypatch
):
    import errno

    key = strict.add_key()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pathlib.Path.open", full)
    done = client.post("/api/v1/contexts", content=b"text")
    assert (done.status_code, done.json()["code"]) == (507, "storage")
    assert client.post("/api/v1/run", json={"code": "1"}).json()["value"] == 1
    monkeypatch.undo()

    def cannot_write(*_args):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(strict.service.database, "write", cannot_write)
    with Api(strict, key) as never_used:
        assert never_used.post("/api/v1/run", json={"code": "1"}).json()["value"] == 1
    monkeypatch.undo()
    assert client.post("/api/v1/contexts", content=b"text").status_code == 201
    assert not list((strict.settings.folder / "blobs").glob("*.draft"))


def test_an_end_under_load_loses_nothing_that_was_accepted(strict):
    with Api(strict, strict.add_key(scopes=SCOPES)) as api:
        answers = []

        def run():
            done = api.post("/api/v1/run", json={"code": "import time; time.sleep(0.3); 'done'"})
            answers.append((done.status_code, done.json().get("value")))

        runs = [threading.Thread(target=run) for _ in range(2)]
        for one in runs:
            one.start()
        until(lambda: len(strict.service.executions.running) == 2)
        strict.call(strict.service.drain)
        assert api.get("/ready").status_code == 503
        refused = api.post("/api/v1/run", json={"code": "1"})
        assert (refused.status_code, refused.json()["code"]) == (503, "draining")
        assert refused.headers["retry-after"] == "5"
        strict.service.draining = False  # other tests use it too
        for one in runs:
            one.join()
        assert answers == [(200, "done")] * 2


def test_idle_sockets_do_not_keep_others_out(tmp_path):
    service = OwnService(tmp_path, tier="bare", header_seconds=30)
    service.start()
    socks = []
    try:
        socks.extend(connect(service) for _ in range(300))
        with Api(service, service.key) as client:
            assert client.post("/api/v1/run", json={"code": "print(1)"}).json()["stdout"] == "1\n"
    finally:
        for sock in socks:
            sock.close()
        service.stop()


@pytest.mark.parametrize("jump", [86_400 * 400, -86_400 * 400])
def test_a_clock_that_jumps_ends_nothing_and_forgets_nothing(strict, client, monkeypatch, jump):
    session = client.session()
    headers = {"idempotency-key": f"clock{jump}"}
    first = client.post(
        "/api/v1/run", json={"code": "import os; os.urandom(8).hex()"}, headers=headers
    )
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + jump)
    made = strict.service

    async def sweep():
        await made.sessions.sweep()
        made.executions.sweep()
        made.objects.sweep()
        made.runs.sweep()
        made.database.sweep(made.settings.idempotency_seconds)

    strict.call(sweep)
    assert client.run(session, "1 + 1")["value"] == 2
    again = client.post(
        "/api/v1/run", json={"code": "import os; os.urandom(8).hex()"}, headers=headers
    )
    assert again.json() == first.json()
    assert client.get(session).json()["expires_at"] - real() < 86_400 * 2
    client.delete(session)


def test_a_killed_zygote_or_supervisor_is_replaced_and_no_request_is_lost(strict, client):
    from atoll.jail.supervisor.client import supervisor
    from bench import processes

    for victim in (0, 1):
        pair = processes.zygote_host_and_zygote(supervisor.pid)
        assert pair is not None
        os.kill(pair[victim], signal.SIGKILL)
        ends = []
        for _ in range(20):
            done = client.post("/api/v1/run", json={"code": "print(1)"})
            ends.append(done.status_code)
            if done.status_code == 200 and done.json()["stdout"] == "1\n":
                break
            assert done.status_code in (200, 410, 503), done.text
        assert ends[-1] == 200, ends
