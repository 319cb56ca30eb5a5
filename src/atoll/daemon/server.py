"""The daemon's server: takes connections of its own user, and hands their requests on.

listener ─▶ peer (uid checked) ─▶ dispatch ─▶ session ─▶ sandbox, from whatever opens them
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import os
import time
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, ConcurrencyLimit, FairThreads
from atoll.config import SandboxConfig
from atoll.errors import AtollError
from atoll.hosting.dispatch import Connection, Dispatch
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.listener import ClientListener, watched_peer
from atoll.hosting.session_table import SessionTable
from atoll.rpc import faults
from atoll.rpc.passed_fds import Reply

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.hosting.sessions import Opener, Storage
    from atoll.policy import Isolation
    from atoll.rpc.passed_fds import PassedFds
    from atoll.sandbox.verbs import Params

STOP_SECONDS = 5
_LOG = logging.getLogger("atoll.daemon")


class DaemonServer:
    """Holds sandboxes for clients. How a sandbox comes to be is the opener's business."""

    def __init__(
        self,
        opener: Opener,
        storage: Storage,
        limits: DaemonLimits | None = None,
        pool_stats: Callable[[], dict[str, dict[str, Any]]] = dict,
    ) -> None:
        self._limits = limits or DaemonLimits()
        self._pool_stats = pool_stats
        self._opener = opener
        self._table = SessionTable(opener, storage, self._limits)
        self._concurrency = ConcurrencyLimit(self._limits.max_running, self._limits.max_queue)
        self._dispatch = Dispatch(self._table, self._concurrency)
        self._connections: set[Connection] = set()
        self._background, self._numbers = Background(_LOG), itertools.count(1)
        self._listener = ClientListener(self._has_room, self._welcome)
        self._watching: asyncio.Task[None] | None = None
        self._started = time.monotonic()
        self._level: Isolation | None = None
        self._why_not = ""

    async def start(self, listener: socket.socket) -> None:
        """Try out that sandboxes can be opened, then take connections."""
        asyncio.get_running_loop().set_default_executor(FairThreads())
        await self._try_out()
        self._listener.start(listener)
        pause = min(5.0, max(0.05, self._limits.idle_seconds / 4))
        steps = self._try_again, self._drop_stuck, self._table.sweep
        self._watching = self._background.watch("the daemon", lambda: pause, *steps)

    async def stop(self) -> int:
        """Stop listening, notify the clients and end every session; return how many there were."""
        self._listener.close()
        for client in list(self._connections):
            client.peer.notify("closing", {})
        if self._watching is not None:
            self._watching.cancel()
        ended = self._table.count
        for client in list(self._connections):
            client.peer.end("the daemon is stopped")
        self._background.spawn(self._table.end_all())
        await self._background.wait(STOP_SECONDS)
        return ended

    def stats(self) -> dict[str, Any]:
        """Totals: nothing that tells of one client to another."""
        return {
            "pid": os.getpid(),
            "version": __version__,
            "isolation": None if self._level is None else str(self._level),
            "reason": self._why_not,
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "connections": len(self._connections),
            "sessions": self._table.count,
            "live": self._table.live,
            "executions": self._dispatch.executions,
            "executing": self._concurrency.running,
            "queued": self._concurrency.waiting,
            "cold_starts": dict(self._dispatch.cold_starts),
            "pool": self._pool_stats(),
        }

    async def _try_out(self) -> None:
        """Open one sandbox to learn the isolation level; this also warms the pool."""
        try:
            box = await self._opener(SandboxConfig(backend="auto"))
        except AtollError as exc:
            self._why_not = str(exc)
            _LOG.warning("no sandbox can be opened: %s", exc)
            return
        self._level, self._why_not = box.isolation, ""
        await box.destroy()

    def _has_room(self) -> bool:
        return len(self._connections) < self._limits.max_connections

    def _welcome(self, sock: socket.socket, process: int) -> None:
        client = Connection(self._limits.max_sessions_per_connection)
        owner = f"connection {next(self._numbers)}"

        serve = functools.partial(self._answer, client, owner)
        self._connections.add(client)

        def on_notification(method: str, params: Params) -> None:
            if method == "forget":
                self._background.spawn(self._dispatch.forget(client, params.get("session")))

        def farewell(why: str) -> None:
            self._farewell(client, why)

        client.peer = watched_peer(sock, process, serve, on_notification, farewell)

    def _farewell(self, client: Connection, why: str) -> None:
        self._connections.discard(client)
        if not client.peer.gone:
            _LOG.warning("dropped a client: %s", why)
        for session in client.remove_all():
            if session.digest is None:
                self._background.spawn(self._table.end(session))

    async def _answer(
        self, client: Connection, owner: str, method: str, params: Params, passed_fds: PassedFds
    ) -> Reply:
        OWNER.set(owner)  # each call has a task of its own
        if method == "stats":
            return Reply(self.stats())
        try:
            return await self._dispatch.call(client, method, params, passed_fds)
        except AtollError:
            raise
        except Exception as exc:
            raise faults.unexpected(_LOG, "the daemon", method, exc) from exc

    async def _try_again(self) -> None:
        """Try to open a sandbox if none could be: what failed at the start may have passed."""
        if self._level is None:
            await self._try_out()

    def _drop_stuck(self) -> None:
        """Drop clients whose messages never end."""
        for client in list(self._connections):
            if client.peer.stuck(self._limits.message_seconds):
                client.peer.end("its message took too long")
