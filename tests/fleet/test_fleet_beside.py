"""What a service offers beside cells, on a fleet: processes, watched folders, pauses; its keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")
pytest.importorskip("httpx2", reason="the extra `ray` is not installed")

from replicas import Replica, replica, share_key
from without_ray import FleetHere, fleet_here

from atoll.errors import BusyError, FleetError
from atoll.fleet import files as fleet_files
from atoll.fleet.store import Store

NDJSON = {"accept": "application/x-ndjson"}


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetHere]:
    async with fleet_here(tmp_path, monkeypatch, "a", "b", capacity=8) as made:
        yield made


@pytest.fixture
async def pair(fleet: FleetHere, tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    async with replica(tmp_path / "1") as one, replica(tmp_path / "2") as two:
        await share_key(one, two)
        yield one, two


async def events(one: Replica, method: str, path: str, **given: Any) -> AsyncIterator[Any]:
    path = f"/api/v1{path}"
    async with one.client.stream(method, path, headers=NDJSON, **given) as answer:
        assert answer.status_code in (200, 201), await answer.aread()
        async for line in answer.aiter_lines():
            told = json.loads(line)
            if told["type"] != "keepalive":
                yield told


def node_of(fleet: FleetHere) -> str:
    """Return the name of the node that has the only session."""
    (name,) = [one.name for one in fleet.hosts if one.facts().sessions]
    return name


async def test_processes_run_on_a_node_with_input_output_and_signals(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    at = await one.session()
    told = [
        each
        async for each in events(
            one, "POST", f"{at}/processes", json={"command": "echo out; echo err >&2; exit 3"}
        )
    ]
    assert told[0]["type"] == "started"
    assert {(each["type"], each["text"]) for each in told if "text" in each} == {
        ("stdout", "out\n"),
        ("stderr", "err\n"),
    }
    assert told[-1]["exit_code"] == 3
    made = await two.ask("POST", f"{at}/processes", json={"command": ["cat"], "stdin": True})
    cat = f"{at}/processes/{made.json()['id']}"
    wrote = await one.ask("POST", f"{cat}/input", content=b"x" * 100_000)
    assert (wrote.status_code, wrote.json()) == (200, {"written": 100_000})
    assert await one.run(at, "1 + 1") == 2, "cells run beside it, and are saved"
    await one.ask("POST", f"{cat}/input?end=1", content=b"y")
    told = [each async for each in events(one, "GET", f"{cat}/events")]
    assert "".join(each["text"] for each in told if "text" in each) == "x" * 100_000 + "y"
    sleeps = (await one.ask("POST", f"{at}/processes", json={"command": "sleep 100"})).json()
    sleeps_at = f"{at}/processes/{sleeps['id']}"
    await one.ask("POST", f"{sleeps_at}/signal", json={"signal": "SIGTERM"})
    told = [each async for each in events(one, "GET", f"{sleeps_at}/events")]
    assert (told[-1]["exit_code"], told[-1]["signal"]) == (143, 15)


async def test_a_process_whose_node_is_lost_is_told_to_be_gone(
    fleet: FleetHere, pair: tuple[Replica, Replica]
) -> None:
    one, _ = pair
    at = await one.session()
    await one.run(at, "x = 1")
    made = (await one.ask("POST", f"{at}/processes", json={"command": "sleep 100"})).json()
    stream = events(one, "GET", f"{at}/processes/{made['id']}/events")
    assert (await anext(stream))["type"] == "started"
    fleet.kill(node_of(fleet))
    last = [told async for told in stream][-1]
    assert (last["type"], last["problem"]["status"]) == ("fault", 410)
    assert "went on on another machine" in last["problem"]["detail"]
    assert await one.run(at, "x") == 1
    written = await one.ask("POST", f"{at}/processes/{made['id']}/input", content=b"late")
    assert written.status_code == 404
    again = await one.ask("POST", f"{at}/processes", json={"command": "true"})
    assert again.status_code == 201, again.text


async def test_a_folder_is_watched_on_a_node_and_on_the_next_one(
    fleet: FleetHere, pair: tuple[Replica, Replica]
) -> None:
    one, two = pair
    at = await one.session()
    await one.run(at, "open('before', 'w').close()")
    stream = events(two, "GET", f"{at}/files/watch?path=.")
    assert (await anext(stream))["type"] == "watching"
    await one.run(at, "open('first', 'w').close()")
    assert await _change_of(stream, "first")
    fleet.kill(node_of(fleet))
    while (await anext(stream))["kind"] != "lost":
        pass
    await one.run(at, "open('second', 'w').close()")
    assert await _change_of(stream, "second")
    await stream.aclose()
    refused = await one.ask("GET", f"{at}/files/watch?path=missing")
    assert refused.status_code == 404
    assert "not a folder that can be watched" in refused.json()["detail"]


async def _change_of(stream: AsyncIterator[Any], path: str) -> bool:
    async with asyncio.timeout(60):
        while (await anext(stream)).get("path") != path:
            pass
    return True


async def test_watched_folders_of_a_session_are_bounded_and_end_with_it(
    fleet: FleetHere, pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_files, "MAX_WATCHES", 2)
    one, _ = pair
    at = await one.session()
    files = one.service.sessions.find(at.rpartition("/")[2]).files
    kept = [await files.watch(".") for _ in range(2)]
    refused = await one.ask("GET", f"{at}/files/watch?path=.")
    assert (refused.status_code, "at most 2 watched folders" in refused.text) == (503, True)
    kept.pop().close()
    while sum(map(_watched, fleet.hosts)) > 1:  # noqa: ASYNC110 - the node tells nobody
        await asyncio.sleep(0.01)
    await one.ask("DELETE", at)
    assert sum(map(_watched, fleet.hosts)) == 0


async def test_watches_of_a_session_that_begin_at_once_are_bounded_too(
    fleet: FleetHere, pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_files, "MAX_WATCHES", 2)
    at = await pair[0].session()
    files = pair[0].service.sessions.find(at.rpartition("/")[2]).files
    begun = await asyncio.gather(*(files.watch(".") for _ in range(6)), return_exceptions=True)
    refused = [result for result in begun if isinstance(result, BusyError)]
    assert (len(refused), sum(map(_watched, fleet.hosts))) == (4, 2)
    await pair[0].ask("DELETE", at)
    assert sum(map(_watched, fleet.hosts)) == 0


def _watched(host: Any) -> int:
    return len(host._node_files._used)


async def test_a_paused_session_on_a_fleet_does_not_run_until_the_next_call(
    fleet: FleetHere, pair: tuple[Replica, Replica]
) -> None:
    one, two = pair
    at = await one.session()
    await one.run(
        at, "import threading, time\nn = [0]\ndef count():\n  while True: n[0] += 1; "
        "time.sleep(0.001)\nthreading.Thread(target=count, daemon=True).start()"
    )  # fmt: skip
    paused = await two.ask("POST", f"{at}/pause")
    assert paused.status_code == 200, paused.text
    assert (paused.json()["state"], paused.json()["paused_as"]) == ("paused", "frozen")
    (host,) = [one for one in fleet.hosts if one.facts().sessions]
    (session,) = host._table._sessions
    usage = session.box._guest.lease.usage
    before = usage.cpu_seconds()
    await host._save(session, host._durable[session])
    await asyncio.sleep(0.2)
    assert usage.cpu_seconds() - before < 0.01, "nothing of it runs, not even for a save"
    resumed = await one.ask("POST", f"{at}/resume")
    assert resumed.json()["state"] == "running"
    assert not session.frozen
    await one.ask("POST", f"{at}/pause")
    assert await one.run(at, "n[0] > 0") is True, "a call lets it run again"


async def test_a_file_is_read_in_parts_and_one_that_is_replaced_meanwhile_is_refused(
    pair: tuple[Replica, Replica],
) -> None:
    one, _ = pair
    at = await one.session()
    await one.run(at, "open('big', 'wb').write(b'0123456789' * 1000); None")
    files = one.service.sessions.find(at.rpartition("/")[2]).files
    file = await files.open_file("big")
    assert (file.size, await file.read(9_995, 100)) == (10_000, b"56789")
    await one.run(at, "import os; open('new', 'wb').write(b'y'); os.replace('new', 'big')")
    with pytest.raises(OSError, match="replaced while it was read"):
        await file.read(0, 1)
    with pytest.raises(FileNotFoundError):
        await files.open_file("missing")
    (found,) = await files.inspect("big")
    assert (found.path, found.size) == ("big", 1)
    with pytest.raises(ValueError, match="outside the working folder"):
        await files.inspect("../x")


async def test_a_key_made_at_one_service_is_valid_at_the_others_until_it_is_revoked(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    made = (await one.ask("POST", "/keys", json={"name": "late", "quota": {"sessions": 1}})).json()
    own = {"authorization": f"Bearer {made['key']}"}
    two.service.fleet.keys._asked = float("-inf")
    known = await two.ask("GET", "/whoami", headers=own)
    assert known.status_code == 200, known.text
    row = next(each for each in two.service.keys.list() if each.id == made["id"])
    assert row.quota["sessions"] == 1
    assert (await two.ask("DELETE", f"/keys/{made['id']}")).status_code == 204
    await one.service.share_keys()
    assert (await one.ask("GET", "/whoami", headers=own)).status_code == 401
    unknown = {"authorization": f"Bearer {made['key'][:-1]}A"}
    assert (await two.ask("GET", "/whoami", headers=unknown)).status_code == 401


async def test_a_key_that_only_the_store_has_is_refused_unless_the_fleet_signed_it(
    fleet: FleetHere, pair: tuple[Replica, Replica], caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = pair
    store = Store(fleet.settings.store)
    (name,) = [each for each in await store.names("service/keys") if each.endswith("/key")]
    signed = await store.get(name)
    assert signed is not None
    forged = signed.replace(name.split("/")[2].encode(), b"deadbeef")
    await store.create("service/keys/deadbeef/key", forged)
    await store.create("service/keys/0badcafe/key", signed)
    await store.create("service/keys/stray", b"")
    await one.service.share_keys()
    assert [each.id for each in one.service.keys.list()] == [name.split("/")[2]]
    assert "service/keys/deadbeef/key is not a key of this fleet" in caplog.text


async def test_a_store_that_is_away_leaves_the_keys_that_are_known_and_is_told(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair

    async def away(_store: Store, _prefix: str, _after: str | None = None) -> list[str]:
        raise FleetError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "names", away)
        await one.service.share_keys()
        assert (await one.ask("GET", "/whoami")).status_code == 200
        told = (await one.client.get("/health/detailed")).json()["problems"]
        assert any("keys of other services are not known: the store is away" in x for x in told)
    await one.service.share_keys()
    assert (await one.client.get("/health/detailed")).json()["problems"] == []


async def test_an_uploaded_context_is_found_by_every_service_without_an_option(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    made = await one.ask("POST", "/contexts", content=b"sea " * 1000)
    assert made.status_code == 201, made.text
    at = await two.session(context={"id": made.json()["id"]})
    assert await two.run(at, "context.count('sea')") == 1000


async def test_e2b_clients_list_describe_and_watch_files_on_a_fleet(
    pair: tuple[Replica, Replica],
) -> None:
    one, _ = pair
    key = {"x-api-key": one.client.headers["authorization"].partition(" ")[2]}
    body = {"templateID": "bare", "timeout": 60}
    made = (await one.client.post("/e2b/v2/sandboxes", json=body, headers=key)).json()
    own = {"e2b-sandbox-id": made["sandboxID"], "x-access-token": made["envdAccessToken"]}

    async def rpc(method: str, **message: Any) -> Any:
        answer = await one.client.post(f"/e2b/{method}", json=message, headers=own)
        assert answer.status_code == 200, answer.text
        return answer.json()

    folder = (await rpc("filesystem.Filesystem/MakeDir", path="/home/user/d"))["entry"]
    assert (folder["type"], folder["permissions"][0]) == ("FILE_TYPE_DIRECTORY", "d")
    watcher = await rpc("filesystem.Filesystem/CreateWatcher", path="/home/user/d")
    await one.client.post(
        "/e2b/files?path=/home/user/d/f", content=b"12345", headers=own
    )  # fmt: skip
    listed = await rpc("filesystem.Filesystem/ListDir", path="/home/user", depth=2)
    assert [(each["path"], each["size"]) for each in listed["entries"]][-1][1] == "5"
    told = await rpc("filesystem.Filesystem/GetWatcherEvents", **watcher)
    assert "f" in {each["name"] for each in told["events"]}
    await rpc("filesystem.Filesystem/RemoveWatcher", **watcher)
