"""A node of a fleet: it owns the node's pool, and runs the daemon's methods for drivers.

    driver ─▶ Peer ─▶ NodeHost ─▶ Dispatch ─▶ Session ─▶ sandbox of the pool
                         └──────▶ DurableSession: commits to the store

Ray makes one NodeActor on each node, and never a second one in its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, ConcurrencyLimit, FairThreads
from atoll.config import SandboxConfig
from atoll.errors import AtollError, BusyError, ConfigError, ImageError, SandboxError
from atoll.fleet import expiry
from atoll.fleet.contexts import NodeContexts
from atoll.fleet.durable import DurableSession
from atoll.fleet.files import NodeFiles
from atoll.fleet.link import NodeListener, peer_options
from atoll.fleet.log import Entry, SessionLog
from atoll.fleet.messages import (
    MAX_IMAGES,
    REQUESTS,
    ContextPart,
    ForkSession,
    LeaveNode,
    NodeAddress,
    NodeFacts,
    OpenSession,
    RunOnce,
    image_key,
)
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store
from atoll.fleet.streams import NodeStreams
from atoll.guest.shared import values
from atoll.hosting import heap
from atoll.hosting.dispatch import Connection, Dispatch
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.pool import Pool, PoolSettings
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import open_storage
from atoll.images import store as image_store
from atoll.rpc.connection import Peer
from atoll.rpc.passed_fds import PassedFds, Reply
from atoll.sandbox import verbs
from atoll.sandbox.wire import options

if TYPE_CHECKING:
    import socket

    from atoll.hosting.sessions import HostedSandbox, Session
    from atoll.rpc.blobs import Buffer
    from atoll.rpc.connection import Params

FACTS_SECONDS = 0.1
REPORT_SECONDS = 0.25
"""How often a driver is sent the node's load, at most."""
PART_SECONDS = 60.0
"""How long the sessions of drivers that have gone may take to be committed at the end."""
RUNNING_PER_CPU = 16
"""Cells at one time; most wait for something, and one that computes yields to others."""
_LOG = logging.getLogger("atoll.fleet")
_NOT_HERE = frozenset({"attach", "connect", "folders"})


class NodeHost:
    """The sessions of one node. Drivers connect to it at `address`."""

    def __init__(self, name: str, settings: str, address: str = "127.0.0.1") -> None:
        self.name, self._settings = name, FleetSettings.from_json(settings)
        self._address, self._secret = address, secrets.token_bytes(32)
        self._drivers: dict[Peer, Connection] = {}
        self._reported_at: dict[Peer, float] = {}
        """When each driver was last sent the node's facts."""
        self._listener = NodeListener(self._secret, self._welcome)
        self._background, self._numbers = Background(_LOG), itertools.count(1)
        self._durable: dict[Session, DurableSession] = {}
        self._contexts, self._node_files = NodeContexts(), NodeFiles()
        self._node_streams = NodeStreams()
        self._draining = False
        self._images: list[str] = []
        self._facts: NodeFacts | None = None
        self._facts_made = 0.0
        self._starting: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._opened, self._has_threads = contextlib.AsyncExitStack(), False

    async def start(self) -> NodeAddress:
        """Open the store and warm the pool, once; return how to connect."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)
        return NodeAddress(port=self._port, secret=self._secret, facts=self.facts())

    async def _start(self) -> None:
        # Ray blocks SIGINT in its processes. Guests are interrupted by it, and would inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._settings.check_here()
        if not self._has_threads:
            asyncio.get_running_loop().set_default_executor(FairThreads())
            self._has_threads = True
        async with contextlib.AsyncExitStack() as opened:  # closed again if a later step fails
            self._store = Store(self._settings.store)
            opened.callback(self._store.close)
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="atoll-node-"))
            self._pool = Pool(PoolSettings(default_tier=self._settings.tier))
            opened.push_async_callback(self._pool.close)
            self._make_table(Path(folder))
            opened.push_async_callback(self._table.end_all)
            await self._pool.warm()
            box = await self._pool.open(SandboxConfig(backend="auto"))
            self._level = str(box.isolation)
            await box.destroy()
            self._port = self._listener.start(self._address)
            self._watching = self._watch()
            self._opened = opened.pop_all()

    def _make_table(self, folder: Path) -> None:
        """Make what carries out the drivers' requests."""
        capacity = self._settings.capacity
        running = RUNNING_PER_CPU * (os.cpu_count() or 1)
        limits = DaemonLimits(
            max_sessions=capacity, max_live=capacity, max_running=running, max_queue=4 * capacity
        )
        storage, _store = open_storage(folder / "states", limits)
        self._table = SessionTable(self._pool.open, storage, limits)
        self._concurrency = ConcurrencyLimit(limits.max_running, limits.max_queue)
        self._dispatch = Dispatch(self._table, self._concurrency)
        self._methods = {
            "destroy": self._destroy,
            "files": self._files,
            "initialize": self._restart,
            "pause": self._pause,
            "stream": self._stream,
        }
        """The verbs of a session to which a node adds something."""

    def _watch(self) -> list[asyncio.Task[None]]:
        """Start what saves sessions, and what deletes those that no node has."""
        sweep = partial(expiry.sweep, self._store)
        keep, store = self._settings.keep_seconds, self._store
        pause = min(1.0, self._settings.save_seconds / 2)
        sweeps = self._node_files.sweep, self._node_streams.sweep, self._table.sweep
        steps = self._save_all, self._look_for_images, *sweeps, self._report_to_all
        watching = self._background.watch("the node", lambda: pause, *steps)
        return [watching, expiry.watch(self._background, store, keep, "sweeps", sweep)]

    async def _look_for_images(self) -> None:
        """Note which images are in this machine's store, so that drivers can prefer it."""
        with contextlib.suppress(OSError, ImageError):
            names = await asyncio.to_thread(image_store.names)
            self._images = sorted(map(image_key, names))[:MAX_IMAGES]

    def facts(self) -> NodeFacts:
        """Return load and place, as drivers choose by them; a moment old at most."""
        facts, now = self._facts, time.monotonic()
        stale = now - self._facts_made > FACTS_SECONDS
        if facts is None or stale or facts.sessions != self._table.count:
            self._facts_made = now
            self._facts = facts = NodeFacts(
                name=self.name,
                pid=os.getpid(),
                isolation=self._level,
                sessions=self._table.count,
                capacity=self._settings.capacity,
                executing=self._concurrency.running,
                queued=self._concurrency.waiting,
                executions=self._dispatch.executions,
                contexts=self._contexts.digests,
                tiers=self._pool.stats(),
                images=self._images,
                draining=self._draining,
                drivers=len(self._drivers),
                durable=len(self._durable),
                save_lag=max((kept.save_lag for kept in self._durable.values()), default=0.0),
            )
        return facts

    async def drain(self, *, draining: bool = True) -> NodeFacts:
        """Take no new session, or take them again; drivers move those that are here."""
        await self.start()
        self._draining = draining
        self._facts = None
        return self.facts()

    async def close(self) -> None:
        """Commit what can be, and end every session."""
        for task in self._watching:
            task.cancel()
        self._listener.close()
        for driver in list(self._drivers):
            driver.end("the node is stopped")
        await self._background.wait(PART_SECONDS)
        await self._opened.aclose()

    def _welcome(self, sock: socket.socket) -> None:
        """Serve one more driver."""
        connection = Connection(self._settings.capacity)
        driver = next(self._numbers)

        async def serve(method: str, params: Params, fds: PassedFds) -> Reply:
            # Each call has a task of its own. One driver may serve many clients: a session is the
            # least that surely belongs to one client.
            OWNER.set(f"driver {driver} {params.get('session')!s:.64}")
            try:
                return await self._serve(connection, method, params, fds)
            finally:
                self._report_to(connection.peer)

        def on_notification(method: str, params: Params) -> None:
            if method == "context_over":
                self._contexts.drop_upload(connection, str(params.get("upload")))
            else:
                _LOG.warning("a driver sent an unknown notification, %s: %s", method, list(params))

        def farewell(why: str) -> None:
            _LOG.info("a driver has gone: %s", why)
            self._reported_at.pop(connection.peer, None)
            if self._drivers.pop(connection.peer, None) is not None:
                self._background.spawn(self._part_from(connection))

        connection.peer = Peer(sock, serve, on_notification, farewell, peer_options("the driver"))
        self._drivers[connection.peer] = connection

    def _report_to_all(self) -> None:
        for driver in list(self._drivers):
            self._report_to(driver)

    def _report_to(self, driver: Peer) -> None:
        """Send a driver the node's facts, but not with every message."""
        now = time.monotonic()
        if driver in self._drivers and now - self._reported_at.get(driver, 0.0) >= REPORT_SECONDS:
            self._reported_at[driver] = now
            driver.notify("facts", self.facts().params())

    async def _serve(
        self, connection: Connection, method: str, params: Params, fds: PassedFds
    ) -> Reply:
        if method in _NOT_HERE:
            raise SandboxError(f"a node has no method {method!r}")
        if method in REQUESTS:
            return await self._serve_driver(connection, method, params, fds)
        if method in self._methods:
            work = partial(self._methods[method], connection, params, fds)
        else:
            work = partial(self._dispatch.call, connection, method, params, fds)
        durable = None
        if self._durable and verbs.may_change(method, params):
            durable = self._durable.get(connection.session(params.get("session"))[1])
        return await (work() if durable is None else durable.run(params, work))

    async def _serve_driver(
        self, connection: Connection, method: str, params: Params, fds: PassedFds
    ) -> Reply:
        """Carry out a request that only a driver makes."""
        match REQUESTS[method].read(params):
            case OpenSession() as request:
                return await self._open(connection, request, fds)
            case ForkSession() as request:
                return await self._fork(connection, request, fds)
            case LeaveNode() as request:
                return await self._leave(connection, request)
            case RunOnce() as request:
                return await self._run(request)
            case ContextPart(digest=str(digest), described=dict(described)) as last:
                self._contexts.finish(connection, last.upload, digest, described)
            case ContextPart() as part:
                data = fds.take_bytes()
                self._contexts.take_part(connection, part.upload, part.offset, data)
        return Reply({})

    async def _open(self, connection: Connection, request: OpenSession, fds: PassedFds) -> Reply:
        """Open a session, from the state that its log names if it has one."""
        self._refuse_if_draining()
        config, log = _config(request.config), SessionLog(self._store, request.session)
        entry = Entry.from_bytes(request.entry) if request.entry else None
        kept = None if entry is None else await log.state(entry)
        states = fds.hand_over() if kept is None else [kept]
        context, items = self._with_context(request.context, request.session)
        given = {"session": request.session, "config": config, "context": context}
        with contextlib.closing(PassedFds([*items, *states])) as both:
            asked = {**given, "state": bool(states)}
            reply = await self._dispatch.call(connection, "initialize", asked, both)
        if entry is not None:
            durable = self._keep(connection, request.session, request.durability, log, entry)
            if request.state:  # the caller's own, which no entry has
                await durable.commit(anyway=True)
        return reply

    def _with_context(
        self, context: Params | None, session: str
    ) -> tuple[Params | None, list[int | Buffer]]:
        """Return a request's context, with its memory file if it is named by its digest."""
        if context is None or "digest" not in context:
            return context, []
        shared = self._contexts.use(context["digest"], session)
        return shared.describe(), [os.dup(shared.fd)]

    async def _restart(self, connection: Connection, params: Params, _fds: PassedFds) -> Reply:
        """Start a session afresh."""
        context, items = self._with_context(params.get("context"), str(params["session"]))
        with contextlib.closing(PassedFds(items)) as fds:
            given = {**params, "context": context}
            return await self._dispatch.call(connection, "initialize", given, fds)

    def _keep(
        self, connection: Connection, name: str, durability: str, log: SessionLog, entry: Entry
    ) -> DurableSession:
        """Commit what the calls of a session leave from now on."""
        _, session = connection.session(name)
        durable = self._durable[session] = DurableSession(
            session,
            log,
            entry,
            every_cell=durability == "cell",
            keep_log=self._settings.keep_log,
            keep_seconds=self._settings.keep_seconds,
        )
        return durable

    async def _fork(self, connection: Connection, request: ForkSession, fds: PassedFds) -> Reply:
        names = {"session": request.session, "twin": request.twin}
        reply = await self._dispatch.call(connection, "fork", names, fds)
        if request.entry:
            entry, log = Entry.from_bytes(request.entry), SessionLog(self._store, request.twin)
            durable = self._keep(connection, request.twin, request.durability, log, entry)
            await durable.commit(anyway=True)
        return reply

    async def _destroy(self, connection: Connection, params: Params, _fds: PassedFds) -> Reply:
        """End a session for good: its log says so, and its states are deleted."""
        durable = await self._end(connection, params.get("session"))
        if durable is not None:
            try:
                await durable.end()
            except AtollError as exc:
                _LOG.warning("the end of a session was not written, its states stay: %s", exc)
        return Reply(None)

    async def _leave(self, connection: Connection, request: LeaveNode) -> Reply:
        """End a session here, to go on elsewhere: from its log, or from the state returned."""
        _, session = connection.session(request.session)
        durable, kept = self._durable.get(session), PassedFds()
        if durable is not None:
            await durable.commit()
            self._durable.pop(session, None)
            durable.fenced = True
        elif request.save:
            async with session as box:
                kept = PassedFds([await cast("HostedSandbox", box).save_whole()])
        await self._end(connection, request.session)
        return Reply({}, kept)

    async def _end(self, connection: Connection, named: object) -> DurableSession | None:
        """End a session here, its watches and its use of a context; return its durable side."""
        name, session = connection.session(named)
        durable = self._durable.pop(session, None)
        self._contexts.release(name)
        self._node_files.forget(session)
        self._node_streams.forget(session)
        await self._dispatch.destroy(connection, name)
        return durable

    async def _files(self, connection: Connection, params: Params, fds: PassedFds) -> Reply:
        """Carry out an operation on a session's files; contents are beside the request."""
        _, session = connection.session(params.get("session"))
        return await self._node_files.request(session, params, fds)

    async def _stream(self, connection: Connection, params: Params, fds: PassedFds) -> Reply:
        """Use a connection with a port of a session; bytes are beside the request."""
        _, session = connection.session(params.get("session"))
        return await self._node_streams.request(session, params, fds)

    async def _pause(self, connection: Connection, params: Params, _fds: PassedFds) -> Reply:
        """Freeze a session's guest. It is saved before: a save would let it run again."""
        _, session = connection.session(params.get("session"))
        if (durable := self._durable.get(session)) is not None:
            await durable.commit()
        await session.pause()
        return Reply({})

    async def _run(self, request: RunOnce) -> Reply:
        """Run code once, in a sandbox of its own."""
        self._refuse_if_draining()
        item = values.decode(request.item)
        config = options.from_wire(_config(request.config), context=item)
        async with self._concurrency.slot():
            return RunOnce.answer.pack(await self._pool.run(request.code, config))

    def _refuse_if_draining(self) -> None:
        if self._draining:
            raise BusyError("the node is being drained")

    async def _save_all(self) -> None:
        """Renew the leases of all sessions, and save those that are due."""
        for session, durable in list(self._durable.items()):
            await self._save(session, durable)

    async def _save(self, session: Session, durable: DurableSession) -> None:
        try:
            await durable.renew()
            if durable.save_lag > self._settings.save_seconds and session.idle:
                await durable.commit()
        except AtollError as exc:
            _LOG.warning("a session was not saved: %s", exc)
        except Exception:  # noqa: BLE001 - the leases of all other sessions have to be renewed
            _LOG.exception("a session was not saved")
        if durable.fenced:
            self._durable.pop(session, None)
            await self._table.end(session)

    async def _part_from(self, connection: Connection) -> None:
        """End a driver's sessions; those with a state can be claimed."""
        self._contexts.drop_upload(connection)
        for session in connection.remove_all():
            durable = self._durable.pop(session, None)
            if durable is not None:
                with contextlib.suppress(AtollError):
                    await durable.commit()
            await self._table.end(session)


def _config(given: Params) -> Params:
    """Return a client's configuration with this node's interpreter in place of the client's."""
    if given.get("interpreter") is None:
        raise ConfigError("a fleet's sandbox has its node's Python: leave `python` out")
    if given.get("workspace") is not None or given["policy"]["mounts"]:
        raise ConfigError("a fleet's sandbox sees no folders of this machine: upload files")
    return {**given, "python": sys.executable}


class NodeActor:
    """What Ray calls on a node.

    Ray wraps each method of an actor's class in tracing of its own, also those that only the node
    calls for every message. So NodeHost is not that class.
    """

    def __init__(self, name: str, settings: str, address: str) -> None:
        self._host = NodeHost(name, settings, address)

    async def start(self) -> NodeAddress:
        """Warm the node; return how to connect."""
        address = await self._host.start()
        heap.collect_rarely()
        return address

    async def drain(self, *, draining: bool) -> NodeFacts:
        """Take no new session, or take them again; return the node's facts."""
        return await self._host.drain(draining=draining)
