"""Large contexts on a fleet: sent once to a node, in parts, while they are hashed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from without_ray import FleetHere, fleet_here

from atoll.aio import create_sandbox
from atoll.errors import ConfigError, SandboxError
from atoll.fleet import shared
from atoll.fleet.contexts import MOST_UNUSED, NodeContexts
from atoll.fleet.log import END, SessionLog
from atoll.fleet.store import Store
from atoll.sandbox.context import Context

TEXT = "".join(f"line {n} ü\n" for n in range(40_000))


async def test_sessions_of_one_node_get_a_context_that_was_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PART_BYTES", 100_000)
    context = Context.from_text(TEXT)
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        parts = counted(fleet, monkeypatch)
        opening = (_open(context) for _ in range(4))
        boxes = await asyncio.gather(*opening)
        found = await asyncio.gather(*(box.execute("len(context), context[-9:]") for box in boxes))
        assert [one.value for one in found] == [(len(TEXT), TEXT[-9:])] * 4
        assert len(parts) == len(set(parts)) == -(-context.size // 100_000)
        assert len(fleet.hosts[0]._contexts.digests) == 1
        fleet.hosts[0]._contexts = NodeContexts()  # as if it had needed the room
        box = await _open(context)
        assert (await box.execute("context[:6]")).value == TEXT[:6]
        assert not fleet.hosts[0]._contexts._uploads


async def test_what_came_of_a_context_is_dropped_when_its_client_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PART_BYTES", 100_000)
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        contexts, came = fleet.hosts[0]._contexts, asyncio.Event()
        take = fleet.hosts[0]._methods["context"]

        async def first_part(connection: Any, params: Any, fds: Any) -> Any:
            if params.get("offset") == 0:
                return await take(connection, params, fds)
            came.set()
            return await asyncio.Event().wait()  # the second one never ends

        monkeypatch.setitem(fleet.hosts[0]._methods, "context", first_part)
        opening = asyncio.ensure_future(_open(Context.from_text(TEXT)))
        await came.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        async with asyncio.timeout(20):
            while contexts._uploads:  # noqa: ASYNC110 - it is told by a notification
                await asyncio.sleep(0.01)


def test_a_context_that_is_not_whole_is_refused() -> None:
    node = NodeContexts()
    described = Context.from_text(TEXT).describe()
    node.take_part("a driver", "one", 0, b"short")
    with pytest.raises(ConfigError, match="not a sealed memory file of the announced size"):
        node.finish("a driver", "one", "digest", described)
    with pytest.raises(SandboxError, match="no part of this context has come"):
        node.finish("another driver", "one", "digest", described)
    assert node.digests == []


def test_a_node_keeps_few_contexts_that_no_session_uses() -> None:
    node = NodeContexts()
    for n in range(MOST_UNUSED + 3):
        node.take_part("a driver", str(n), 0, b"text\0")
        facts = {"width": 1, "length": 4, "ascii": True, "json": False}
        node.finish("a driver", str(n), f"5-{n}", facts)
        if n == 0:
            node.use("5-0", "session")
    assert node.digests == ["5-0", *(f"5-{n}" for n in range(3, MOST_UNUSED + 3))]


def counted(fleet: FleetHere, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets of the parts that the first node is sent."""
    offsets: list[int] = []
    take = fleet.hosts[0]._methods["context"]

    async def counting(connection: Any, params: Any, fds: Any) -> Any:
        if "offset" in params:
            offsets.append(params["offset"])
        return await take(connection, params, fds)

    monkeypatch.setitem(fleet.hosts[0]._methods, "context", counting)
    return offsets


async def _open(context: Any) -> Any:
    return await create_sandbox(backend="ray", context=context)


async def test_a_clone_that_fails_leaves_neither_its_log_nor_its_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        box = await create_sandbox(
            backend="ray", context=Context.from_text(TEXT), durability="cell"
        )

        async def refuse(*_args: Any) -> Any:
            raise SandboxError("no clone today")

        monkeypatch.setitem(fleet.hosts[0]._methods, "fork", refuse)
        with pytest.raises(SandboxError, match="no clone today"):
            await box.fork()
        (context,) = fleet.driver._contexts._known.values()
        assert context._users == 1
        store = Store(fleet.settings.store)
        logs = {one.split("/")[1] for one in await store.names("sessions")}
        (clone,) = logs - {vars(box)["session"]}
        assert (await SessionLog(store, clone).last()).kind == END
        store.close()
