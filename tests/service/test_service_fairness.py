"""One tenant cannot take another's threads, places or watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from clients import Api
from own_service import OwnService

from atoll.agent.trajectory import read
from atoll.concurrency.shares import MAX_THREADS_OF_ONE
from atoll.files.inotify import MAX_WATCHES
from atoll.search.index import ContextIndex
from atoll.service.api import overview
from atoll.service.core import agent_runs
from atoll.service.core.sessions import MAX_NODES, Sessions
from atoll.service.core.tenant_session import HostedSession


@pytest.fixture
def silent_searches(monkeypatch):
    """Searches that do not end before the event is set."""
    release, begun = threading.Event(), threading.Semaphore(0)
    grep = ContextIndex.grep

    def wait(self, *args, **options):
        begun.release()
        assert release.wait(60)
        return grep(self, *args, **options)

    monkeypatch.setattr(ContextIndex, "grep", wait)
    yield begun, release
    release.set()


def test_searches_of_one_key_do_not_delay_the_download_of_another(
    api: Api, other: Api, silent_searches
):
    begun, release = silent_searches
    session = other.session()
    other.put(f"{session}/files/content?path=a.txt", content=b"12345")
    context = api.post("/api/v1/contexts", content=b"a\nb\n").json()["id"]
    with ThreadPoolExecutor(24) as threads:
        asked = [
            threads.submit(api.post, f"/api/v1/contexts/{context}/search", json={"pattern": "a"})
            for _ in range(24)
        ]
        assert begun.acquire(timeout=60)
        found = other.get(f"{session}/files/content?path=a.txt")  # while none of them ends
        assert found.content == b"12345"
        release.set()
        assert {one.result(60).status_code for one in asked} == {200}


def test_a_key_with_too_many_operations_that_wait_for_a_thread_is_refused(
    api: Api, other: Api, service: OwnService, silent_searches, monkeypatch
):
    _, release = silent_searches
    monkeypatch.setattr("atoll.service.core.service.MAX_WAITING_THREADS", 2)
    context = api.post("/api/v1/contexts", content=b"a\nb\n").json()["id"]
    path, body = f"/api/v1/contexts/{context}/search", {"pattern": "a"}
    most, key = MAX_THREADS_OF_ONE + 2, api.get("/api/v1/whoami").json()["key"]
    with ThreadPoolExecutor(most) as threads:
        asked = [threads.submit(api.post, path, json=body) for _ in range(most)]
        wait_until(lambda: service.service.threads.waiting_of(key) == 2)
        refused = api.post(path, json=body)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert "2 operations of the key wait for a thread" in refused.json()["detail"]
        assert other.get("/api/v1/whoami").status_code == 200
        release.set()
        assert {one.result(60).status_code for one in asked} == {200}


def wait_until(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_sleeping_runs_of_one_key_do_not_delay_the_run_of_another(
    api: Api, other: Api, service: OwnService
):
    running = service.settings.max_running
    for _ in range(3 * running):
        made = api.post("/api/v1/run", json={"code": "import time\ntime.sleep(60)", "detach": True})
        assert made.status_code == 202
    found = other.post("/api/v1/run", json={"code": "print(1)"}).json()
    assert found["stdout"] == "1\n"
    assert service.service.limit.waiting > 0  # those of the first key still do
    for one in service.service.executions.running:
        service.call(one.cancel)


def test_watches_of_one_key_do_not_take_the_watches_of_another(api: Api, other: Api):
    mine, theirs = api.session(), other.session()
    path = f"{mine}/files/watch?path=."
    with contextlib.ExitStack() as held:
        for _ in range(MAX_WATCHES):
            lines = held.enter_context(api.stream("GET", path)).iter_lines()
            held.callback(lines.close)  # a generator that is dropped ends its response
            assert next(lines) == '{"type":"watching"}'
        refused = api.get(path)
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        done = other.events(f"{theirs}/processes", {"command": "echo hi"})
        assert [one["type"] for one in done] == ["started", "stdout", "exited"]


def test_the_tree_of_a_large_run_is_made_beside_the_event_loop(api: Api, monkeypatch):
    loops = []

    def note(*args, **options):
        with contextlib.suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return read(*args, **options)

    monkeypatch.setattr(agent_runs, "read", note)
    monkeypatch.setattr(agent_runs, "TREE_EVENTS", 500)
    lines = [
        {"type": "subcall_started", "run": "r", "call": f"c{n}", "parent": f"c{n - 1}"}
        for n in range(2_000)
    ]
    body = "\n".join(map(json.dumps, lines)).encode()
    made = api.post("/api/v1/runs/upload", content=body)
    assert made.status_code == 201, made.text
    found = api.get(f"/api/v1/runs/{made.json()['id']}/tree").json()
    assert found["truncated"] is True
    assert loops == []


def test_the_fork_tree_of_a_session_with_many_relatives_is_cut_off(api: Api, service: OwnService):
    session = api.session()
    ident = session.rpartition("/")[2]

    def many() -> None:
        ledger, tenant = service.service.database, service.service.sessions.find(ident).tenant
        for number in range(MAX_NODES + 10):
            row = (f"ses_{number}", tenant, ident if not number else f"ses_{number - 1}", number)
            ledger.write("INSERT INTO sessions VALUES (?, ?, ?, ?, 1, 'deleted')", *row)

    service.call(many)
    found = api.get(f"{session}/tree").json()
    assert (len(found["nodes"]), found["truncated"]) == (MAX_NODES, True)


def test_pages_of_sessions_are_whole_in_whatever_order_they_were_restored(
    api: Api, service: OwnService
):
    made = [api.session().rpartition("/")[2] for _ in range(5)]

    def shuffle() -> None:
        known = service.service.sessions._sessions
        for ident in (made[3], made[0], made[2]):
            known[ident] = known.pop(ident)
        for ident in made[1:3]:
            known[ident].facts.created = known[made[0]].facts.created
            query = "UPDATE sessions SET created = ? WHERE id = ?"
            service.service.database.write(query, known[made[0]].facts.created, ident)

    service.call(shuffle)
    seen, cursor = [], ""
    while cursor is not None:
        page = api.get(f"/api/v1/sessions?limit=2&cursor={cursor}").json()
        seen += [one["id"] for one in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(seen) == sorted(made)


def test_the_openapi_document_promises_idempotency_keys_where_they_are_honoured(api: Api):
    paths = api.get("/openapi.json").json()["paths"]
    keyed = {
        path
        for path, methods in paths.items()
        for one in methods.get("post", {}).get("parameters", ())
        if one["name"] == "Idempotency-Key"
    }
    session = "/api/v1/sessions/{session}"
    verbs = ("executions", "shell", "fork", "checkpoints", "save", "commit")
    native = {f"{session}/{one}" for one in verbs}
    assert {one for one in keyed if one.startswith("/api")} == {
        "/api/v1/run", "/api/v1/runs", "/api/v1/sessions", *native,
    }  # fmt: skip
    assert "/exec" not in keyed
    assert not any(one.endswith(("/execute", "/fork")) for one in keyed - native)


def test_watchers_of_the_overview_share_one_description(api: Api, monkeypatch):
    api.session()
    described = []
    describe = HostedSession.describe

    def count(self):
        described.append(self.id)
        return describe(self)

    monkeypatch.setattr(HostedSession, "describe", count)
    monkeypatch.setattr(overview, "EVERY_SECONDS", 1000.0)
    with contextlib.ExitStack() as held:
        for _ in range(20):
            path = "/api/v1/overview/events"
            lines = held.enter_context(api.stream("GET", path)).iter_lines()
            held.callback(lines.close)
            assert json.loads(next(lines))["type"] == "sessions"
    assert len(described) == 1


def test_a_session_that_cannot_be_ended_keeps_no_other_from_ending(
    api: Api, service: OwnService, monkeypatch, caplog
):
    first, second = (api.session(idle_seconds=1000).rpartition("/")[2] for _ in range(2))
    end = Sessions.end

    async def fail(self, session, reason="deleted"):
        if session.id == first:
            raise ValueError("out of order")
        await end(self, session, reason)

    def expire() -> None:
        for ident in (first, second):
            service.service.sessions.find(ident).used = 0.0

    with monkeypatch.context() as patch:
        patch.setattr(Sessions, "end", fail)
        service.call(expire)
        service.call(service.service.sessions.sweep)
    assert service.service.sessions.find(second) is None
    assert f"looking after the session {first} failed" in caplog.text
