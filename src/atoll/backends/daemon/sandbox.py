"""DaemonClientSandbox: a session that the daemon holds, used as if it were here."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from contextlib import nullcontext
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from atoll.backends._client_sandbox import ClientSandbox
from atoll.backends.daemon import connection as connections
from atoll.config import SandboxConfig, daemon_socket
from atoll.errors import AtollError, BackendUnavailableError, SandboxClosedError, SandboxError
from atoll.files.direct import FolderFiles
from atoll.guest.shared import rpc, values
from atoll.network import NETWORK_CALL, NetworkRequest
from atoll.packages.progress import Progress
from atoll.policy import Capability, Isolation
from atoll.sandbox import context as contexts
from atoll.sandbox import guard, turns, variables, verbs
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import CLOSED, NOT_STARTED
from atoll.sandbox.bridge import HostBridge
from atoll.sandbox.wire import options

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.files.base import Files
    from atoll.rpc.blobs import Buffer
    from atoll.rpc.connection import Items
    from atoll.rpc.passed_fds import Reply
    from atoll.sandbox.wire.answers import Answer, GuestAnswer, Opened

R = TypeVar("R")


class RequestTooLargeError(SandboxError):
    """A request does not fit into one message; nothing was sent."""


class DaemonClientSandbox(ClientSandbox):
    """A sandbox in the daemon. With `keep`, the session outlives this process.

    A sandbox made with the `token` of a kept session attaches to it in initialize().
    """

    backend: ClassVar[str] = "daemon"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)

    def __init__(
        self, config: SandboxConfig | None = None, *, keep: bool = False, token: str | None = None
    ) -> None:
        super().__init__(config or SandboxConfig(backend="daemon"))
        self._keep, self.token = keep, token
        self._connection: DaemonConnection | None = None
        self._session = ""

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:  # noqa: ARG003 - as asked
        """Whether a daemon answers, and how strong its sandboxes are. One stat if there is none."""
        try:
            path = daemon_socket()
            os.stat(path)
            facts = await connections.ping(path)
        except OSError:
            reason = f"no daemon runs at {path}"
            return Availability(usable=False, reason=reason, hint=connections.hint())
        except BackendUnavailableError as exc:
            return Availability(usable=False, reason=exc.reason, hint=exc.hint)
        except AtollError as exc:
            return Availability(usable=False, reason=str(exc), hint=connections.hint())
        if facts.get("isolation") not in tuple(map(str, Isolation)):
            return Availability(usable=False, reason=str(facts.get("reason")), hint="atoll doctor")
        return Availability(
            usable=True,
            isolation=Isolation.parse(facts["isolation"]),
            limits={"all": "as in the backend that the daemon uses"},
            details={"socket": str(path), "pid": str(facts.get("pid"))},
        )

    async def initialize(self, context: Any = None) -> None:
        """Open a session with `context`, or attach to that of the token. Again: start afresh."""
        guard.require(self._config.guard)
        if self._is_open():
            await self._begin(verbs.Initialize(), context)
            return
        attach = self.token is not None and not self._keep
        self._leave()
        connection = self._connection = await self._connect()
        self._destroyed = False
        session = self._session = connection.hold()
        try:
            if attach:
                self._adopt(await self._send(verbs.Attach(token=str(self.token))))
            else:
                with self._progress():
                    await self._begin(self._opening(), context, self._config.state)
        except BaseException:
            connection.peer.notify("forget", {"session": session})
            self._leave()
            raise

    async def _connect(self) -> DaemonConnection:
        return await connections.shared(daemon_socket())

    def _sibling(self) -> DaemonClientSandbox:
        return DaemonClientSandbox(self._config)

    def _opening(self) -> verbs.Initialize:
        """Return the request for a session, without its context."""
        return verbs.Initialize(config=options.to_wire(self._config), keep=self._keep)

    def _progress(self) -> AbstractContextManager[object]:
        """Show that the daemon builds packages by name, if that takes a while."""
        if not self._config.packages:
            return nullcontext()
        progress = Progress(f"atoll: packages {', '.join(self._config.packages)[:60]}")
        progress.say("the daemon gets them")
        return progress

    async def fork(self) -> DaemonClientSandbox:
        """Return a live clone, on the same connection."""
        turns.refuse_own_tool(self)
        twin = self._sibling()
        await self._fork_into(twin)
        return twin

    async def _fork_into(self, twin: DaemonClientSandbox) -> None:
        """Make `twin`, which was never started, a live clone."""
        connection = self._opened()
        twin._connection, twin._session = connection, connection.hold()
        twin._context = self._context
        try:
            twin._adopt(await self._send(verbs.Fork(twin=twin._session)))
        except BaseException:
            connection.peer.notify("forget", {"session": twin._session})
            twin._leave()
            raise

    @cached_property
    def files(self) -> Files:
        """The guest's files, by descriptors that the daemon hands over: also while a cell runs."""

        async def folders(changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
            return await self._send(verbs.Folders(changing=changing))

        return FolderFiles(folders, self.policy.file_size_bytes).reach_by(self.shell)

    async def destroy(self) -> None:
        """End the session and everything that it started."""
        self._destroyed = True
        await self._close_forwards()
        connection, session = self._connection, self._session
        if connection is None or not session:
            return
        self._session = ""  # whoever calls from now on finds it closed
        try:
            await connection.peer.call("destroy", {"session": session})
        except SandboxError:
            pass  # it has ended already, or the daemon has
        finally:
            self._session = session
            self._leave()

    async def detach(self) -> None:
        """Close the connection to a kept session; its token attaches to it again."""
        await self._close_forwards()
        self._leave()

    async def _begin(
        self, request: verbs.Initialize, context: Any, state: bytes | None = None
    ) -> None:
        """Ask for a session with `context`, which is passed as a memory file if it is large."""
        shared, items = await _share(context), list["int | Buffer"]()
        if shared is not None:
            request = dataclasses.replace(request, context=shared.describe())
            items.append(os.dup(shared.fd))
        elif context is not None:
            request = dataclasses.replace(request, context={"value": values.encode(context)})
        if state is not None:
            request = dataclasses.replace(request, state=True)
            items.append(state)
        self._context = context if shared is None else shared
        self._adopt(await self._send(request, items))

    def _adopt(self, opened: Opened) -> None:
        assert self._connection is not None
        self._level = Isolation.parse(opened.isolation)
        self._check_level(self._level)
        self.context_is_shared = opened.context_shared
        self.token = opened.token or self.token
        self._bridge = self._bridge or HostBridge(self._bridge_config(), self._context_value)
        self._connection.register(self._session, self._on_lines, self._bridge.handle)

    def _bridge_config(self) -> SandboxConfig:
        """Return the configuration with `on_request` among the functions the daemon may call."""
        decide = self._config.network.on_request if self._config.network else None
        if decide is None:
            return self._config
        tools: Any = {NETWORK_CALL: lambda **asked: decide(NetworkRequest(**asked))}
        return dataclasses.replace(self._config, tools={**self._config.tools, **tools})

    def _require_open(self) -> None:
        self._opened()

    def _opened(self) -> DaemonConnection:
        """Return the connection; SandboxClosedError if the session is not open."""
        connection = self._connection
        if self._destroyed or connection is None or not self._session:
            raise SandboxClosedError(CLOSED if self._destroyed else NOT_STARTED)
        return connection

    def _is_open(self) -> bool:
        connection = self._connection
        return connection is not None and bool(self._session) and not connection.peer.ended

    async def _send(self, request: verbs.Request[R], items: Items = ()) -> R:
        answer: Answer[R] = request.answer
        reply = await self._call(request.verb, request.params(), items)
        if answer.is_large:
            return await asyncio.to_thread(answer.unpack, reply)
        return answer.unpack(reply)

    async def ask_variable(self, request: verbs.VariableRequest) -> GuestAnswer:
        """Ask the session's guest about a variable; its answer is not checked yet."""
        try:
            return await super().ask_variable(request)
        except RequestTooLargeError as exc:
            raise variables.cannot_set(str(request.params().get("name")), str(exc)) from None

    async def _run(self, request: verbs.CodeRequest[R]) -> R:
        """Send a request that runs code; its calls find this caller's context variables."""
        if self._bridge is None:
            self._require_open()
            raise SandboxClosedError(NOT_STARTED)
        callers, execution = self._bridge.callers, secrets.token_hex(8)
        self._failure = None
        with turns.running(self):
            callers[execution] = copy_context()
            try:
                return await self._send(dataclasses.replace(request, execution=execution))
            finally:
                del callers[execution]

    async def _call(self, method: str, params: dict[str, Any], items: Items = ()) -> Reply:
        connection = self._opened()
        try:
            return await connection.peer.call(method, {**params, "session": self._session}, items)
        except rpc.MessageTooLargeError as exc:
            raise RequestTooLargeError(str(exc)) from None

    def _on_lines(self, stream: str, lines: list[Any]) -> None:
        if stream == "output":
            for name, text in lines:
                self._tell(self._config.on_output, name, text)
            return
        callback = self._config.on_stdout if stream == "stdout" else self._config.on_stderr
        for line in lines:
            self._tell(callback, line)

    def _tell(self, callback: Callable[..., None] | None, *args: str) -> None:
        if callback is None or self._failure is not None:
            return
        try:
            callback(*args)
        except Exception as exc:  # noqa: BLE001 - a caller's callback; raised at the end
            self._failure = exc

    def _leave(self) -> None:
        """Release the connection."""
        if self._connection is not None and self._session:
            self._connection.let_go(self._session)
        self._connection, self._session = None, ""
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        self._context = None


async def _share(context: Any) -> contexts.Context | None:
    """A memory file for a large context; in a thread only if that takes time."""
    if context is None or isinstance(context, contexts.Context):
        return context
    if isinstance(context, str) and len(context) <= contexts.INLINE_LIMIT:
        return None
    return await asyncio.to_thread(contexts.share, context)
