"""A node that dies, freezes or is drained: what callers see, what is restored, what never runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import atoll
from atoll.aio import create_sandbox
from atoll.errors import ConfigError, FleetError, SandboxLostError
from atoll.fleet import log as logs
from atoll.fleet.client import Fleet, RaySandbox
from atoll.fleet.log import SessionLog
from atoll.fleet.store import Store
from bench.local_fleet import LocalFleet, family

pytestmark = pytest.mark.timeout(400)
NODES = {"a", "b"}
PATIENCE_SECONDS = 120


@pytest.fixture
async def both(fleet: LocalFleet) -> AsyncIterator[LocalFleet]:
    """The fleet with both its nodes: one that a test has killed is started again."""
    for name in NODES - set(fleet.nodes):
        fleet.add(name)
    async with Fleet.connect() as client:
        await until(lambda: _nodes(client), NODES)
        yield fleet


async def _nodes(client: Fleet) -> set[str]:
    return {one["name"] for one in (await client.status())["nodes"]}


async def _sessions(client: Fleet, node: str) -> int:
    facts = {one["name"]: one for one in (await client.status())["nodes"]}
    return int(facts[node]["sessions"])


async def until(ask: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while (found := await ask()) != wanted:
        assert asyncio.get_running_loop().time() < end, f"{found}, not {wanted}"
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def opened(count: int = 1, **options: Any) -> AsyncIterator[list[RaySandbox]]:
    boxes: list[Any] = []
    try:
        while len(boxes) < count:
            boxes.append(await create_sandbox(backend="ray", **options))
        yield boxes
    finally:
        for box in boxes:
            await box.destroy()


async def node_of(box: RaySandbox, fleet: LocalFleet) -> str:
    store = Store(fleet.settings.store)
    return (await SessionLog(store, box.session or "").last()).owner


async def test_a_session_goes_on_elsewhere_after_its_node_has_died(both: LocalFleet) -> None:
    async with (
        opened(2, durability="cell") as told,
        opened(2, durability="cell", auto_recover=True) as waiting,
        opened(2) as plain,
    ):
        for number, box in enumerate([*told, *waiting, *plain]):
            await box.execute(f"x = {number}; import json")
            await box.files.upload([("kept.txt", b"%d" % number)])
        both.kill(await node_of(told[0], both))
        first, second = await outcomes(told)
        assert (first, second.partition(" ")[0]) == ("0 then lost", "1")
        assert await outcomes(waiting) == ["2", "3"]
        assert set(await outcomes(plain)) <= {"4", "5", "lost for good"}


async def outcomes(boxes: list[RaySandbox]) -> list[str]:
    """What two calls of each session say."""
    found = []
    for box in boxes:
        lost = await first_error(box)
        if "had no durability, and is lost with it" in lost:
            found.append("lost for good")
            continue
        assert not lost or "goes on elsewhere as of its last commit" in lost
        value = (await box.execute("json.dumps(x)")).value
        assert (await box.files.download(["kept.txt"]))[0].content == value.encode()
        found.append(value + (" then lost" if lost else ""))
    return found


async def first_error(box: RaySandbox) -> str:
    try:
        await box.execute("x")
    except SandboxLostError as exc:
        return str(exc) if exc.retryable else "not retryable"
    return ""


async def test_a_cell_that_ran_when_its_node_died_is_not_run_again_without_a_key(
    both: LocalFleet,
) -> None:
    calls, begun = [], asyncio.Event()

    async def begin() -> None:
        calls.append(1)
        begun.set()

    async with opened(1, durability="cell", auto_recover=True, tools={"begin": begin}) as (box,):
        await box.execute("x = 1")
        running = asyncio.ensure_future(box.execute("x += 1; begin(); import time; time.sleep(60)"))
        await begun.wait()
        both.kill(await node_of(box, both))
        with pytest.raises(SandboxLostError, match="not repeated without a key"):
            await running
        assert (await box.execute("x")).value == 1, "as of the last commit"
        assert calls == [1]


async def test_a_cell_with_a_key_is_run_once_as_far_as_the_state_tells(both: LocalFleet) -> None:
    calls, begun = [], asyncio.Event()

    async def begin() -> int:
        calls.append(1)
        begun.set()
        return len(calls)

    async with opened(1, durability="cell", auto_recover=True, tools={"begin": begin}) as (box,):
        await box.execute("x = 0")
        code = "x += 1; n = begin(); import time; time.sleep(60 if n == 1 else 0); x"
        running = asyncio.ensure_future(box.execute(code, key="once"))
        await begun.wait()
        both.kill(await node_of(box, both))
        assert (await running).value == 1, "it ran again, on the state from before"
        assert (await box.execute(code, key="once")).value == 1
        assert len(calls) == 2
        log = SessionLog(Store(both.settings.store), box.session or "")
        entries = await log.entries()
        assert sum("once" in one.results for one in entries) == 1
        with pytest.raises(ConfigError, match="was used with other code"):
            await box.execute("x += 100", key="once")


async def test_a_result_by_key_is_in_the_log_after_its_node_has_died(both: LocalFleet) -> None:
    calls: list[int] = []
    async with opened(
        1, durability="cell", auto_recover=True, tools={"begin": lambda: calls.append(1)}
    ) as (box,):
        first = await box.execute("begin(); print('out'); 'value'", key="k")
        both.kill(await node_of(box, both))
        again = await box.execute("begin(); print('out'); 'value'", key="k")
        assert (again.value, again.stdout) == (first.value, first.stdout) == ("value", "out\n")
        assert calls == [1]


async def test_a_frozen_node_that_thaws_can_commit_nothing(both: LocalFleet) -> None:
    async with opened(1, durability="cell", auto_recover=True) as (box,):
        await box.execute("x = 1")
        name = await node_of(box, both)
        running = asyncio.ensure_future(box.execute("import time; time.sleep(0.5); x = 'stale'"))
        await asyncio.sleep(0.1)
        both.send(name, signal.SIGSTOP)
        with pytest.raises(SandboxLostError):
            await running
        assert (await box.execute("x = x + 1; x")).value == 2
        both.send(name, signal.SIGCONT)
        await asyncio.sleep(3)
        assert (await box.execute("x = x + 1; x")).value == 3
        entries = await SessionLog(Store(both.settings.store), box.session or "").entries()
        claims = [one for one in entries if one.kind == logs.CLAIM]
        assert len(claims) == 1
        stale = [one for one in entries if one.epoch == 1 and one.number > claims[0].number]
        assert not stale, "nothing of the first owner follows the claim"
    both.kill(name)


async def test_a_drained_node_is_empty_and_its_sessions_go_on(both: LocalFleet) -> None:
    async with (
        opened(4) as plain,
        opened(2, durability="periodic") as durable,
        Fleet.connect() as client,
    ):
        boxes = [*plain, *durable]
        for number, box in enumerate(boxes):
            await box.execute(f"x = {number}")
        name = await node_of(durable[0], both)
        try:
            moved = await client.drain(name)
            assert moved["moved"] > 0
            assert [(await box.execute("x")).value for box in boxes] == list(range(6))
            await until(lambda: _sessions(client, name), 0)
            with pytest.raises(ConfigError, match="the fleet has no node 'c'"):
                await client.drain("c")
        finally:
            await client.drain(name, draining=False)


async def test_a_driver_that_dies_costs_a_caller_an_error_and_no_state(both: LocalFleet) -> None:
    async with opened(1, durability="cell") as (box,), Fleet.connect() as client:
        await box.execute("x = 7")
        os.kill((await client.status())["pid"], signal.SIGKILL)
        with pytest.raises(SandboxLostError):
            await box.execute("x")
    async with Fleet.connect() as client:
        taken = await client.attach(box.session or "")
        assert (await taken.execute("x")).value == 7
        await taken.destroy()


async def test_items_of_a_job_array_are_done_though_a_node_dies(both: LocalFleet) -> None:
    seen, begun = [], asyncio.Event()

    def on_progress(done: int, of: int) -> None:
        seen.append((done, of))
        begun.set()

    async with Fleet.connect() as client:
        work = client.map(
            "import time; time.sleep(0.05); context * 2 if context != 13 else 1 / 0", range(60),
            concurrency=8, on_progress=on_progress,
        )  # fmt: skip
        running = asyncio.ensure_future(work)
        await begun.wait()
        both.kill("b")
        found = await running
    assert [one.index for one in found] == list(range(60))
    assert seen[-1] == (60, 60)
    assert all(one.result is not None for one in found)
    assert [one.result.value for one in found if one.index != 13] == [
        2 * n for n in range(60) if n != 13
    ]
    assert found[13].result.error_type == "ZeroDivisionError"


async def test_everything_of_a_fleet_listens_on_this_machine_alone(both: LocalFleet) -> None:
    async with opened(2), Fleet.connect() as client:
        trees = [
            both.head.pid,
            (await client.status())["pid"],
            *(one.pid for one in both.nodes.values()),
        ]
        found = [place for tree in trees for pid in family(tree) for place in listening(pid)]
    assert found
    assert not [place for place in found if not place.startswith(("127.", "::ffff:127.", "::1"))]


def listening(pid: int) -> list[str]:
    """Return the addresses at which a process listens."""
    listed = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    own = [line.split() for line in listed.splitlines() if f"pid={pid}," in line]
    return [words[3].rpartition(":")[0].strip("[]") for words in own]


@pytest.mark.long
async def test_the_loss_of_the_head_is_an_error_and_never_the_end_of_the_users_process(
    both: LocalFleet,
) -> None:
    """Ray ends its driver a minute after the head: that is another process."""
    async with opened(1, durability="cell") as (box,):
        await box.execute("x = 1")
        both.kill_head()
        end = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        with pytest.raises(SandboxLostError):
            while asyncio.get_running_loop().time() < end:
                assert (await box.execute("x")).value == 1, "it goes on until then"
                await asyncio.sleep(0.5)
        with pytest.raises(FleetError, match="no fleet answers"):
            await create_sandbox(backend="ray")
    await asyncio.to_thread(both.replace_head, "a", "b")
    await claims(box.session or "", 1)


@pytest.mark.long
async def test_a_new_head_within_the_minute_in_which_the_old_driver_lives_gets_the_sessions(
    both: LocalFleet,
) -> None:
    async with opened(1, durability="cell") as (box,):
        await box.execute("x = 2")
        both.kill_head()
        await asyncio.to_thread(both.replace_head, "a", "b")
        with pytest.raises(SandboxLostError):
            await until(lambda: _x_of(box), "lost")
    await claims(box.session or "", 2)


async def _x_of(box: RaySandbox) -> Any:
    return (await box.execute("x")).value


async def claims(session: str, value: int) -> None:
    """Take a session over from its log, as a process does that knows its name alone."""
    async with Fleet.connect() as client:
        taken = await client.attach(session)
        assert (await taken.execute("x")).value == value
        await taken.destroy()


def test_options_of_a_fleet_are_refused_elsewhere() -> None:
    with pytest.raises(ConfigError, match="needs a fleet: set backend='ray'"):
        atoll.create_sandbox(backend="native", durability="cell")
    with pytest.raises(ConfigError, match="auto_recover needs a state"):
        atoll.create_sandbox(backend="ray", auto_recover=True)
    with pytest.raises(ConfigError, match="durability must be one of"):
        atoll.create_sandbox(backend="ray", durability="sometimes")
