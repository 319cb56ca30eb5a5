"""Sessions that no node has: they expire. One that has an owner never does."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from without_ray import fleet_here

from atoll.aio import create_sandbox
from atoll.errors import ConfigError, FleetError, SandboxClosedError, SandboxLostError
from atoll.fleet import durable as durables
from atoll.fleet import expiry
from atoll.fleet import log as logs
from atoll.fleet.durable import DurableSession
from atoll.fleet.log import Entry, FencedError, SessionLog
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store
from atoll.rpc.passed_fds import Reply

ALL = float("inf")
DAY = 86400.0


@pytest.fixture
def log(store: Store) -> SessionLog:
    return SessionLog(store, secrets.token_hex(16))


async def committed(log: SessionLog, state: bytes = b"kept") -> Entry:
    return await log.commit(await log.open("a"), state, {})


async def test_a_session_that_no_owner_renews_is_ended_and_later_deleted(
    log: SessionLog, store: Store
) -> None:
    await committed(log)
    assert await expiry.sweep(store, ALL) >= 1
    with pytest.raises(SandboxClosedError, match="has ended"):
        await log.claim("b")
    assert await store.names(f"sessions/{log.ident}/state") == []
    assert await expiry.sweep(store, ALL) >= 1
    assert await store.names(f"sessions/{log.ident}") == []
    with pytest.raises(SandboxClosedError, match="the fleet has no session"):
        await log.claim("b")


async def test_a_session_that_was_written_to_in_time_is_left_alone(
    log: SessionLog, store: Store
) -> None:
    await committed(log)
    newest = max((await store.times(f"sessions/{log.ident}")).values())
    await expiry.sweep(store, newest)
    assert (await log.last()).kind == logs.COMMIT
    assert await log.state(await log.claim("b")) == b"kept"


@pytest.mark.parametrize("event", ["renew", "commit", "claim"])
async def test_a_session_that_is_used_while_it_is_looked_at_goes_on(
    log: SessionLog, store: Store, event: str
) -> None:
    entry = await committed(log)
    listed = await store.names(f"sessions/{log.ident}")
    use = {"renew": log.renew(entry), "commit": log.commit(entry, b"new", {}), "claim": None}
    for name, work in use.items():
        if name != event and work is not None:
            work.close()
    entry = await (use[event] or log.claim("b"))
    with pytest.raises(FencedError):
        await log.expire(listed)
    assert await log.state(entry) == (b"new" if event == "commit" else b"kept")
    assert (await log.commit(entry, b"later", {})).number == entry.number + 1


async def test_a_number_that_a_deleted_commit_had_ends_no_session(
    log: SessionLog, store: Store
) -> None:
    entry = await committed(log)
    listed = await store.names(f"sessions/{log.ident}")
    second = await log.commit(entry, b"second", {})
    third = await log.commit(second, b"third", {})
    await log.forget(second, third)
    with pytest.raises(FencedError, match="was written to meanwhile"):
        await log.expire(listed)
    assert await log.state(third) == b"third"
    assert await log.state(await log.claim("b")) == b"third"


async def test_an_owner_whose_session_expired_writes_nothing_any_more(
    log: SessionLog, store: Store
) -> None:
    entry = await committed(log)
    await log.expire(await store.names(f"sessions/{log.ident}"))
    for write in (log.commit(entry, b"stale", {}), log.renew(entry), log.end(entry)):
        with pytest.raises(FencedError, match="was taken over"):
            await write
    assert (await log.last()).kind == logs.END
    assert await store.names(f"sessions/{log.ident}/state") == []


async def test_of_many_who_look_at_one_time_one_ends_a_session(
    log: SessionLog, store: Store
) -> None:
    await committed(log)
    listed = await store.names(f"sessions/{log.ident}")
    done = await asyncio.gather(*(log.expire(listed) for _ in range(8)), return_exceptions=True)
    assert sum(one is None for one in done) == 1
    assert all(one is None or isinstance(one, FencedError) for one in done)
    assert [one.kind for one in await log.entries()].count(logs.END) == 1


async def test_what_a_session_left_without_a_log_is_deleted(store: Store) -> None:
    ident = secrets.token_hex(16)
    await store.create(f"sessions/{ident}/state/1-2-a", b"of a node that was cut off for weeks")
    await expiry.sweep(store, ALL)
    assert await store.names(f"sessions/{ident}") == []


async def test_a_damaged_session_keeps_no_other_from_being_ended(
    log: SessionLog, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = f"sessions/{'0' * 32}/log/000000000001"
    await store.create(damaged, b"{")
    await store.create("sessions/readme/of/somebody", b"not a session")
    await committed(log)
    await expiry.sweep(store, ALL)
    assert (await log.last()).kind == logs.END
    assert "is damaged" in caplog.text
    assert "32 hexadecimal digits" in caplog.text
    await store.delete(damaged, "sessions/readme/of/somebody")


async def test_of_two_nodes_one_looks_in_a_period_and_gets_the_stores_time(store: Store) -> None:
    await store.create("sweeps/1", b"long ago")
    found = await expiry.take_turn(store, 10 * DAY, "sweeps")
    assert await expiry.take_turn(store, 10 * DAY, "sweeps") is None
    assert list((await store.times("sweeps")).values()) == [found], "older marks are deleted"


class Unused:
    """A session that is not saved in these tests."""

    idle = True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Days that have passed, by the clock of the node."""
    days = [0.0]
    monkeypatch.setattr(durables, "_clock", lambda: time.monotonic() + days[0] * DAY)
    return days


def owned(log: SessionLog, entry: Entry) -> DurableSession:
    return DurableSession(cast("Any", Unused()), log, entry, every_cell=True)


async def test_an_owner_that_has_nothing_to_write_says_now_and_then_that_it_is_there(
    log: SessionLog, clock: list[float]
) -> None:
    first = await log.commit(await log.open("a"), b"kept", {"k": 1}, ("socket",))
    session = owned(log, first)
    await session.renew()
    assert session.entry is first, "too early"
    clock[0] = 1.0
    await session.renew()
    entry = session.entry
    assert (entry.number, entry.epoch, entry.left_out) == (3, 1, ("socket",))
    assert await log.state(await log.claim("b")) == b"kept"
    assert await log.result(entry, "k") == 1


async def test_a_call_that_runs_for_days_does_not_keep_its_session_from_being_renewed(
    log: SessionLog, clock: list[float]
) -> None:
    session, over = owned(log, await committed(log)), asyncio.Event()

    async def work() -> Reply:
        await over.wait()
        return Reply({"result": {"state_lost": True}})

    running = asyncio.ensure_future(session.run({"code": "1"}, work))
    clock[0] = 1.0
    await session.renew()
    assert session.entry.number == 3
    over.set()
    await running
    assert session.entry.number == 4


async def test_an_owner_that_could_not_write_for_too_long_gives_its_session_up(
    log: SessionLog, store: Store, clock: list[float]
) -> None:
    session = owned(log, await committed(log))
    await store.delete(*await store.names(f"sessions/{log.ident}"))
    clock[0] = 3.6
    with pytest.raises(SandboxLostError, match="nothing of the session was written for 311040 s"):
        await session.renew()
    assert session.fenced
    assert await store.names(f"sessions/{log.ident}") == []


async def test_an_ended_session_is_not_renewed(log: SessionLog, clock: list[float]) -> None:
    session = owned(log, await committed(log))
    await session.end()
    clock[0] = 1.0
    await session.renew()
    assert (await log.last()).kind == logs.END


def test_a_time_to_keep_that_a_busy_node_would_miss_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep_seconds must be at least 3600, not 60\.0"):
        FleetSettings(store=str(tmp_path), keep_seconds=60.0)


async def test_a_node_renews_its_sessions_and_looks_for_expired_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    looked: list[float] = []

    async def sweep(_store: Store, before: float) -> int:
        looked.append(before)
        raise FleetError("the store is away for a moment")

    monkeypatch.setattr(expiry, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(expiry, "sweep", sweep)
    async with (
        fleet_here(tmp_path, monkeypatch, "a", keep_seconds=2 * DAY) as fleet,
        contextlib.AsyncExitStack() as stack,
    ):
        box: Any = await create_sandbox(backend="ray", durability="cell")
        stack.push_async_callback(box.destroy)
        await box.execute("x = 1")
        log = SessionLog(Store(fleet.settings.store), box.session)
        number = (await log.last()).number
        clock[0] = 0.5
        while (await log.last()).number == number or len(looked) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (await box.execute("x")).value == 1
        newest = max((await Store(fleet.settings.store).times("sweeps")).values())
        assert looked[-1] == pytest.approx(newest - 2 * DAY, abs=600)
