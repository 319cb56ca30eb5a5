"""The driver, its router and its nodes, in one process and without Ray."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from without_ray import FleetHere, fleet_here

from atoll.aio import create_sandbox
from atoll.daemon.paths import DaemonPaths
from atoll.errors import BusyError, ConfigError, FleetError, SandboxError, SandboxLostError
from atoll.fleet import cluster
from atoll.fleet.client import Fleet
from atoll.fleet.driver import Driver
from atoll.fleet.log import SessionLog
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store


@pytest.fixture
async def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetHere]:
    async with fleet_here(tmp_path, monkeypatch, "a", "b", capacity=4) as made:
        yield made


async def open_box(**options: Any) -> Any:
    return await create_sandbox(backend="ray", **options)


async def test_a_session_has_output_tools_files_and_clones(fleet: FleetHere) -> None:
    lines: list[str] = []
    async with await open_box(on_stdout=lines.append, tools={"double": lambda x: 2 * x}) as box:
        assert (await box.execute("x = 1; print('out'); double(21)")).value == 42
        assert lines == ["out"]
        await box.files.upload([("data.bin", b"\0\xff")])
        assert (await box.files.download(["data.bin"]))[0].content == b"\0\xff"
        async with await box.fork() as twin:
            await twin.execute("x = 2")
            assert (await box.execute("x")).value == 1
            assert twin.session != box.session


async def test_sessions_go_to_the_least_loaded_node_and_a_full_fleet_says_when_to_retry(
    fleet: FleetHere,
) -> None:
    boxes = [await open_box() for _ in range(8)]
    nodes = {one["name"]: one for one in fleet.driver.stats()["nodes"]}
    assert [nodes[name]["load"] for name in ("a", "b")] == [1.0, 1.0]
    with pytest.raises(BusyError, match="all 2 nodes of the fleet are full") as full:
        await open_box()
    assert vars(full.value)["retry_after"] > 0
    await boxes.pop().destroy()
    boxes.append(await open_box())
    for box in boxes:
        await box.destroy()


async def test_a_large_context_is_on_a_node_once(fleet: FleetHere) -> None:
    text = "x" * 300_000
    boxes = [await open_box(context=text) for _ in range(4)]
    assert [(await box.execute("len(context)")).value for box in boxes] == [300_000] * 4
    files = [host._contexts._known for host in fleet.hosts]
    assert [len(known) for known in files] == [1, 1]
    assert all(box.context_is_shared for box in boxes)
    for box in boxes:
        await box.destroy()


async def test_a_lost_node_costs_one_error_and_the_session_goes_on(fleet: FleetHere) -> None:
    async with await open_box(durability="cell") as box, await open_box() as plain:
        await box.execute("x = 5", key="k")
        await box.add_tool(lambda: "called", name="added")
        log = SessionLog(Store(fleet.settings.store), box.session)
        owner = (await log.last()).owner
        other = {"a": "b", "b": "a"}[owner]
        fleet.kill(owner)
        with pytest.raises(SandboxLostError, match="goes on elsewhere as of its last commit"):
            await box.execute("x")
        assert (await box.execute("x, added()")).value == (5, "called")
        assert (await box.execute("x = 5", key="k")).value is None
        last = await log.last()
        assert (last.owner, last.epoch) == (other, 2)
        assert (await plain.execute("1")).value == 1, "it was on the other node"


async def test_a_commit_of_an_owner_that_lost_its_session_is_refused_and_ends_it(
    fleet: FleetHere,
) -> None:
    async with await open_box(durability="cell") as box, Fleet.connect() as client:
        await box.execute("x = 1")
        taken = await client.attach(box.session)
        await taken.execute("x = 2")
        with pytest.raises(SandboxLostError, match="taken over"):
            await box.execute("x = 'stale'")
        assert (await taken.execute("x")).value == 2
        await taken.destroy()


async def test_a_store_that_fails_loses_nothing(
    fleet: FleetHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await open_box(durability="cell") as box:
        await box.execute("x = 1")
        create = Store.create

        async def fail(*_args: Any) -> bool:
            raise FleetError("the store is full")

        monkeypatch.setattr(Store, "create", fail)
        with pytest.raises(FleetError, match="the store is full"):
            await box.execute("x = x + 1; x", key="k")
        monkeypatch.setattr(Store, "create", create)
        assert (await box.execute("x = x + 1; x", key="k")).value == 2, (
            "it ran once, and is saved now"
        )
        entry = await SessionLog(Store(fleet.settings.store), box.session).last()
        assert list(entry.results) == ["k"]


async def test_what_a_state_cannot_keep_is_in_the_log(fleet: FleetHere) -> None:
    async with await open_box(durability="cell") as box:
        await box.execute("import socket; s = socket.socket(); x = 1")
        entry = await SessionLog(Store(fleet.settings.store), box.session).last()
        assert any(one == "s" or one.endswith(" s") for one in entry.left_out), entry.left_out


async def test_a_drained_nodes_sessions_move(fleet: FleetHere) -> None:
    boxes = [await open_box() for _ in range(3)] + [await open_box(durability="cell")]
    for number, box in enumerate(boxes):
        await box.execute(f"x = {number}")
    async with Fleet.connect() as client:
        assert (await client.drain("a"))["moved"] == 2
        assert [(await box.execute("x")).value for box in boxes] == [0, 1, 2, 3]
        assert fleet.hosts[0].facts().sessions == 0
        with pytest.raises(ConfigError, match=r"no node 'c': there are [ab], [ab]"):
            await client.drain("c")
    for box in boxes:
        await box.destroy()


async def test_a_slow_move_holds_up_neither_other_nodes_nor_stuck_clients(
    fleet: FleetHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[str] = []

    async def never(link: Any) -> int:
        moves.append(link.row.name)
        await asyncio.Event().wait()
        return 0

    monkeypatch.setattr(fleet.driver, "_move_all", never)
    for host in fleet.hosts:
        await host.drain()  # as another driver does
    async with asyncio.timeout(30):
        while len(moves) < 2:  # noqa: ASYNC110 - the driver tells nobody
            await asyncio.sleep(0.05)
    assert sorted(moves) == ["a", "b"], "and each is begun once"


async def test_two_drains_of_one_node_move_its_sessions_once(
    fleet: FleetHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[str] = []
    for host in fleet.hosts:

        async def leave(*asked: Any, host: Any = host, leave: Any = host._leave) -> Any:
            left.append(host.name)
            return await leave(*asked)

        monkeypatch.setattr(host, "_leave", leave)
    box = await open_box()
    await box.execute("x = 1")
    (session,) = fleet.driver._sessions.values()
    name = session.link.row.name
    async with Fleet.connect() as client:
        await asyncio.gather(client.drain(name), client.drain(name))
    assert left == [name]
    assert (await box.execute("x")).value == 1
    await box.destroy()


async def test_a_session_that_finds_no_place_when_its_node_is_drained_is_not_lost(
    fleet: FleetHere,
) -> None:
    boxes = [await open_box() for _ in range(8)]
    for number, box in enumerate(boxes):
        await box.execute(f"x = {number}")
    async with Fleet.connect() as client:
        assert (await client.drain("a"))["moved"] == 0, "the other node is full"
        await client.drain("a", draining=False)
    assert sorted([(await box.execute("x")).value for box in boxes]) == list(range(8))
    for box in boxes:
        await box.destroy()


async def test_an_end_that_a_node_refuses_is_in_the_log(
    fleet: FleetHere, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    box = await open_box()
    for host in fleet.hosts:

        async def refuse(*_: Any) -> Any:
            raise SandboxError("the disk is full")

        monkeypatch.setitem(host._methods, "destroy", refuse)
    await box.destroy()
    assert "the destroy of a session failed, its state may stay: the disk is full" in caplog.text


async def test_a_job_array_has_a_result_for_every_item(fleet: FleetHere) -> None:
    seen: list[tuple[int, int]] = []
    async with Fleet.connect() as client:
        found = await client.map(
            "10 // context", [1, 2, 0, 5], concurrency=2, on_progress=lambda *one: seen.append(one)
        )
    assert [one.result.value for one in found] == [10, 5, None, 2]
    assert found[2].result.error_type == "ZeroDivisionError"
    assert seen[-1] == (4, 4)


async def test_an_item_is_the_same_value_for_the_code_as_for_its_caller(fleet: FleetHere) -> None:
    items = [(1, "a"), {2: {3}}, None, 1 << 80]
    async with Fleet.connect() as client:
        found = await client.map("repr(context)", items)
    assert [one.result.value for one in found] == [repr(item) for item in items]


async def test_a_client_that_goes_leaves_its_state_and_frees_its_place(fleet: FleetHere) -> None:
    box = await open_box(durability="periodic")
    await box.execute("x = 3")
    for client in list(fleet.driver._clients):
        client.peer.end("a client that died")
    async with asyncio.timeout(30):
        while any(host.facts().sessions for host in fleet.hosts):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    async with Fleet.connect() as client:
        taken = await client.attach(box.session)
        assert (await taken.execute("x")).value == 3
        await taken.destroy()


async def test_a_driver_that_waits_for_a_node_has_no_socket_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that found one would connect, and be told nothing until it gives up."""
    settings = FleetSettings(store=str(tmp_path / "store"))
    driver, steps = Driver(settings, Store(settings.store)), []

    async def ready() -> None:
        steps.append("a node")

    def listen() -> socket.socket:
        steps.append("a socket")
        return DaemonPaths(tmp_path / "d.sock").listen()

    monkeypatch.setattr(driver._router, "ready", ready)
    monkeypatch.setattr(cluster, "nodes", list)
    await driver.start(listen)
    assert steps == ["a node", "a socket"]
    await driver.stop()
