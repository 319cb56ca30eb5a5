"""`atoll serve --fleet`: two services before one fleet, without Ray. Any of them finds a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")
pytest.importorskip("httpx2", reason="the extra `ray` is not installed")

from replicas import Replica, replica, share_key
from without_ray import FleetHere, fleet_here

from atoll.errors import FleetError
from atoll.fleet.log import SessionLog
from atoll.fleet.store import Store

STRANGER = "ses_" + "x" * 21


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetHere]:
    async with fleet_here(tmp_path, monkeypatch, "a", "b", capacity=8) as made:
        yield made


@pytest.fixture
async def pair(fleet: FleetHere, tmp_path: Path) -> AsyncIterator[tuple[Replica, Replica]]:
    """Two services with the same keys."""
    async with replica(tmp_path / "1") as one, replica(tmp_path / "2") as two:
        await share_key(one, two)
        yield one, two


async def test_a_session_on_a_fleet_is_used_through_any_service(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    at = await one.session(context={"text": "c" * 100})
    assert await one.run(at, "x = 6; len(context)") == 100
    assert await two.run(at, "x * 7") == 42
    assert not two.service.sessions.idents, "it was passed on, not moved"
    assert (await two.ask("GET", f"/sessions/{STRANGER}")).status_code == 404
    shown = (await one.ask("GET", at)).json()
    assert (shown["backend"], shown["isolation"]) == ("ray", "jailed")
    assert (await two.ask("DELETE", at)).status_code == 204
    assert (await one.ask("GET", at)).status_code == 404


async def test_files_variables_forks_and_single_runs_work_on_a_fleet(
    pair: tuple[Replica, Replica],
) -> None:
    one, _ = pair
    at = await one.session()
    await shows_its_nodes(one)
    wrote = await one.ask("PUT", f"{at}/files/content?path=f.bin", content=b"0123456789")
    assert wrote.status_code == 204, wrote.text
    part = await one.ask("GET", f"{at}/files/content?path=f.bin", headers={"range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")
    missing = await one.ask("GET", f"{at}/files/content?path=none")
    assert missing.status_code == 404
    await one.run(at, "x = [1]")
    (made,) = (await one.ask("POST", f"{at}/fork", json={})).json()
    twin = f"/sessions/{made['session']['id']}"
    assert await one.run(twin, "x.append(2); x") == [1, 2]
    assert await one.run(at, "x") == [1]
    ran = await one.ask("POST", "/run", json={"code": "print(6 * 7)"})
    assert ran.json()["stdout"] == "42\n"


async def shows_its_nodes(one: Replica) -> None:
    shown = (await one.ask("GET", "/stats")).json()
    assert shown["fleet"]["problems"] == []
    assert [(node["name"], node["capacity"]) for node in shown["fleet"]["nodes"]] == [
        ("a", 8),
        ("b", 8),
    ]
    told = (await one.client.get("/metrics")).text
    assert 'atoll_fleet_node_capacity{node="a"} 8.0' in told
    assert 'atoll_fleet_node_parked{node="b",tier="bare"}' in told
    health = (await one.client.get("/health/detailed")).json()
    assert health["problems"] == []


async def test_a_store_that_takes_no_record_is_said_and_leaves_no_session(
    fleet: FleetHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with replica(tmp_path / "1") as one:
        await share_key(one)
        create = Store.create

        async def full(store: Store, key: str, data: bytes) -> bool:
            if key.startswith("service/"):
                raise FleetError("the store is full")
            return await create(store, key, data)

        monkeypatch.setattr(Store, "create", full)
        refused = await one.ask("POST", "/sessions", json={})
        assert (refused.status_code, refused.json()["detail"]) == (503, "the store is full")
        assert one.service.sessions.idents == []
        assert one.service.quotas.now(one.service.keys.list()[0].id).sessions == 0


async def test_a_service_finds_a_driver_that_was_started_again(
    fleet: FleetHere, tmp_path: Path
) -> None:
    async with replica(tmp_path / "1") as one:
        await share_key(one)
        for client in list(fleet.driver._clients):
            client.peer.end("the driver died")
        one.service.fleet._asked = float("-inf")
        await shows_its_nodes(one)
        assert await one.run(await one.session(), "1") == 1


@pytest.mark.long
async def test_a_session_goes_on_at_its_service_after_the_driver_has_died(
    fleet: FleetHere, tmp_path: Path
) -> None:
    async with replica(tmp_path / "1") as one:
        await share_key(one)
        used, unused = await one.session(), await one.session()
        for at in (used, unused):
            await one.run(at, "x = 1")
        for client in list(fleet.driver._clients):
            client.peer.end("the driver died")
        lost = await one.ask("POST", f"{used}/executions", json={"code": "x"})
        assert lost.status_code == 410, lost.text
        assert await one.run(used, "x += 1; x") == 2
        await one.service.fleet.part_from_cut_off(one.service)
        assert await one.run(unused, "x") == 1, "no request was lost for the sweep to notice"


async def test_a_session_goes_on_at_another_service_when_its_own_is_gone(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    inline = await one.session(context={"value": {"rows": [1, 2]}}, metadata={"who": "me"})
    await one.run(inline, "x = context['rows']; n = 0")
    cell = {"json": {"code": "n += 1; n"}, "headers": {"idempotency-key": "once"}}
    first = await one.ask("POST", f"{inline}/executions", **cell)
    await one.close_listener()
    again = await two.ask("POST", f"{inline}/executions", **cell)
    assert (first.json()["value"], again.json()["value"]) == (1, 1), "it is not run again"
    assert await two.run(inline, "x + context['rows']") == [1, 2, 1, 2]
    shown = (await two.ask("GET", inline)).json()
    assert (shown["metadata"], shown["id"]) == ({"who": "me"}, inline.rpartition("/")[2])


async def test_a_service_whose_session_was_taken_over_can_change_nothing_in_it(
    pair: tuple[Replica, Replica],
) -> None:
    """As after a network cut between two services: both believe that they have it."""
    one, two = pair
    at = await one.session()
    await one.run(at, "x = 1")
    record = await two.service.fleet.directory.find(at.rpartition("/")[2])
    principal = two.service.keys.of_id(one.service.keys.list()[0].id)
    await two.service.fleet._adopt(two.service, principal, record)
    assert await two.run(at, "x += 1; x") == 2
    late = await one.ask("POST", f"{at}/executions", json={"code": "x = 'stale'"})
    assert late.status_code == 410, late.text
    assert await one.run(at, "x") == 2, "from now on it is passed on"
    await one.service.sessions.end_all("stopped")
    assert await two.run(at, "x") == 2, "and the first one's end does not end it"


async def test_another_tenant_neither_finds_a_session_nor_takes_it_over(
    pair: tuple[Replica, Replica],
) -> None:
    one, two = pair
    at = await one.session()
    await one.run(at, "x = 1")
    ident = at.rpartition("/")[2]
    await share_key(two, tenant="stranger")
    await one.close_listener()
    assert (await two.ask("GET", at)).status_code == 404
    record = await two.service.fleet.directory.find(ident)
    assert record.home == one.url


async def test_a_service_that_stops_leaves_its_sessions_to_the_next_one(
    fleet: FleetHere, tmp_path: Path
) -> None:
    async with replica(tmp_path / "1") as one:
        await share_key(one)
        key = one.client.headers["authorization"]
        at = await one.session()
        await one.run(at, "x = 1")
        lost = await one.session()
        await one.ask("DELETE", lost)
    async with replica(tmp_path / "1") as again:
        again.client.headers["authorization"] = key
        assert await again.run(at, "x + 1") == 2
        assert (await again.ask("GET", lost)).status_code == 404


@pytest.mark.long
async def test_a_session_without_durability_is_known_to_its_own_service_alone(
    fleet: FleetHere, tmp_path: Path
) -> None:
    async with (
        replica(tmp_path / "1", durability="none") as one,
        replica(tmp_path / "2", durability="none") as two,
    ):
        await share_key(one, two)
        at = await one.session()
        assert await one.run(at, "1") == 1
        assert (await two.ask("GET", at)).status_code == 404


async def test_a_fleet_without_a_node_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_here(tmp_path, monkeypatch):
        with pytest.raises(FleetError, match="no node that takes sessions"):
            async with replica(tmp_path / "1"):
                pass


@pytest.mark.long
async def test_the_record_of_an_expired_session_is_deleted_with_its_context(
    pair: tuple[Replica, Replica], fleet: FleetHere
) -> None:
    one, two = pair
    lost, kept = await one.session(context={"text": "c" * 100}), await one.session()
    await one.run(lost, "x = 1")
    await one.run(kept, "x = 2")
    store, directory = Store(fleet.settings.store), two.service.fleet.directory
    await store.create(f"service/sessions/{STRANGER}/000001", b"{")
    assert await directory.sweep(float("inf")) == 0, "both have an owner"
    ident = lost.rpartition("/")[2]
    name = (await directory.find(ident)).fleet_session
    await SessionLog(store, name).expire(await store.names(f"sessions/{name}"))
    assert await directory.sweep(0.0) == 0, "both are young"
    assert await store.names(f"service/contexts/{ident}")
    assert await directory.sweep(float("inf")) == 1
    assert not [one for one in await store.names("service") if ident in one]
    assert (await two.ask("GET", lost)).status_code == 404
    assert await two.run(kept, "x") == 2
