"""The driver: a process between a user's processes and Ray, with the daemon's protocol in front.

It speaks the daemon's protocol, so its clients are the daemon's. What it knows can be lost: states
are in the object store, sessions on their nodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.config import DURABILITIES
from atoll.daemon.connection import MAX_NAME
from atoll.errors import (
    AtollError,
    BusyError,
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
)
from atoll.fleet import cluster
from atoll.fleet.log import SessionLog
from atoll.fleet.peer import LinkLostError
from atoll.fleet.routed import OpenRequest, RoutedSession
from atoll.fleet.router import Router
from atoll.fleet.shared import SharedContexts
from atoll.hosting.listener import ClientListener, watched_peer
from atoll.hosting.pool import tiers
from atoll.rpc import faults
from atoll.rpc.connection import Reply
from atoll.sandbox.wire import blobs

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine

    from atoll.fleet.router import DriverLink
    from atoll.fleet.settings import FleetSettings
    from atoll.fleet.store import Store
    from atoll.rpc.connection import Peer
    from atoll.rpc.passed_fds import PassedFds

MOST_CONNECTIONS = 2048
MOST_SESSIONS = 256
"""On one connection."""
MESSAGE_SECONDS = 30.0
_LOG = logging.getLogger("atoll.fleet")


class Client:
    """One connection: the sessions that it may name."""

    def __init__(self) -> None:
        self.sessions: dict[str, RoutedSession] = {}
        self.peer: Peer

    def session(self, params: dict[str, Any]) -> RoutedSession:
        """Return the session that a request names."""
        name = params.get("session")
        if not isinstance(name, str) or name not in self.sessions:
            raise SandboxClosedError("this connection has no such session")
        return self.sessions[name]

    def check_name(self, name: Any) -> str:
        """Return the name of a session to be opened; ConfigError or BusyError."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or name in self.sessions:
            raise ConfigError(f"a session's name is a new text of at most {MAX_NAME} characters")
        if len(self.sessions) >= MOST_SESSIONS:
            raise BusyError(f"one connection may have {MOST_SESSIONS} sessions")
        return name


class Driver:
    """Serves clients. It has to be connected to Ray."""

    def __init__(self, settings: FleetSettings, store: Store) -> None:
        self._settings, self._store = settings, store
        self._router = Router(settings, self._serve_node, self._hear_node, self._on_loss)
        self._listener = ClientListener(self._has_room, self._welcome)
        self._clients: set[Client] = set()
        self._sessions: dict[str, RoutedSession] = {}
        self._contexts = SharedContexts()
        self._background: set[asyncio.Task[Any]] = set()
        self._emptying: set[DriverLink] = set()
        self._started = self.used = time.monotonic()
        self._executions = 0

    @property
    def idle_seconds(self) -> float:
        """For how long no client has been there."""
        return 0.0 if self._clients else time.monotonic() - self.used

    async def start(self, listen: Callable[[], socket.socket]) -> None:
        """Wait for a node, then listen: a client that finds the socket is answered at once."""
        await self._router.ready()
        self._spawn(self._router.watch())
        self._spawn(self._watch())
        self._listener.start(listen())

    async def stop(self) -> None:
        """End every session that no log keeps, and part from the clients."""
        self._listener.close()
        for client in list(self._clients):
            client.peer.notify("closing", {})
            client.peer.end("the fleet's driver is stopped")
        ending = [one.leave() for one in self._sessions.values()]
        await asyncio.wait_for(asyncio.gather(*ending, return_exceptions=True), 10)

    def stats(self) -> dict[str, Any]:
        """Return what is known of the fleet."""
        links = self._router.links.values()
        levels = [one.facts["isolation"] for one in links]
        return {
            "pid": os.getpid(),
            "version": __version__,
            "fleet": self._settings.ident,
            "store": self._settings.store,
            "keep_seconds": self._settings.keep_seconds,
            "isolation": min(levels, default=None),
            "reason": self._router.problem or "; ".join(self._router.refused.values()),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "connections": len(self._clients),
            "sessions": len(self._sessions),
            "executions": self._executions,
            "nodes": [{**one.facts, "node": one.row.ident, "load": one.load} for one in links],
            "refused": dict(self._router.refused),
        }

    def _has_room(self) -> bool:
        return len(self._clients) < MOST_CONNECTIONS

    def _welcome(self, sock: socket.socket, process: int) -> None:
        client = Client()

        async def serve(method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
            return await self._answer(client, method, params, fds)

        def hear(method: str, params: dict[str, Any]) -> None:
            name = params.get("session")
            if method in ("forget", "leave") and name in client.sessions:
                session = client.sessions.pop(str(name))
                self._spawn(self._forget(session, destroy=method == "forget"))

        def farewell(_why: str) -> None:
            self._clients.discard(client)
            self.used = time.monotonic()
            for session in client.sessions.values():
                self._spawn(self._forget(session, destroy=False))

        self._clients.add(client)
        client.peer = watched_peer(sock, process, serve, hear, farewell)

    async def _answer(
        self, client: Client, method: str, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        try:
            return await self._carry_out(client, method, params, fds)
        except AtollError:
            raise
        except Exception as exc:
            raise faults.unexpected(_LOG, "the fleet's driver", method, exc) from exc

    async def _carry_out(
        self, client: Client, method: str, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        if method in ("ping", "stats"):
            works_on = {"calls": client.peer.open_calls}
            return Reply(works_on if method == "ping" else self.stats())
        if method in ("run", "drain"):
            return await (self._run if method == "run" else self._drain)(params, fds)
        if method == "initialize" and params.get("session") not in client.sessions:
            return await self._open(client, params, fds)
        session = client.session(params)
        if method == "initialize":
            params = await self._with_context(session, params, fds)
        elif method == "fork":
            return await self._fork(client, session, params, fds)
        elif method == "destroy":
            client.sessions.pop(params["session"], None)
            await self._forget(session, destroy=True)
            return Reply(None)
        self._executions += method == "execute"
        reply = await session.call(method, params, fds)
        if method == "tools":  # a session that is opened again has them too
            session.opening.config = {**session.opening.config, "tools": params.get("tools")}
        return reply

    async def _open(self, client: Client, params: dict[str, Any], fds: PassedFds) -> Reply:
        name = client.check_name(params.get("session"))
        opening = _opening(params)
        ident = params.get("fleet_session") or secrets.token_hex(16)
        self._take_context(opening, params, fds)
        if params.get("state") is True:
            opening.state = blobs.read(fds.take())
        log = SessionLog(self._store, ident) if opening.durability != "none" else None
        session = RoutedSession(ident, opening, self._router, log)
        session.peer, session.name = client.peer, name
        self._sessions[ident] = client.sessions[name] = session
        try:
            reply = await session.open(claim=bool(params.get("fleet_session")))
        except BaseException:
            client.sessions.pop(name, None)
            await self._forget(session, destroy=True)
            raise
        return Reply({**reply.value, "fleet_session": ident})

    async def _fork(
        self, client: Client, session: RoutedSession, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        """Clone a session on its node; the clone has a log of its own."""
        name, ident = client.check_name(params.get("twin")), secrets.token_hex(16)
        opening, given = session.opening, {**params, "twin": ident}
        shared = opening.shared.hold() if opening.shared is not None else None
        copied = OpenRequest(
            config=opening.config, durability=opening.durability, context=opening.context,
            auto_recover=opening.auto_recover, shared=shared,
        )  # fmt: skip
        log = SessionLog(self._store, ident) if opening.durability != "none" else None
        twin = RoutedSession(ident, copied, self._router, log)
        twin.peer, twin.name = client.peer, name
        self._sessions[ident] = client.sessions[name] = twin
        try:
            if log is not None:
                owner = session.link.row.name if session.link is not None else ""
                entry = (await log.open(owner)).to_bytes().decode()
                given.update(entry=entry, durability=opening.durability)
            reply = await session.call("fork", given, fds)
        except BaseException:
            client.sessions.pop(name, None)
            await self._forget(twin, destroy=True)  # its log, and its use of the context
            raise
        twin.place(session.link)
        return Reply({**reply.value, "fleet_session": ident})

    def _take_context(self, opening: OpenRequest, params: dict[str, Any], fds: PassedFds) -> None:
        described = params.get("context")
        if isinstance(described, dict) and "value" not in described:
            opening.shared = self._contexts.adopt(described, fds.take())
            opening.context = None
        else:
            opening.context, opening.shared = described, None

    async def _with_context(
        self, session: RoutedSession, params: dict[str, Any], fds: PassedFds
    ) -> dict[str, Any]:
        """Return a request to start afresh, with the context that it brings on the node."""
        old = session.opening.shared
        self._take_context(session.opening, params, fds)
        shared = session.opening.shared
        if old is not None:
            old.release()
        if shared is None:
            return params
        if session.link is not None:
            await shared.put(session.link)
        return {**params, "context": {"digest": await shared.digest()}}

    async def _run(self, params: dict[str, Any], fds: PassedFds) -> Reply:
        """Run code once, on the least loaded node with guests that have imported what it uses."""
        beside = fds.hand_over()
        config, code = params.get("config"), params.get("code")
        if not isinstance(config, dict) or not isinstance(code, str):
            raise ConfigError("config must be an object, and code a text")
        link = self._router.pick(tier=config.get("preload") or tiers.choose(code))
        with link.place():
            try:
                return await link.peer.call("run", params, beside)
            except LinkLostError as exc:
                raise SandboxLostError(str(exc)) from None

    async def _drain(self, params: dict[str, Any], _fds: PassedFds) -> Reply:
        """Move every session of a node elsewhere; the node takes no new one."""
        wanted = str(params.get("node"))
        found = [
            one for one in self._router.links.values() if wanted in (one.row.name, one.row.ident)
        ]
        if not found:
            known = ", ".join(one.row.name for one in self._router.links.values()) or "none"
            raise ConfigError(f"the fleet has no node {wanted!r:.100}: there are {known}")
        link = found[0]
        link.facts = await link.actor.drain.remote(draining=params.get("draining") is not False)
        moved = await self._move_all(link)
        return Reply({"moved": moved, "left": link.facts["sessions"]})

    async def _move_all(self, link: DriverLink) -> int:
        here = [one for one in self._sessions.values() if one.link is link]
        done = await asyncio.gather(*(one.move(link) for one in here), return_exceptions=True)
        for fault in done:
            if isinstance(fault, BaseException):
                _LOG.warning("a session was not moved: %s", fault)
        return sum(not isinstance(one, BaseException) for one in done)

    async def _serve_node(self, method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
        """Pass a guest's call of a host function on to the session's client."""
        session = self._sessions.get(str(params.get("session")))
        if session is None:
            raise SandboxError("no such session here")
        return await session.peer.call(method, {**params, "session": session.name}, fds.hand_over())

    def _hear_node(self, method: str, params: dict[str, Any]) -> None:
        session = self._sessions.get(str(params.get("session")))
        if session is not None:
            session.peer.notify(method, {**params, "session": session.name})

    def _on_loss(self, link: DriverLink) -> None:
        for session in self._sessions.values():
            session.lose(link)

    async def _forget(self, session: RoutedSession, *, destroy: bool) -> None:
        self._sessions.pop(session.ident, None)
        await (session.destroy() if destroy else session.leave())

    async def _watch(self) -> None:
        """Drop clients whose messages never end; empty nodes that another driver drains."""
        while True:
            await asyncio.sleep(1.0)
            for client in list(self._clients):
                if client.peer.stuck(MESSAGE_SECONDS):
                    client.peer.end("its message took too long")
            for link in list(self._router.links.values()):
                if link.facts.get("draining") and len(self._router.links) > 1:
                    self._empty(link)

    def _empty(self, link: DriverLink) -> None:
        """Begin to move a node's sessions elsewhere, unless that goes on already."""
        if link not in self._emptying:
            self._emptying.add(link)
            task = self._spawn(self._move_all(link))
            task.add_done_callback(lambda _: self._emptying.discard(link))

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _opening(params: dict[str, Any]) -> OpenRequest:
    config = params.get("config")
    durability, recover = params.get("durability", "none"), params.get("auto_recover") is True
    if not isinstance(config, dict):
        raise ConfigError("config must be an object")
    if durability not in DURABILITIES:
        raise ConfigError(
            f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}"
        )
    return OpenRequest(config=config, durability=durability, auto_recover=recover)


def connect(address: str) -> FleetSettings:
    """Join the fleet at an address; FleetError says why that is not possible."""
    cluster.connect(address)
    settings = cluster.read_settings()
    settings.check_here()
    return settings
