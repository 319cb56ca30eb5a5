"""The driver: a process between a user's processes and Ray, with the daemon's protocol in front.

It speaks the daemon's protocol, so its clients are the daemon's. What it knows can be lost: states
are in the object store, sessions on their nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import resource
import secrets
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.concurrency.background import Background
from atoll.config import DURABILITIES
from atoll.daemon.paths import DaemonPaths
from atoll.daemon.process import logging_to, say_progress, say_ready
from atoll.errors import (
    AtollError,
    BusyError,
    ConfigError,
    SandboxClosedError,
    SandboxError,
    SandboxLostError,
)
from atoll.fleet import cluster
from atoll.fleet.contexts import SharedContexts
from atoll.fleet.link import LinkLostError
from atoll.fleet.log import SessionLog
from atoll.fleet.messages import ForkSession, RunOnce
from atoll.fleet.routed import OpenRequest, RoutedSession
from atoll.fleet.router import REFRESH_SECONDS, Router
from atoll.fleet.store import Store
from atoll.guest.shared import rpc
from atoll.hosting import heap
from atoll.hosting.dispatch import MAX_NAME
from atoll.hosting.listener import ClientListener, watched_peer
from atoll.hosting.pool import tiers
from atoll.rpc import faults
from atoll.rpc.passed_fds import Reply
from atoll.sandbox import verbs

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from atoll.fleet.router import DriverLink
    from atoll.fleet.settings import FleetSettings
    from atoll.rpc.connection import Params, Peer
    from atoll.rpc.passed_fds import PassedFds

MAX_CONNECTIONS = 2048
MAX_SESSIONS = 256
"""On one connection."""
MESSAGE_SECONDS = 30.0
IDLE_SECONDS = 600.0
"""After which a driver without a client ends; the next client starts another one."""
_LOG = logging.getLogger("atoll.fleet")


class Client:
    """One connection: the sessions that it may name."""

    def __init__(self) -> None:
        self.sessions: dict[str, RoutedSession] = {}
        self.peer: Peer

    def session(self, params: Params) -> RoutedSession:
        """Return the session that a request names."""
        name = params.get("session")
        if not isinstance(name, str) or name not in self.sessions:
            raise SandboxClosedError("this connection has no such session")
        return self.sessions[name]

    def check_name(self, name: Any) -> str:
        """Return the name of a session to be opened; ConfigError or BusyError."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or name in self.sessions:
            raise ConfigError(f"a session's name is a new text of at most {MAX_NAME} characters")
        if len(self.sessions) >= MAX_SESSIONS:
            raise BusyError(f"one connection may have {MAX_SESSIONS} sessions")
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
        self._background = Background(_LOG)
        self._watching: list[asyncio.Task[None]] = []
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
        watch, steps = self._background.watch, (self._drop_stuck, self._empty_drained)
        self._watching = [
            watch("the router", lambda: REFRESH_SECONDS, self._router.refresh),
            watch("the driver", lambda: 1.0, *steps),
        ]
        self._listener.start(listen())

    async def stop(self) -> None:
        """End every session that no log keeps, and part from the clients."""
        self._listener.close()
        for task in self._watching:
            task.cancel()
        for client in list(self._clients):
            client.peer.notify("closing", {})
            client.peer.end("the fleet's driver is stopped")
        ending = [session.leave() for session in self._sessions.values()]
        await asyncio.wait_for(asyncio.gather(*ending, return_exceptions=True), 10)

    def stats(self) -> Params:
        """Return the fleet's nodes, sessions and load."""
        links = self._router.links.values()
        return {
            "pid": os.getpid(),
            "version": __version__,
            "fleet": self._settings.ident,
            "store": self._settings.store,
            "keep_seconds": self._settings.keep_seconds,
            "isolation": min((link.facts.isolation for link in links), default=None),
            "reason": self._router.problem or "; ".join(self._router.refused.values()),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "connections": len(self._clients),
            "sessions": len(self._sessions),
            "executions": self._executions,
            "nodes": [
                {**link.facts.params(), "node": link.row.ident, "load": link.load} for link in links
            ],
            "refused": dict(self._router.refused),
        }

    def _has_room(self) -> bool:
        return len(self._clients) < MAX_CONNECTIONS

    def _welcome(self, sock: socket.socket, process: int) -> None:
        client = Client()

        async def serve(method: str, params: Params, fds: PassedFds) -> Reply:
            return await self._answer(client, method, params, fds)

        def on_notification(method: str, params: Params) -> None:
            name = params.get("session")
            if method in ("forget", "leave") and name in client.sessions:
                session = client.sessions.pop(str(name))
                self._background.spawn(self._forget(session, destroy=method == "forget"))

        def farewell(_why: str) -> None:
            self._clients.discard(client)
            self.used = time.monotonic()
            for session in client.sessions.values():
                self._background.spawn(self._forget(session, destroy=False))

        self._clients.add(client)
        client.peer = watched_peer(sock, process, serve, on_notification, farewell)

    async def _answer(self, client: Client, method: str, params: Params, fds: PassedFds) -> Reply:
        try:
            return await self._carry_out(client, method, params, fds)
        except AtollError:
            raise
        except rpc.MessageTooLargeError as exc:
            raise SandboxError(str(exc)) from None
        except Exception as exc:
            raise faults.unexpected(_LOG, "the fleet's driver", method, exc) from exc

    async def _carry_out(
        self, client: Client, method: str, params: Params, fds: PassedFds
    ) -> Reply:
        if method == "stats":
            return Reply(self.stats())
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

    async def _open(self, client: Client, params: Params, fds: PassedFds) -> Reply:
        name, asked = client.check_name(params.get("session")), verbs.Initialize.read(params)
        ident, opening = asked.fleet_session or secrets.token_hex(16), _opening(asked)
        session = self._add(client, name, ident, opening)
        try:
            self._take_context(opening, asked.context, fds)
            if asked.state:
                opening.state = fds.take_bytes()
            reply = await session.open(claim=bool(asked.fleet_session))
        except BaseException:
            client.sessions.pop(name, None)
            await self._forget(session, destroy=True)
            raise
        return Reply({**reply.value, "fleet_session": ident})

    def _add(self, client: Client, name: str, ident: str, opening: OpenRequest) -> RoutedSession:
        """Return a new session of a client, which is on no node yet."""
        log = SessionLog(self._store, ident) if opening.durability != "none" else None
        session = RoutedSession(ident, opening, self._router, log)
        session.peer, session.name = client.peer, name
        self._sessions[ident] = client.sessions[name] = session
        return session

    async def _fork(
        self, client: Client, session: RoutedSession, params: Params, fds: PassedFds
    ) -> Reply:
        """Clone a session on its node; the clone has a log of its own."""
        name, ident = client.check_name(params.get("twin")), secrets.token_hex(16)
        opening = session.opening
        shared = opening.shared.hold() if opening.shared is not None else None
        twin = self._add(
            client, name, ident, dataclasses.replace(opening, shared=shared, state=None)
        )
        given = ForkSession(session=session.ident, twin=ident, durability=opening.durability)
        try:
            if twin.log is not None:
                owner = session.link.row.name if session.link is not None else ""
                entry = (await twin.log.open(owner)).to_bytes().decode()
                given = dataclasses.replace(given, entry=entry)
            reply = await session.call(given.verb, given.params(), fds)
        except BaseException:
            client.sessions.pop(name, None)
            await self._forget(twin, destroy=True)  # its log, and its use of the context
            raise
        twin.place(session.link)
        return Reply({**reply.value, "fleet_session": ident})

    def _take_context(self, opening: OpenRequest, described: Params | None, fds: PassedFds) -> None:
        if described is not None and "value" not in described:
            opening.shared = self._contexts.adopt(described, fds.take())
            opening.context = None
        else:
            opening.context, opening.shared = described, None

    async def _with_context(self, session: RoutedSession, params: Params, fds: PassedFds) -> Params:
        """Return a request to start afresh, with the context that it brings on the node."""
        old = session.opening.shared
        self._take_context(session.opening, verbs.Initialize.read(params).context, fds)
        shared = session.opening.shared
        if old is not None:
            old.release()
        if shared is None:
            return params
        if session.link is not None:
            await shared.put(session.link)
        return {**params, "context": {"digest": await shared.digest()}}

    async def _run(self, params: Params, fds: PassedFds) -> Reply:
        """Run code once, on the least loaded node with guests that have imported what it uses."""
        request = RunOnce.read(params)
        link = self._router.pick(tier=request.config.get("preload") or tiers.choose(request.code))
        with link.place():
            try:
                return await link.peer.call("run", request.params(), fds.hand_over())
            except LinkLostError as exc:
                raise SandboxLostError(str(exc)) from None

    async def _drain(self, params: Params, _fds: PassedFds) -> Reply:
        """Move every session of a node elsewhere; the node takes no new one."""
        wanted = str(params.get("node"))
        links = {link.row.ident: link for link in self._router.links.values()}
        links |= {link.row.name: link for link in self._router.links.values()}
        if wanted not in links:
            known = ", ".join(link.row.name for link in self._router.links.values()) or "none"
            raise ConfigError(f"the fleet has no node {wanted!r:.100}: there are {known}")
        link = links[wanted]
        link.facts = await link.actor.drain.remote(draining=params.get("draining") is not False)
        moved = await self._move_all(link)
        return Reply({"moved": moved, "left": link.facts.sessions})

    async def _move_all(self, link: DriverLink) -> int:
        here = [session for session in self._sessions.values() if session.link is link]
        done = await asyncio.gather(
            *(session.move(link) for session in here), return_exceptions=True
        )
        faults_met = [fault for fault in done if fault is not None]
        for fault in faults_met:
            _LOG.warning("a session was not moved: %s", fault)
        return len(done) - len(faults_met)

    async def _serve_node(self, method: str, params: Params, fds: PassedFds) -> Reply:
        """Pass a guest's call of a host function on to the session's client."""
        session = self._sessions.get(str(params.get("session")))
        if session is None:
            raise SandboxError("no such session here")
        return await session.peer.call(method, {**params, "session": session.name}, fds.hand_over())

    def _hear_node(self, method: str, params: Params) -> None:
        session = self._sessions.get(str(params.get("session")))
        if session is not None:
            session.peer.notify(method, {**params, "session": session.name})

    def _on_loss(self, link: DriverLink) -> None:
        for session in self._sessions.values():
            session.lose(link)

    async def _forget(self, session: RoutedSession, *, destroy: bool) -> None:
        self._sessions.pop(session.ident, None)
        await (session.destroy() if destroy else session.leave())

    def _end_emptying(self, link: DriverLink, _task: asyncio.Task[int]) -> None:
        self._emptying.discard(link)

    def _drop_stuck(self) -> None:
        """Drop clients whose messages never end."""
        for client in list(self._clients):
            if client.peer.stuck(MESSAGE_SECONDS):
                client.peer.end("its message took too long")

    def _empty_drained(self) -> None:
        """Begin to move the sessions of nodes that another driver drains."""
        for link in list(self._router.links.values()):
            movable = link.facts.draining and len(self._router.links) > 1
            if movable and link not in self._emptying:
                self._emptying.add(link)
                task = self._background.spawn(self._move_all(link))
                task.add_done_callback(partial(self._end_emptying, link))


def _opening(asked: verbs.Initialize) -> OpenRequest:
    if asked.config is None:
        raise ConfigError("config must be an object")
    if asked.durability not in DURABILITIES:
        raise ConfigError(
            f"durability must be one of {', '.join(DURABILITIES)}, not {asked.durability!r}"
        )
    return OpenRequest(
        config=asked.config, durability=asked.durability, auto_recover=asked.auto_recover
    )


def connect(address: str) -> FleetSettings:
    """Join the fleet at an address; FleetError says why that is not possible."""
    cluster.connect(address)
    settings = cluster.read_settings()
    settings.check_here()
    return settings


async def serve(paths: DaemonPaths, settings: FleetSettings) -> None:
    """Serve until SIGTERM, or until no client has been there for IDLE_SECONDS."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    driver = Driver(settings, Store(settings.store))
    say_progress("waiting for a node")
    await driver.start(paths.listen)
    heap.collect_rarely()
    say_ready()
    while not stop.is_set() and driver.idle_seconds < IDLE_SECONDS:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 1.0)
    paths.remove_socket()
    await driver.stop()


def main() -> int:
    """`python -m atoll.fleet.driver SOCKET ADDRESS`: what a fleet's first client starts."""
    os.chdir("/")
    paths = DaemonPaths(Path(sys.argv[1]))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    try:
        paths.prepare()
        lock = paths.claim()
        with logging_to(paths.log, logging.getLogger("atoll.fleet")):
            say_progress("joining the fleet")
            settings = connect(sys.argv[2])
            asyncio.run(serve(paths, settings))
    except (AtollError, OSError) as exc:
        print(exc, file=sys.stderr)  # noqa: T201 - the process that starts it reads this
        return 1
    finally:
        paths.remove_socket()
    os.close(lock)
    return 0


if __name__ == "__main__":
    EXIT_CODE = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_CODE)  # threads of Ray would keep an ended driver alive
