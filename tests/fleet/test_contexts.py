"""Large contexts on a fleet: sent once to a node, in parts, while they are hashed."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("obstore", reason="the extra `ray` is not installed")

from without_ray import fleet_here

from atoll.aio import create_sandbox
from atoll.backends.daemon.connection import connect
from atoll.config import SandboxConfig
from atoll.errors import ConfigError, FleetError, SandboxError
from atoll.fleet import contexts as fleet_contexts
from atoll.fleet.contexts import MAX_UNUSED, NodeContexts
from atoll.fleet.log import END, SessionLog
from atoll.fleet.store import Store
from atoll.sandbox.context import Context
from atoll.sandbox.wire.options import to_wire

TEXT = "".join(f"line {n} ü\n" for n in range(40_000))


async def test_sessions_of_one_node_get_a_context_that_was_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_contexts, "PART_BYTES", 100_000)
    context = Context.from_text(TEXT)
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        parts = counted(monkeypatch)
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
    monkeypatch.setattr(fleet_contexts, "PART_BYTES", 100_000)
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        contexts, came = fleet.hosts[0]._contexts, asyncio.Event()
        serve = fleet.hosts[0]._serve_driver

        async def first_part(connection: Any, method: str, params: Any, fds: Any) -> Any:
            if method != "context" or not params.get("offset"):
                return await serve(connection, method, params, fds)
            came.set()
            return await asyncio.Event().wait()  # the second one never ends

        monkeypatch.setattr(fleet.hosts[0], "_serve_driver", first_part)
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
    for n in range(MAX_UNUSED + 3):
        node.take_part("a driver", str(n), 0, b"text\0")
        facts = {"width": 1, "length": 4, "ascii": True, "json": False}
        node.finish("a driver", str(n), f"5-{n}", facts)
        if n == 0:
            node.use("5-0", "session")
    assert node.digests == ["5-0", *(f"5-{n}" for n in range(3, MAX_UNUSED + 3))]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets of the parts that nodes are sent."""
    offsets: list[int] = []
    take_part = NodeContexts.take_part

    def counting(self: Any, sender: Any, upload: str, offset: int, data: Any) -> None:
        offsets.append(offset)
        take_part(self, sender, upload, offset, data)

    monkeypatch.setattr(NodeContexts, "take_part", counting)
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

        monkeypatch.setattr(fleet.hosts[0], "_fork", refuse)
        with pytest.raises(SandboxError, match="no clone today"):
            await box.fork()
        (context,) = fleet.driver._contexts._known.values()
        assert context._users == 1
        store = Store(fleet.settings.store)
        logs = {one.split("/")[1] for one in await store.names("sessions")}
        (clone,) = logs - {vars(box)["session"]}
        assert (await SessionLog(store, clone).last()).kind == END
        store.close()


async def test_a_session_whose_state_cannot_be_read_leaves_no_descriptor_on_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_args: Any) -> Any:
        raise FleetError("the store has lost the state")

    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        context = Context.from_text(TEXT)
        async with create_sandbox(backend="ray", context=context):
            monkeypatch.setattr(SessionLog, "state", fail)
            (file,) = [held.fd for held, _ in fleet.hosts[0]._contexts._known.values()]
            before = copies(file)
            with pytest.raises(FleetError, match="has lost the state"):
                await create_sandbox(backend="ray", context=context, durability="cell")
            assert copies(file) == before


def copies(fd: int) -> int:
    """Return how many descriptors of this process are of the same memory file."""
    inode, found = os.fstat(fd).st_ino, 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found += os.fstat(int(name)).st_ino == inode
    return found


async def test_a_request_without_the_state_that_it_announces_leaves_no_context_with_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet_here(tmp_path, monkeypatch, "a") as fleet:
        connection = await connect(tmp_path / "d.sock")
        context = Context.from_text(TEXT)
        config = to_wire(SandboxConfig())
        asked = {"session": "s", "config": config, "context": context.describe(), "state": True}
        with pytest.raises(ConfigError, match="did not come"):
            await connection.peer.call("initialize", asked, [os.dup(context.fd)])
        assert not fleet.driver._contexts._known
        assert not fleet.driver._sessions
        connection.peer.end("over")
