"""Sessions that are ended: the client has its answer before the kernel has ended the guest."""

from __future__ import annotations

import asyncio

import pytest
from memory_store import MemoryStateStore

from atoll import SandboxConfig
from atoll.hosting import session_table
from atoll.hosting.client_callbacks import ClientCallbacks
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import Storage


class _Box:
    """A sandbox whose end takes as long as the test wants."""

    capabilities = frozenset()

    def __init__(self, may_end: asyncio.Event) -> None:
        self._may_end, self.killed = may_end, False

    async def destroy(self) -> None:
        self.killed = True
        await self._may_end.wait()


@pytest.fixture
def may_end():
    return asyncio.Event()


@pytest.fixture
def table(may_end):
    async def opener(_config):
        return _Box(may_end)

    return SessionTable(opener, Storage(store=MemoryStateStore(60, 1 << 20)), DaemonLimits())


async def test_the_answer_comes_when_the_kill_is_sent(table, may_end):
    session = await table.open(SandboxConfig(), ClientCallbacks())
    box = session.box
    await asyncio.wait_for(table.end_soon(session), 5)
    assert (box.killed, table.count, len(table._ending)) == (True, 0, 1)
    may_end.set()
    await table.end_all()
    assert not table._ending


async def test_a_folder_of_the_client_is_free_when_the_answer_comes(table, may_end, tmp_path):
    session = await table.open(SandboxConfig(workspace=tmp_path), ClientCallbacks())
    ending = asyncio.ensure_future(table.end_soon(session))
    await asyncio.sleep(0.05)
    assert not ending.done()
    may_end.set()
    await asyncio.wait_for(ending, 5)


async def test_no_more_are_ended_at_once_than_the_limit(table, may_end, monkeypatch):
    monkeypatch.setattr(session_table, "MAX_ENDING", 2)
    sessions = [await table.open(SandboxConfig(), ClientCallbacks()) for _ in range(3)]
    first, second, third = (asyncio.ensure_future(table.end_soon(one)) for one in sessions)
    await asyncio.wait({first, second}, timeout=5)
    assert (first.done(), second.done(), third.done()) == (True, True, False)
    may_end.set()
    await asyncio.wait_for(third, 5)
