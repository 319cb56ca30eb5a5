"""The daemon's methods: what a client can ask for, one function each."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from typing import TYPE_CHECKING, Any, cast

from atoll.errors import ConfigError
from atoll.guest.shared import values
from atoll.hosting.client_callbacks import ClientCallbacks
from atoll.hosting.concurrency import CancelledInQueueError
from atoll.log import SandboxLogger
from atoll.policy import Capability, check_positive
from atoll.rpc.connection import Reply
from atoll.rpc.passed_fds import PassedFds
from atoll.sandbox import command as commands
from atoll.sandbox.idempotency import MAX_KEY
from atoll.sandbox.wire import blobs, options, results
from atoll.types import ExecuteResponse, Outcome, SandboxResult, validity

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from atoll.config import SandboxConfig
    from atoll.daemon.connection import Connection
    from atoll.hosting.concurrency import ConcurrencyLimit, Slot
    from atoll.hosting.session_table import SessionTable
    from atoll.hosting.sessions import ForksWith, Session
    from atoll.sandbox.base import BaseSandbox

    Method = Callable[["Connection", dict[str, Any], PassedFds], Awaitable[Reply]]

MAX_STATE_BYTES = 64 << 20
MAX_COLD_REASONS = 8
_ABOUT_VARIABLES = ("get_variable", "has_variable", "variables", "set_variable")
_LOG = logging.getLogger("atoll.daemon")
_QUIET = SandboxLogger(None)  # the client keeps the log of its executions


class Dispatch:
    """Carries out requests on sessions."""

    def __init__(self, table: SessionTable, limit: ConcurrencyLimit) -> None:
        self._table, self._concurrency = table, limit
        self.executions = 0
        self.cold_starts: dict[str, int] = {}
        """Sessions that no zygote could serve, by the reason; the latest reasons alone."""
        of_sessions: dict[str, Callable[[Session, dict[str, Any]], Awaitable[Reply]]] = {
            "cancel": self._cancel,
            **{one: functools.partial(self._variable, one) for one in _ABOUT_VARIABLES},
            "tools": self._tools,
            "validate": self._validate,
            "checkpoint": self._checkpoint,
            "rollback": self._rollback,
            "branches": self._branches,
            "save": self._save,
            "folders": self._folders,
        }
        self.methods: dict[str, Method] = {
            "initialize": self._initialize,
            "attach": self._attach,
            "execute": self._execute,
            "shell": self._shell,
            "fork": self._fork,
            "destroy": self._destroy,
            **{name: _of_session(method) for name, method in of_sessions.items()},
        }

    async def _initialize(
        self, client: Connection, params: dict[str, Any], passed_fds: PassedFds
    ) -> Reply:
        if client.knows(params.get("session")):
            return await self._restart(client, params, passed_fds)
        with client.room_for(params.get("session")) as name:
            callbacks = ClientCallbacks()
            data = _mapping(params, "config")
            config = options.from_wire(data, logger=_QUIET, **callbacks.functions(data))
            config = _with_context(config, callbacks, params, passed_fds)
            if params.get("state") is True:
                config = dataclasses.replace(
                    config, state=blobs.read(passed_fds.take(), MAX_STATE_BYTES)
                )
            session = await self._open(client, name, config, callbacks)
        answer = _describe(session)
        if params.get("keep") is True:
            answer.value["token"] = self._table.keep(session)
        return answer

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
        self, client: Connection, params: dict[str, Any], passed_fds: PassedFds
    ) -> Reply:
        name, session = client.session(params)
        blank = dataclasses.replace(session.config, context=None, state=None)
        config = _with_context(blank, session.callbacks, params, passed_fds)
        session.callbacks.call_client(client.peer, name, None)
        await session.restart(config)
        return _describe(session)

    async def _attach(
        self, client: Connection, params: dict[str, Any], _passed_fds: PassedFds
    ) -> Reply:
        session = self._table.attach(_text(params, "token"))
        with client.room_for(params.get("session")) as name:
            async with session.in_turn():
                client.add(name, session)
                return _describe(session)

    async def _execute(
        self, client: Connection, params: dict[str, Any], _passed_fds: PassedFds
    ) -> Reply:
        name, session = client.session(params)
        code, key, limit = _text(params, "code"), params.get("key"), params.get("timeout_ms")
        check_positive("timeout_ms", limit)

        async def run() -> SandboxResult:
            async with session.in_turn() as box:
                try:
                    async with self._concurrency.slot(session.waiter) as slot:
                        self._begin(client, name, session, params, slot)
                        result = await box.execute(code, timeout_ms=limit)
                        session.callbacks.flush()
                except CancelledInQueueError:
                    return _never_run(session, box)
            session.memory = result.memory_used_bytes or 0
            return result

        return _answer(await session.by_key.once(key, code, run))

    async def _shell(
        self, client: Connection, params: dict[str, Any], _passed_fds: PassedFds
    ) -> Reply:
        name, session = client.session(params)
        (command, given), limit = commands.from_params(params), params.get("timeout_ms")
        check_positive("timeout_ms", limit)
        async with session.in_turn() as box:
            try:
                async with self._concurrency.slot(session.waiter) as slot:
                    self._begin(client, name, session, params, slot)
                    response = await box.shell(command, timeout_ms=limit, **given)
                    session.callbacks.flush()
                    return _answer(response)
            except CancelledInQueueError:
                error = "the command was cancelled"
                return _answer(ExecuteResponse(output="", exit_code=130, error=error))

    def _begin(
        self, client: Connection, name: str, session: Session, params: dict[str, Any], slot: Slot
    ) -> None:
        """Send what an execution prints and calls to the client that asked for it."""
        execution = str(params.get("execution") or "")[:MAX_KEY]
        session.callbacks.call_client(client.peer, name, slot, execution)
        self.executions += 1

    async def _cancel(self, session: Session, _params: dict[str, Any]) -> Reply:
        await session.cancel()
        return Reply(None)

    async def _variable(self, method: str, session: Session, params: dict[str, Any]) -> Reply:
        """Pass a question about variables to the guest; the client checks what it answers."""
        asked: dict[str, Any] = {}
        asked |= {key: params[key] for key in ("name", "value", "plain", "hidden") if key in params}
        if "name" in asked:
            _text(asked, "name")
        async with session.in_turn() as box:
            return Reply(await box.ask_variable(method, asked))

    async def _tools(self, session: Session, params: dict[str, Any]) -> Reply:
        """Offer the tools that the client describes, and no others."""
        await session.set_tools(params)
        return Reply(None)

    async def _validate(self, session: Session, params: dict[str, Any]) -> Reply:
        code = _text(params, "code")
        async with session.in_turn() as box:
            return Reply(validity(await box.find_fault(code)))

    async def _fork(
        self, client: Connection, params: dict[str, Any], _passed_fds: PassedFds
    ) -> Reply:
        _, session = client.session(params)
        with client.room_for(params.get("twin")) as name:
            callbacks, config = session.clone_config()
            async with session.in_turn() as box:
                twin = await _fork(box, config)
            try:
                clone = await self._open(client, name, config, callbacks, twin)
            except BaseException:
                await twin.destroy()
                raise
        return _describe(clone)

    async def _checkpoint(self, session: Session, _params: dict[str, Any]) -> Reply:
        async with session.in_turn() as box:
            mark = await box.checkpoint()
            session.note_checkpoint()
            return Reply({"mark": mark})

    async def _rollback(self, session: Session, params: dict[str, Any]) -> Reply:
        mark = _text(params, "mark")
        async with session.in_turn() as box:
            await box.rollback(mark)
        return Reply(None)

    async def _branches(self, session: Session, _params: dict[str, Any]) -> Reply:
        async with session.in_turn() as box:
            return Reply({"marks": list(await box.branches())})

    async def _save(self, session: Session, _params: dict[str, Any]) -> Reply:
        async with session.in_turn() as box:
            blob = await box.save()
        fd = await asyncio.to_thread(blobs.write, blob)
        return Reply({}, PassedFds([fd]))

    async def _folders(self, session: Session, params: dict[str, Any]) -> Reply:
        """The client works on them itself: it is the same user."""
        folders = await session.folders(changing=params.get("changing") is True)
        return Reply({"names": list(folders)}, PassedFds(folders.values()))

    async def _destroy(
        self, client: Connection, params: dict[str, Any], _passed_fds: PassedFds
    ) -> Reply:
        name, session = client.session(params)
        client.remove(name)
        await self._table.end_soon(session)
        return Reply(None)

    async def forget(self, client: Connection, name: Any) -> None:
        """End a session that its client no longer wants to hear of."""
        if client.knows(name):
            await self._destroy(client, {"session": name}, PassedFds())


def _of_session(method: Callable[[Session, dict[str, Any]], Awaitable[Reply]]) -> Method:
    """Return the method of a connection that runs one of the session that a request names."""

    async def call(client: Connection, params: dict[str, Any], _passed_fds: PassedFds) -> Reply:
        return await method(client.session(params)[1], params)

    return call


async def _fork(box: BaseSandbox, config: SandboxConfig) -> BaseSandbox:
    if Capability.FORK not in box.capabilities:
        return await box.fork()  # which says that it cannot
    return await cast("ForksWith", box).fork_with(config)


def _answer(result: SandboxResult | ExecuteResponse) -> Reply:
    plain, beside = results.to_wire(result)
    return Reply({"result": plain}, PassedFds([blobs.write(beside)] if beside else []))


def _never_run(session: Session, box: BaseSandbox) -> SandboxResult:
    folder = session.config.workspace
    return SandboxResult(
        kind=Outcome.CANCELLED,
        error="KeyboardInterrupt: the execution was cancelled",
        error_type="KeyboardInterrupt",
        exit_code=130,
        workspace_path=None if folder is None else str(folder),
        isolation=box.isolation,
    )


def _describe(session: Session) -> Reply:
    box = session.box
    assert box is not None
    shared = bool(getattr(box, "context_is_shared", False))
    return Reply({"isolation": str(box.isolation), "context_shared": shared})


def _with_context(
    config: SandboxConfig,
    callbacks: ClientCallbacks,
    params: dict[str, Any],
    passed_fds: PassedFds,
) -> SandboxConfig:
    """With the context that a request brings: in it, or in a memory file beside it."""
    if params.get("context") is None:
        return config
    source = _mapping(params, "context")
    if "value" in source:
        callbacks.context = context = _decode(source["value"])
    else:
        context = blobs.adopt_context(source, passed_fds.take())
        callbacks.context = object()
        context.keep(callbacks.context)  # the client has it: it need not be read here
    return dataclasses.replace(config, context=context)


def _decode(value: Any) -> Any:
    try:
        return values.decode(value)
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"not a value: {exc}") from None


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a str, not {type(value).__name__}")
    return value


def _mapping(params: dict[str, Any], name: str) -> dict[str, Any]:
    value = params.get(name)
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be an object")
    return value
