"""What the daemon's tests share: servers in this process, with any limits."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio
from daemon_kit import Notebook, Running, Serve, left_out, open_native
from memory_store import MemoryStateStore

from atoll.daemon.paths import DaemonPaths
from atoll.daemon.server import DaemonServer
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.sessions import Storage


@pytest_asyncio.fixture
async def serve(tmp_path, monkeypatch) -> AsyncIterator[Serve]:
    """Starts servers; the last one is the one that sandboxes of the `daemon` backend find."""
    started: list[DaemonServer] = []
    Notebook.opened = []

    async def start(opener=open_native, store=None, **limits) -> Running:
        bounds = DaemonLimits(**limits)
        place = DaemonPaths(tmp_path / f"{len(started)}.sock")
        store = store or MemoryStateStore(bounds.keep_seconds, bounds.store_bytes)
        server = DaemonServer(opener, Storage(store=store, left_out=left_out), bounds)
        await server.start(place.listen())
        Notebook.opened.clear()
        started.append(server)
        monkeypatch.setenv("ATOLL_DAEMON_SOCKET", str(place.socket))
        return Running(server, place.socket)

    yield start
    for server in started:
        await server.stop()
