"""A session's log: one owner at a time, whatever the others believe."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

import stores

from atoll.errors import ConfigError, FleetError, SandboxClosedError
from atoll.fleet import log as logs
from atoll.fleet.log import FencedError, SessionLog
from atoll.fleet.store import Store


@pytest.fixture
def log(store: Store) -> SessionLog:
    return SessionLog(store, secrets.token_hex(16))


async def test_a_store_that_refuses_a_second_create_is_accepted(store: Store) -> None:
    await store.try_out()
    assert await store.names("checks") == []


async def test_a_store_that_accepts_a_second_create_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with stores.small_s3(fences=False) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(FleetError, match="accepts a second create of one name"):
            await Store("s3://fleet/lax").try_out()


async def test_what_was_committed_is_found_by_the_next_owner(log: SessionLog) -> None:
    entry = await log.commit(await log.open("a"), b"x = 1", {"k": {"value": 1}}, ("socket",))
    claim = await log.claim("b")
    assert (claim.number, claim.epoch, claim.owner, claim.kind) == (3, 2, "b", logs.CLAIM)
    assert await log.state(claim) == b"x = 1"
    assert claim.left_out == entry.left_out == ("socket",)
    assert await log.result(claim, "k") == {"value": 1}
    assert await log.result(claim, "other") is None


async def test_an_owner_that_lost_its_session_commits_nothing_any_more(
    log: SessionLog, store: Store
) -> None:
    mine = await log.commit(await log.open("a"), b"first", {})
    theirs = await log.claim("b")
    with pytest.raises(FencedError, match="was taken over: entry 3 exists"):
        await log.commit(mine, b"stale", {})
    with pytest.raises(FencedError):
        await log.end(mine)
    assert await log.state(await log.last()) == b"first"
    assert (await log.commit(theirs, b"second", {})).number == 4
    assert len(await store.names(f"sessions/{log.ident}/state")) == 2, "the stale state is deleted"


async def test_of_many_who_claim_at_one_time_one_has_the_highest_epoch(log: SessionLog) -> None:
    await log.open("a")
    claims = await asyncio.gather(*(log.claim(str(one)) for one in range(8)))
    assert sorted(one.epoch for one in claims) == list(range(2, 10))
    last = await log.last()
    owners = [one for one in claims if one.owner == last.owner]
    for claim in claims:
        if claim not in owners:
            with pytest.raises(FencedError):
                await log.commit(claim, None, {})
    assert (await log.commit(owners[0], None, {})).epoch == 9


async def test_a_write_of_ones_own_that_was_repeated_is_no_takeover(
    log: SessionLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, create = await log.open("a"), store.create

    async def twice(key: str, data: bytes) -> bool:
        await create(key, data)
        return await create(key, data)

    monkeypatch.setattr(store, "create", twice)
    assert (await log.commit(first, b"x", {})).number == 2


async def test_a_commit_that_arrived_though_its_owner_was_told_otherwise_is_gone_on_from(
    log: SessionLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, create = await log.open("a"), store.create

    async def unheard(key: str, data: bytes) -> bool:
        await create(key, data)
        raise FleetError("the answer did not come")

    monkeypatch.setattr(store, "create", unheard)
    with pytest.raises(FleetError, match="did not come"):
        await log.commit(first, None, {})
    monkeypatch.undo()
    entry = await log.commit(first, b"again", {})
    assert (entry.number, entry.epoch) == (3, 1)


async def test_an_ended_session_cannot_be_claimed_and_leaves_no_state(
    log: SessionLog, store: Store
) -> None:
    await log.end(await log.commit(await log.open("a"), b"x", {}))
    with pytest.raises(SandboxClosedError, match="has ended"):
        await log.claim("b")
    assert await store.names(f"sessions/{log.ident}/state") == []


async def test_old_states_are_forgotten_and_results_by_key_are_kept(
    log: SessionLog, store: Store
) -> None:
    first = await log.commit(await log.open("a"), b"1", {"k": 1})
    second = await log.commit(first, b"2", {})
    await log.forget(first, second)
    third = await log.commit(second, b"3", {})
    await log.forget(second, third)
    assert [one.number for one in await log.entries()] == [1, 2, 4]
    assert await log.result(third, "k") == 1
    assert await log.state(third) == b"3"
    with pytest.raises(FleetError, match="has lost the state"):
        await log.state(first)


async def test_no_decision_depends_on_a_clock(
    log: SessionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = await log.open("a")
    monkeypatch.setattr(logs.time, "time", lambda: 1e6)  # the next owner's clock is years behind
    claim = await log.claim("b")
    assert claim.written < entry.written
    with pytest.raises(FencedError):
        await log.commit(entry, None, {})


async def test_a_session_that_never_was_is_said_to_be_none(log: SessionLog) -> None:
    with pytest.raises(SandboxClosedError, match="the fleet has no session"):
        await log.last()


def test_a_name_that_is_no_sessions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="32 hexadecimal digits"):
        SessionLog(Store(str(tmp_path)), "../../other")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("relative/folder", "must be an absolute path"),
        ("memory://", "lost with its process"),
        ("ftp://host/x", "is not a store"),
        ("/proc/none/x", "cannot be made"),
    ],
)
def test_an_address_that_is_no_store_is_refused(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Store(url)


async def test_a_store_that_cannot_be_reached_is_said_to_be_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in stores.CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{stores.free_port()}")
    with pytest.raises(FleetError, match="the store s3://fleet/none cannot write checks/"):
        await Store("s3://fleet/none").try_out()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount one")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", tmp_path], check=True)


async def test_a_full_disk_is_an_error_and_leaves_the_last_state(small_disk: Path) -> None:
    log = SessionLog(Store(str(small_disk)), secrets.token_hex(16))
    entry = await log.commit(await log.open("a"), b"kept", {})
    with pytest.raises(FleetError, match=r"cannot write .*No space left on device"):
        await log.commit(entry, b"x" * 300_000, {})
    assert await log.state(await log.last()) == b"kept"
    assert (await log.commit(entry, b"less", {})).number == entry.number + 1


async def test_a_read_only_store_is_refused_and_what_it_has_can_be_read(small_disk: Path) -> None:
    log = SessionLog(Store(str(small_disk)), secrets.token_hex(16))
    await log.commit(await log.open("a"), b"kept", {})
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)  # noqa: ASYNC221
    store = Store(str(small_disk))
    with pytest.raises(FleetError, match=r"cannot write .*Read-only file system"):
        await store.try_out()
    with pytest.raises(FleetError, match="Read-only file system"):
        await log.claim("b")
    assert await log.state(await log.last()) == b"kept"


@pytest.mark.parametrize(
    "state",
    ["fleet.json", "../../etc/passwd", "/etc/passwd", "service/keys/00000000/key",
     "sessions/{other}/state/1-2-0123456789abcdef", "sessions/{own}/state/../log/000000000001",
     "sessions/{own}/log/000000000001", "sessions/{own}/state/1-2-0123456789abcdef/x", ""],
)  # fmt: skip
async def test_an_entry_that_names_another_object_as_its_state_is_refused(
    log: SessionLog, state: str
) -> None:
    entry = await log.commit(await log.open("a"), b"x = 1", {})
    named = state.format(own=log.ident, other="0" * 32)
    forged = dataclasses.replace(entry, state=named)
    with pytest.raises(FleetError, match="is not a state of the session"):
        await log.state(forged)
    with pytest.raises(FleetError, match="is not a state of the session"):
        await log.forget(forged, entry)
    assert await log.state(entry) == b"x = 1"


@pytest.mark.parametrize(
    "change",
    [{"number": "1"}, {"number": -1}, {"number": 10**30}, {"epoch": None}, {"kind": "root"},
     {"keys": {"k": "x"}}, {"results": []}, {"state": 5}, {"owner": None}, {"left_out": [1]},
     {"number": True}, {"more": 1}],
)  # fmt: skip
def test_an_entry_with_other_types_is_damaged(change: dict[str, object]) -> None:
    good = {"number": 1, "epoch": 1, "kind": "open", "owner": "a", "nonce": "n", "left_out": []}
    assert logs.Entry.from_bytes(json.dumps(good)).number == 1
    with pytest.raises(FleetError, match="is damaged"):
        logs.Entry.from_bytes(json.dumps({**good, **change}))
