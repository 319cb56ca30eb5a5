"""`atoll serve --fleet`, as processes before a fleet on Ray: one is killed, and then a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="the extra `ray` is not installed")

import httpx2

from atoll.fleet.log import END, SessionLog
from atoll.fleet.store import Store
from atoll.service.access.keys import Keys
from atoll.service.storage.database import Database
from bench.local_fleet import LocalFleet, free_port

pytestmark = pytest.mark.timeout(400)
PATIENCE_SECONDS = 120


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A key that was made for the first service: the second finds it in the fleet's store."""
    with contextlib.closing(Database(tmp_path / "1")) as ledger:
        return Keys(ledger).add("test")


@contextlib.contextmanager
def served(folder: Path, fleet: LocalFleet, key: str) -> Iterator[tuple[Any, httpx2.Client]]:
    port = free_port()
    words = ["serve", "--folder", str(folder), "--port", str(port), "--fleet", fleet.address]
    process = subprocess.Popen(
        [sys.executable, "-m", "atoll.cli.main", *words], stdout=subprocess.DEVNULL
    )
    headers = {"authorization": f"Bearer {key}"}
    client = httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=120)
    try:
        _wait(client, process)
        yield process, client
    finally:
        client.close()
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _wait(client: httpx2.Client, process: Any) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(httpx2.HTTPError):
            client.get("/whoami").raise_for_status()
            return
        time.sleep(0.1)
    raise AssertionError(f"the service does not answer: exit code {process.poll()}")


def run(client: httpx2.Client, session: str, code: str) -> Any:
    """Run a cell under a key: one whose node dies meanwhile is run again from the state before."""
    key = {"idempotency-key": code}
    answer = client.post(f"/sessions/{session}/executions", json={"code": code}, headers=key)
    assert answer.status_code == 200, answer.text
    return answer.json()["value"]


def test_a_session_of_the_service_survives_its_service_and_its_node(
    fleet: LocalFleet, tmp_path: Path, key: str
) -> None:
    with (
        served(tmp_path / "1", fleet, key) as (process, one),
        served(tmp_path / "2", fleet, key) as (_, two),
    ):
        session = one.post("/sessions", json={}).json()["id"]
        run(one, session, "x = 1")
        assert run(two, session, "x + 1") == 2, "it is passed on"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert run(two, session, "x = 2; x") == 2, "it is taken over"
        fleet.kill(_node_of_last_claim(fleet))
        assert run(two, session, "x += 1; x") == 3, "it goes on on another node"
        assert two.delete(f"/sessions/{session}").status_code == 204


def _node_of_last_claim(fleet: LocalFleet) -> str:
    """Return the node that has the fleet's only session with a log that has not ended."""

    async def find() -> str:
        store = Store(fleet.settings.store)
        idents = {name.split("/")[1] for name in await store.names("sessions")}
        lasts = [await SessionLog(store, ident).last() for ident in idents]
        (owner,) = [one.owner for one in lasts if one.kind != END]
        return owner

    return asyncio.run(find())
