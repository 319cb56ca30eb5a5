"""Streams end properly: with a last event, when their key is revoked or their session ends."""

from __future__ import annotations

import json
import time

import pytest
from clients import Api
from own_service import OwnService

from atoll.service.access.keys import SCOPES


def wait_until(reached):
    end = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)


def lines_of(answer):
    """The events of a stream, one at a time; keep it, as it ends its stream when it goes."""
    return (json.loads(line) for line in answer.iter_lines() if line)


@pytest.fixture
def doomed(service: OwnService, api: Api):
    """A client of the same tenant whose key can be revoked."""
    tenant = api.get("/api/v1/whoami").json()["tenant"]
    with Api(service, service.add_key(tenant=tenant, scopes=SCOPES)) as client:
        yield client


@pytest.mark.parametrize("what", ["execution", "process", "watch", "overview"])
def test_a_stream_ends_when_its_key_is_revoked(api: Api, doomed: Api, what):
    session, headers = doomed.session(), {"accept": "application/x-ndjson"}
    method, path, body = {
        "execution": ("POST", f"{session}/executions", {"code": "import time\ntime.sleep(60)"}),
        "process": ("POST", f"{session}/processes", {"command": "sleep 60"}),
        "watch": ("GET", f"{session}/files/watch?path=.", None),
        "overview": ("GET", "/api/v1/overview/events", None),
    }[what]
    with doomed.stream(method, path, json=body, headers=headers) as answer:
        events = lines_of(answer)
        next(events)
        key = doomed.get("/api/v1/whoami").json()["key"]
        assert api.delete(f"/api/v1/keys/{key}").status_code == 204
        *_, last = events  # it ends cleanly: a cut connection would raise
    assert last["type"] == "fault"
    assert (last["problem"]["status"], last["problem"]["code"]) == (401, "unauthorized")
    if what == "execution":  # nobody waits for it any more, so it is interrupted
        wait_until(lambda: not api.get(session).json()["busy"])


def test_a_stream_ends_when_another_process_revokes_its_key(doomed: Api, service: OwnService):
    with doomed.stream("GET", "/api/v1/overview/events") as answer:
        events = lines_of(answer)
        next(events)
        key = doomed.get("/api/v1/whoami").json()["key"]
        service.call(lambda: service.service.keys.revoke(key))  # as `atoll keys revoke` does
        service.call(service.service.streams.end_refused)  # which every sweep does
        *_, last = events
    assert last["problem"]["status"] == 401


def test_a_stream_of_a_valid_key_goes_on_when_another_key_is_revoked(
    api: Api, doomed: Api, service: OwnService
):
    with api.stream("GET", "/api/v1/overview/events") as answer:
        events = lines_of(answer)
        next(events)
        key = doomed.get("/api/v1/whoami").json()["key"]
        assert api.delete(f"/api/v1/keys/{key}").status_code == 204
        assert next(events)["type"] != "fault"
        events.close()


@pytest.mark.parametrize("what", ["process", "watch"])
def test_a_stream_ends_cleanly_when_its_session_is_deleted(api: Api, what, caplog):
    session, headers = api.session(), {"accept": "application/x-ndjson"}
    method, path, body = {
        "process": ("POST", f"{session}/processes", {"command": "sleep 60"}),
        "watch": ("GET", f"{session}/files/watch?path=.", None),
    }[what]
    with api.stream(method, path, json=body, headers=headers) as answer:
        events = lines_of(answer)
        next(events)
        assert api.delete(session).status_code == 204
        *_, last = events
    assert last["type"] == "fault"
    assert last["problem"]["detail"] == "the session has ended (deleted)"
    assert "Traceback" not in caplog.text
