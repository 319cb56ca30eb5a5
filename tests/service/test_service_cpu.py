"""A key's CPU time is that of all that its sandboxes run, and ends them when it is used up."""

from __future__ import annotations

import time

import pytest
from clients import Api
from own_service import OwnService

from atoll.service.access.keys import SCOPES, Quota

BURN = "import time\nwhile time.process_time() < {}: pass"


@pytest.fixture
def limited(service: OwnService):
    """Makes clients that may use so many CPU seconds a day."""
    made = []

    def make(seconds: float) -> Api:
        quota = Quota(requests_per_second=1e6, burst=10**6, cpu_seconds_per_day=seconds)
        tenant = f"cpu{time.monotonic_ns()}"
        made.append(Api(service, service.add_key(tenant=tenant, scopes=SCOPES, quota=quota)))
        return made[-1]

    yield make
    for client in made:
        for one in client.get("/api/v1/sessions?limit=200").json()["items"]:
            client.delete(f"/api/v1/sessions/{one['id']}")
        client.close()


def used(client: Api) -> float:
    return client.get("/api/v1/whoami").json()["use"]["cpu_seconds_today"]


def wait_until(reached):
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_cpu_time_of_shell_commands_is_counted(limited):
    client = limited(1000)
    session = client.session()
    code = BURN.format(0.7).replace("\n", "\\n")
    done = client.post(f"{session}/shell", json={"command": f"python3 -c $'{code}'"})
    assert done.json()["exit_code"] == 0, done.text
    assert used(client) > 0.5, "a clock of ticks measures it"


def test_a_key_without_cpu_time_can_start_nothing(limited, service: OwnService):
    client = limited(1000)
    session = client.session()
    key = client.get("/api/v1/whoami").json()["key"]
    principal = service.call(lambda: service.service.keys.of_id(key))
    service.call(lambda: service.service.quotas.used_cpu(principal, 1000))
    refused = client.post(f"{session}/executions", json={"code": "1"})
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    for path, body in (("processes", {"command": "true"}), ("fork", {})):
        assert client.post(f"{session}/{path}", json=body).status_code == 429
    assert client.post("/api/v1/sessions", json={}).status_code == 429
    assert client.get(session).json()["state"] == "running"  # it computes nothing now


@pytest.mark.parametrize("how", ["thread", "process", "cell"])
def test_a_session_that_computes_without_cpu_time_is_stopped(limited, how):
    client = limited(1)
    session = client.session()
    burn = BURN.format(1e9)
    if how == "thread":
        code = f"import threading\nthreading.Thread(target=exec, args=({burn!r}, {{}})).start()"
        client.run(session, code)
    elif how == "process":
        made = client.post(f"{session}/processes", json={"command": ["python3", "-c", burn]})
        assert made.status_code == 201
    else:
        done = client.post(f"{session}/executions", json={"code": burn})
        assert done.status_code == 429, done.text
        assert "has used its 1 CPU seconds of today" in done.json()["detail"]
    wait_until(lambda: client.get(session).status_code == 410)
    assert "has used its 1 CPU seconds of today" in client.get(session).json()["detail"]
    assert used(client) >= 1


def test_a_run_without_cpu_time_is_stopped(limited):
    client = limited(1)
    done = client.post("/api/v1/run", json={"code": BURN.format(1e9)})
    assert done.status_code == 429, done.text
    assert used(client) >= 1


def test_cpu_time_is_counted_when_a_session_ends(limited):
    client = limited(1000)
    session = client.session()
    burn = BURN.format(0.3)
    made = client.post(f"{session}/processes", json={"command": ["python3", "-c", burn]})
    number = made.json()["id"]
    wait_until(lambda: not client.get(f"{session}/processes/{number}").json()["running"])
    assert client.delete(session).status_code == 204
    assert used(client) >= 0.3


def test_cells_are_counted_once(limited):
    client = limited(1000)
    session = client.session()
    before = used(client)
    client.run(session, BURN.format(0.5))
    client.run(session, "1")
    cells = used(client) - before
    assert 0.2 < cells < 0.9  # the first cell's time is not counted again with the second
    shown = client.get(session).json()["usage"]["cpu_seconds"]
    assert shown == pytest.approx(used(client), abs=0.3)
