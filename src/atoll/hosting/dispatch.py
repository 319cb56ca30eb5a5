"""Carries out clients' requests: opens and ends their sessions, and runs the verbs in them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from typing import TYPE_CHECKING, Any, cast

from atoll.concurrency.shares import CancelledInQueueError
from atoll.errors import BusyError, ConfigError, SandboxClosedError, SandboxError
from atoll.guest.shared import values
from atoll.hosting.client_callbacks import ClientCallbacks
from atoll.log import SandboxLogger
from atoll.policy import Capability, check_positive
from atoll.sandbox import verbs
from atoll.sandbox.context import Context
from atoll.sandbox.idempotency import MAX_KEY
from atoll.sandbox.wire import options
from atoll.sandbox.wire.answers import Opened
from atoll.types import ExecuteResponse, Outcome, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from atoll.concurrency.shares import ConcurrencyLimit
    from atoll.config import SandboxConfig
    from atoll.hosting.session_table import SessionTable
    from atoll.hosting.sessions import HostedSandbox, Session
    from atoll.rpc.connection import Peer
    from atoll.rpc.passed_fds import PassedFds, Reply
    from atoll.sandbox.base import BaseSandbox

MAX_STATE_BYTES = 64 << 20
MAX_COLD_REASONS = 8
MAX_NAME = 64
"""Characters of a session's name."""
_LOG = logging.getLogger("atoll.daemon")
_QUIET = SandboxLogger(None)  # the client keeps the log of its executions


class Connection:
    """A client, and the sessions that it may name. The names mean nothing to other clients."""

    def __init__(self, most_sessions: int) -> None:
        self._most_sessions = most_sessions
        self._sessions: dict[str, Session] = {}
        self._reserved: set[str] = set()
        self.peer: Peer

    def knows(self, name: Any) -> bool:
        """Return whether a session of that name is open."""
        return isinstance(name, str) and name in self._sessions

    def session(self, name: object) -> tuple[str, Session]:
        """Return the session that a request names."""
        if not isinstance(name, str) or name not in self._sessions:
            raise SandboxClosedError("this connection has no such session")
        return name, self._sessions[name]

    @contextlib.contextmanager
    def room_for(self, name: Any) -> Iterator[str]:
        """Around the opening of a session; BusyError if there are too many already."""
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise ConfigError(f"a session's name is a text of at most {MAX_NAME} characters")
        if name in self._sessions or name in self._reserved:
            raise ConfigError("a session of that name is open already")
        if len(self._sessions) + len(self._reserved) >= self._most_sessions:
            raise BusyError(f"one connection may have {self._most_sessions} sessions")
        self._reserved.add(name)
        try:
            yield name
        finally:
            self._reserved.discard(name)

    def add(self, name: str, session: Session) -> None:
        """Give a session its name on this connection."""
        self._sessions[name] = session

    def remove(self, name: str) -> None:
        """Forget a session."""
        self._sessions.pop(name, None)

    def remove_all(self) -> list[Session]:
        """Forget every session: which ones there were."""
        sessions = list(self._sessions.values())
        self._sessions.clear()
        return sessions


class Dispatch:
    """Carries out requests on sessions."""

    def __init__(self, table: SessionTable, limit: ConcurrencyLimit) -> None:
        self._table, self._concurrency = table, limit
        self.executions = 0
        self.cold_starts: dict[str, int] = {}
        """Sessions that no zygote could serve, by the reason; the latest reasons alone."""

    async def call(
        self, client: Connection, verb: str, params: verbs.Params, passed_fds: PassedFds
    ) -> Reply:
        """Carry out a request that names a session; SandboxError if the verb does not exist."""
        kind = verbs.VERBS.get(verb)
        if kind is None:
            raise SandboxError(f"there is no method {verb[:100]!r}")
        request: Any = kind.read(params)
        named, result = params.get("session"), cast("Any", None)
        if kind is verbs.Execute and request.key is not None:
            by_key = client.session(named)[1].by_key
            run = functools.partial(self._run, client, named, request)
            result = await by_key.once(request.key, request.code, run)
        elif kind is verbs.Execute or kind is verbs.Shell:
            result = await self._run(client, named, request)
        elif kind is verbs.Initialize:
            result = await self._initialize(client, named, request, passed_fds)
        elif kind is verbs.Attach:
            result = await self._attach(client, named, request)
        elif kind is verbs.Fork:
            result = await self._fork(client, named, request)
        elif kind is verbs.Destroy:
            await self.destroy(client, named)
        else:
            result = await client.session(named)[1].carry_out(request)
        answer = kind.answer
        return (
            await asyncio.to_thread(answer.pack, result) if answer.is_large else answer.pack(result)
        )

    async def _initialize(
        self, client: Connection, named: object, request: verbs.Initialize, passed_fds: PassedFds
    ) -> Opened:
        if client.knows(named):
            return await self._restart(client, named, request, passed_fds)
        with client.room_for(named) as name:
            callbacks = ClientCallbacks()
            if request.config is None:
                raise ConfigError("config must be an object")
            functions = callbacks.functions(request.config)
            config = options.from_wire(request.config, logger=_QUIET, **functions)
            config = _with_context(config, callbacks, request, passed_fds)
            if request.state:
                state = bytes(passed_fds.take_bytes(MAX_STATE_BYTES))
                config = dataclasses.replace(config, state=state)
            session = await self._open(client, name, config, callbacks)
        opened = _describe(session)
        if request.keep:
            opened = dataclasses.replace(opened, token=self._table.keep(session))
        return opened

    async def _open(
        self,
        client: Connection,
        name: str,
        config: SandboxConfig,
        callbacks: ClientCallbacks,
        box: BaseSandbox | None = None,
    ) -> Session:
        session = await self._table.open(config, callbacks, box)
        if why := getattr(session.box, "cold_start", None):
            self.cold_starts[why] = self.cold_starts.pop(why, 0) + 1  # the latest is the last
            while len(self.cold_starts) > MAX_COLD_REASONS:
                self.cold_starts.pop(next(iter(self.cold_starts)))
            _LOG.info("a cold start: %s", why)
        if client.peer.ended:
            await self._table.end(session)
        client.add(name, session)
        return session

    async def _restart(
        self, client: Connection, named: object, request: verbs.Initialize, passed_fds: PassedFds
    ) -> Opened:
        name, session = client.session(named)
        blank = dataclasses.replace(session.config, context=None, state=None)
        config = _with_context(blank, session.callbacks, request, passed_fds)
        session.callbacks.call_client(client.peer, name, None)
        await session.restart(config)
        return _describe(session)

    async def _attach(self, client: Connection, named: object, request: verbs.Attach) -> Opened:
        session = self._table.attach(request.token)
        with client.room_for(named) as name:
            async with session:
                client.add(name, session)
                return _describe(session)

    async def _run(
        self, client: Connection, named: object, request: verbs.Execute | verbs.Shell
    ) -> Any:
        """Run code in its turn; what it prints and calls goes to the client that asked for it."""
        name, session = client.session(named)
        if request.timeout_ms is not None:
            check_positive("timeout_ms", request.timeout_ms)
        async with session as box:
            try:
                async with self._concurrency.slot(session.waiter) as slot:
                    execution = request.execution[:MAX_KEY]
                    session.callbacks.call_client(client.peer, name, slot, execution)
                    self.executions += 1
                    result = await request.apply(box)
                    if session.callbacks.holds_output:
                        session.callbacks.flush()
            except CancelledInQueueError:
                return _never_run(request, session, box)
        if isinstance(result, SandboxResult):
            session.memory = result.memory_used_bytes or 0
        return result

    async def _fork(self, client: Connection, named: object, request: verbs.Fork) -> Opened:
        _, session = client.session(named)
        with client.room_for(request.twin) as name:
            callbacks, config = session.clone_config()
            async with session as box:
                if Capability.FORK not in box.capabilities:
                    await box.fork()  # which says that it cannot
                twin = await cast("HostedSandbox", box).fork_with(config)
            try:
                clone = await self._open(client, name, config, callbacks, twin)
            except BaseException:
                await twin.destroy()
                raise
        return _describe(clone)

    async def destroy(self, client: Connection, named: object) -> None:
        """End a session for good."""
        name, session = client.session(named)
        client.remove(name)
        await self._table.end_soon(session)

    async def forget(self, client: Connection, name: Any) -> None:
        """End a session that its client no longer wants."""
        if client.knows(name):
            await self.destroy(client, name)


def _never_run(
    request: verbs.Execute | verbs.Shell, session: Session, box: BaseSandbox
) -> SandboxResult | ExecuteResponse:
    """Return the result of what was cancelled while it waited for its turn."""
    if isinstance(request, verbs.Shell):
        return ExecuteResponse(output="", exit_code=130, error="the command was cancelled")
    folder = session.config.workspace
    return SandboxResult(
        kind=Outcome.CANCELLED,
        error="KeyboardInterrupt: the execution was cancelled",
        error_type="KeyboardInterrupt",
        exit_code=130,
        workspace_path=None if folder is None else str(folder),
        isolation=box.isolation,
    )


def _describe(session: Session) -> Opened:
    box = session.box
    assert box is not None
    shared = bool(getattr(box, "context_is_shared", False))
    return Opened(isolation=str(box.isolation), context_shared=shared)


def _with_context(
    config: SandboxConfig,
    callbacks: ClientCallbacks,
    request: verbs.Initialize,
    passed_fds: PassedFds,
) -> SandboxConfig:
    """Return the configuration with the context of a request: in it, or in a memory file."""
    source = request.context
    if source is None:
        return config
    if "value" in source:
        try:
            callbacks.context = context = values.decode(source["value"])
        except (ValueError, RecursionError) as exc:
            raise ConfigError(f"not a value: {exc}") from None
    else:
        context = Context.adopt(source, passed_fds.take())
        callbacks.context = object()
        context.keep(callbacks.context)  # the client has it: it need not be read here
    return dataclasses.replace(config, context=context)
