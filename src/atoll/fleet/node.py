"""A node of a fleet: it owns the node's pool, and runs the daemon's methods for drivers.

    driver ─▶ Link ─▶ MessagePeer ─▶ NodeHost ─▶ Dispatch ─▶ Session ─▶ sandbox of the pool
                                        └──────▶ DurableSession: commits to the store

Ray makes one actor with this on each node (`actor`), and never a second one in its place.
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
from typing import TYPE_CHECKING, Any, cast

from atoll.concurrency.background import Background
from atoll.concurrency.shares import OWNER, FairThreads
from atoll.config import SandboxConfig
from atoll.daemon.connection import Connection
from atoll.errors import AtollError, BusyError, ConfigError, SandboxError
from atoll.files.direct import CHANGING as CHANGING_FILES
from atoll.fleet import expiry
from atoll.fleet.contexts import NodeContexts
from atoll.fleet.durable import DurableSession
from atoll.fleet.link import Link, Strangers, facts_message, tls
from atoll.fleet.log import Entry, SessionLog
from atoll.fleet.node_files import NodeFiles
from atoll.fleet.settings import FleetSettings
from atoll.fleet.store import Store
from atoll.hosting.concurrency import ConcurrencyLimit
from atoll.hosting.dispatch import Dispatch
from atoll.hosting.limits import DaemonLimits
from atoll.hosting.pool import Pool, PoolSettings
from atoll.hosting.session_table import SessionTable
from atoll.hosting.sessions import open_storage
from atoll.rpc.connection import Reply
from atoll.rpc.passed_fds import PassedFds
from atoll.sandbox.wire import blobs, options, results

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.fleet.frames import Message
    from atoll.fleet.peer import PassedBytes
    from atoll.hosting.sessions import SavesWhole, Session
    from atoll.rpc.connection import Peer

FACTS_SECONDS = 0.1
TELL_SECONDS = 0.25
"""How often a driver is told the node's load, while there is something else to tell it."""
PART_SECONDS = 60.0
"""How long the sessions of drivers that have gone may take to be committed at the end."""
RUNNING_PER_CPU = 16
"""Cells at one time; most wait for something, and one that computes yields to others."""
_LOG = logging.getLogger("atoll.fleet")
_WITHOUT_TURN = frozenset({"open", "fork", "destroy", "leave", "run", "context"})
_NOT_HERE = frozenset({"attach", "folders"})


class NodeHost:
    """The sessions of one node. Drivers connect to it at `address`."""

    def __init__(self, name: str, settings: str, address: str = "127.0.0.1") -> None:
        self.name, self._settings = name, FleetSettings.from_json(settings)
        self._address, self._secret = address, secrets.token_bytes(32)
        self._links: dict[Link, Connection] = {}
        self._strangers = Strangers()
        self._background, self._numbers = Background(_LOG), itertools.count(1)
        self._durable: dict[Session, DurableSession] = {}
        self._contexts, self._node_files = NodeContexts(), NodeFiles()
        self._draining = False
        self._facts: tuple[float, dict[str, Any]] = (float("-inf"), {})
        self._starting: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._opened, self._has_threads = contextlib.AsyncExitStack(), False

    async def start(self) -> dict[str, Any]:
        """Open the store and warm the pool, once; return how to connect, and the node's facts."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)
        return {"port": self._port, "secret": self._secret, "facts": self.facts()}

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
            self._server = await asyncio.get_running_loop().create_server(
                self._welcome, self._address, 0, ssl=tls(server=True)
            )
            self._port = self._server.sockets[0].getsockname()[1]
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
            **{name: one for name, one in self._dispatch.methods.items() if name not in _NOT_HERE},
            "open": self._open, "fork": self._fork, "destroy": self._destroy, "leave": self._leave,
            "files": self._files, "run": self._run, "initialize": self._restart,
            "context": self._context, "pause": self._pause, "resume": self._resume,
        }  # fmt: skip

    def _watch(self) -> list[asyncio.Task[None]]:
        """Start what saves sessions, and what deletes those that no node has."""
        sweep = partial(expiry.sweep, self._store)
        sweeping = expiry.watch(self._store, self._settings.keep_seconds, "sweeps", sweep)
        pause = min(1.0, self._settings.save_seconds / 2)
        steps = self._save_all, self._node_files.sweep, self._table.sweep
        watching = self._background.watch("the node", lambda: pause, *steps)
        return [watching, self._background.spawn(sweeping, shared=True)]

    def facts(self) -> dict[str, Any]:
        """Return load and place, as drivers choose by them; a moment old at most."""
        made, facts = self._facts
        if time.monotonic() - made > FACTS_SECONDS or facts["sessions"] != self._table.count:
            facts = {
                "name": self.name,
                "pid": os.getpid(),
                "isolation": self._level,
                "sessions": self._table.count,
                "capacity": self._settings.capacity,
                "executing": self._concurrency.running,
                "queued": self._concurrency.waiting,
                "executions": self._dispatch.executions,
                "contexts": self._contexts.digests,
                "tiers": self._pool.stats(),
                "draining": self._draining,
                "drivers": len(self._links),
                "durable": len(self._durable),
                "save_lag": max((one.save_lag for one in self._durable.values()), default=0.0),
            }
            self._facts = time.monotonic(), facts
        return facts

    async def drain(self, *, draining: bool = True) -> dict[str, Any]:
        """Take no new session; drivers move those that are here."""
        await self.start()
        self._draining = draining
        self._facts = float("-inf"), {}
        return self.facts()

    async def close(self) -> None:
        """Commit what can be, and end every session."""
        for task in self._watching:
            task.cancel()
        self._server.close()
        for link in list(self._links):
            link.end("the node is stopped")
        await self._background.wait(PART_SECONDS)
        await self._opened.aclose()

    def _welcome(self) -> Link:
        """Return what speaks to one more driver."""
        connection = Connection(self._settings.capacity)
        driver = next(self._numbers)

        async def serve(method: str, params: dict[str, Any], fds: PassedFds) -> Reply:
            # Each call has a task of its own. One driver may serve many clients: a session is the
            # least that surely belongs to one of them.
            OWNER.set(f"driver {driver} {params.get('session')!s:.64}")
            return await self._serve(connection, method, params, fds)

        def hear(method: str, params: dict[str, Any]) -> None:
            if method == "context_over":
                self._contexts.drop_upload(connection, str(params["upload"]))
            elif method != "alive":
                _LOG.warning("a driver sent %s, which is no notification: %s", method, list(params))

        link = Link(self._secret, serve, hear, self._ended, dials=False)
        self._strangers.add(link)
        link.on_ready = lambda: self._links.update({link: connection})
        link.news = self._news()
        connection.peer = cast("Peer", link.peer)
        return link

    def _news(self) -> Callable[[], Message | None]:
        """Return a function that tells the node's facts, but not with every message."""
        told = float("-inf")

        def news() -> Message | None:
            nonlocal told
            now = time.monotonic()
            if now - told < TELL_SECONDS:
                return None
            told = now
            return facts_message(self.facts())

        return news

    def _ended(self, link: Link, why: str) -> None:
        """End the sessions of a driver that has gone."""
        if link in self._links:
            _LOG.info("a driver has gone: %s", why)
            self._background.spawn(self._part_from(self._links.pop(link)))

    async def _serve(
        self, connection: Connection, method: str, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        carry_out = self._methods.get(method)
        if carry_out is None:
            raise SandboxError(f"a node has no method {method[:100]!r}")
        durable = None
        if self._durable and method not in _WITHOUT_TURN and not _only_reads(method, params):
            durable = self._durable.get(connection.session(params)[1])
        if durable is None:
            return await carry_out(connection, params, fds)
        return await durable.run(method, params, partial(carry_out, connection, params, fds))

    async def _open(self, connection: Connection, params: dict[str, Any], fds: PassedFds) -> Reply:
        """Open a session, from the state that its log names if it has one."""
        if self._draining:
            raise BusyError("the node is being drained")
        config, (given, passed) = _config(params), self._with_context(params)
        passed += fds.hand_over()
        entry = Entry.from_bytes(params["entry"]) if params.get("entry") else None
        log = SessionLog(self._store, params["session"]) if entry else None
        if log is not None and entry is not None and (state := await log.state(entry)) is not None:
            given["state"] = True
            passed.append(blobs.write(state))
        with contextlib.closing(PassedFds(passed)) as all_fds:
            initialize = self._dispatch.methods["initialize"]
            reply = await initialize(connection, {**given, "config": config}, all_fds)
        if log is not None and entry is not None:
            durable = self._keep(connection, params, log, entry)
            if params.get("state") is True:  # the caller's own, which no entry has
                await durable.commit(anyway=True)
        return reply

    async def _context(
        self, connection: Connection, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        """Take a part of a context, or its digest, which comes last."""
        upload = str(params["upload"])
        if "digest" in params:
            self._contexts.finish(connection, upload, params["digest"], params["described"])
        else:
            data = cast("PassedBytes", fds).take_buffer()
            self._contexts.take_part(connection, upload, params["offset"], data)
        return Reply({})

    def _with_context(self, params: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
        """Return a request with its context as a memory file, if it names one by its hash."""
        shared = params.get("context")
        if not isinstance(shared, dict) or "digest" not in shared:
            return dict(params), []
        context = self._contexts.use(shared["digest"], str(params["session"]))
        return {**params, "context": context.describe()}, [os.dup(context.fd)]

    async def _restart(
        self, connection: Connection, params: dict[str, Any], _fds: PassedFds
    ) -> Reply:
        """Start a session afresh."""
        given, passed = self._with_context(params)
        with contextlib.closing(PassedFds(passed)) as fds:
            return await self._dispatch.methods["initialize"](connection, given, fds)

    def _keep(
        self, connection: Connection, params: dict[str, Any], log: SessionLog, entry: Entry
    ) -> DurableSession:
        _, session = connection.session(params)
        every_cell = params.get("durability") == "cell"
        durable = DurableSession(
            session, log, entry, every_cell=every_cell, keep_log=self._settings.keep_log,
            keep_seconds=self._settings.keep_seconds,
        )  # fmt: skip
        self._durable[session] = durable
        return durable

    async def _fork(self, connection: Connection, params: dict[str, Any], fds: PassedFds) -> Reply:
        reply = await self._dispatch.methods["fork"](connection, params, fds)
        twin = {**params, "session": params["twin"]}
        if params.get("entry"):
            entry = Entry.from_bytes(params["entry"])
            log = SessionLog(self._store, params["twin"])
            await self._keep(connection, twin, log, entry).commit(anyway=True)
        return reply

    async def _destroy(
        self, connection: Connection, params: dict[str, Any], fds: PassedFds
    ) -> Reply:
        """End a session for good: its log says so, and its states are deleted."""
        name, session = connection.session(params)
        durable = self._durable.pop(session, None)
        self._contexts.release(name)
        self._node_files.forget(session)
        reply = await self._dispatch.methods["destroy"](connection, params, fds)
        if durable is not None:
            try:
                await durable.end()
            except AtollError as exc:
                _LOG.warning("the end of a session was not written, its states stay: %s", exc)
        return reply

    async def _leave(self, connection: Connection, params: dict[str, Any], fds: PassedFds) -> Reply:
        """End a session here, to go on elsewhere: from its log, or from the state returned."""
        name, session = connection.session(params)
        durable, kept = self._durable.pop(session, None), PassedFds()
        if durable is not None:
            await durable.commit()
            durable.fenced = True
        elif params.get("save") is True:
            async with session.in_turn() as box:
                state = await cast("SavesWhole", box).save_whole()
            kept = PassedFds([blobs.write(state)])
        self._contexts.release(name)
        self._node_files.forget(session)
        await self._dispatch.methods["destroy"](connection, params, fds)
        return Reply({}, kept)

    async def _files(self, connection: Connection, params: dict[str, Any], fds: PassedFds) -> Reply:
        """Carry out an operation on a session's files; contents are beside the request."""
        return await self._node_files.request(connection.session(params)[1], params, fds)

    async def _pause(
        self, connection: Connection, params: dict[str, Any], _fds: PassedFds
    ) -> Reply:
        """Freeze a session's guest. It is saved before: a save would let it run again."""
        _, session = connection.session(params)
        if (durable := self._durable.get(session)) is not None:
            await durable.commit()
        await session.pause()
        return Reply({})

    async def _resume(
        self, connection: Connection, params: dict[str, Any], _fds: PassedFds
    ) -> Reply:
        """Let a session's guest run again, which every call does."""
        async with connection.session(params)[1].in_turn():
            return Reply({})

    async def _run(self, _connection: Connection, params: dict[str, Any], _fds: PassedFds) -> Reply:
        """Run code once, in a sandbox of its own."""
        if self._draining:
            raise BusyError("the node is being drained")
        fields = {"context": params["item"]} if "item" in params else {}
        config = options.from_wire(_config(params), **fields)
        async with self._concurrency.slot():
            result = await self._pool.run(str(params["code"]), config)
        plain, beside = results.to_wire(result)
        return Reply({"result": plain}, PassedFds([blobs.write(beside)] if beside else []))

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


def _config(params: dict[str, Any]) -> dict[str, Any]:
    """Return a client's configuration with this node's interpreter in place of the client's."""
    config = dict(params["config"])
    if config.get("interpreter") is None:
        raise ConfigError("a fleet's sandbox has its node's Python: leave `python` out")
    if config.get("workspace") is not None or config["policy"]["mounts"]:
        raise ConfigError("a fleet's sandbox sees no folders of this machine: upload files")
    return {**config, "python": sys.executable}


def _only_reads(method: str, params: dict[str, Any]) -> bool:
    return method == "files" and params.get("operation") not in CHANGING_FILES
