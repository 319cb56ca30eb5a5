"""DaemonClientSandbox: a session that the daemon holds, used as if it were here."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
from contextlib import nullcontext
from contextvars import copy_context
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

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
from atoll.sandbox import guard, turns, variables
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import NOT_STARTED, check_code
from atoll.sandbox.bridge import HostBridge
from atoll.sandbox.wire import answers, blobs, options, results
from atoll.types import CodeFault

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from atoll.backends.daemon.connection import DaemonConnection
    from atoll.files.base import Files
    from atoll.rpc.connection import Reply
    from atoll.types import ExecuteResponse, SandboxResult


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
        if self._connection is not None and self._session and not self._connection.peer.ended:
            await self._begin(context, {})
            return
        attach = self.token is not None and not self._keep
        self._leave()
        connection = self._connection = await self._connect()
        self._destroyed = False
        session = self._session = connection.hold()
        try:
            if attach:
                self._adopt(await self._call("attach", {"token": self.token}))
            else:
                extra = {"config": options.to_wire(self._config), **self._opening()}
                with self._progress():
                    await self._begin(context, extra)
        except BaseException:
            connection.peer.notify("forget", {"session": session})
            self._leave()
            raise

    async def _connect(self) -> DaemonConnection:
        return await connections.shared(daemon_socket())

    def _sibling(self) -> DaemonClientSandbox:
        return DaemonClientSandbox(self._config)

    def _opening(self) -> dict[str, Any]:
        """Return what a request for a session says besides the configuration."""
        return {"keep": self._keep}

    def _progress(self) -> AbstractContextManager[object]:
        """Show that the daemon builds packages by name, if that takes a while."""
        if not self._config.packages:
            return nullcontext()
        progress = Progress(f"atoll: packages {', '.join(self._config.packages)[:60]}")
        progress.say("the daemon gets them")
        return progress

    async def _run_cell(self, params: dict[str, Any], key: str | None) -> SandboxResult:
        return results.from_wire(*await self._run("execute", {**params, "key": key}))

    async def _run_command(self, params: dict[str, Any]) -> ExecuteResponse:
        return results.response_from_wire(*await self._run("shell", params))

    async def _send_tools(self, described: list[Any]) -> None:
        await self._call("tools", {"tools": described})

    async def validate_code(self, code: str) -> bool:
        """Return whether the code compiles in the guest's Python, without running it."""
        return await self.find_fault(code) is None

    async def find_fault(self, code: str) -> CodeFault | None:
        """Return why the code does not compile in the guest's Python; None if it does."""
        check_code(code)
        answer = answers.mapping((await self._call("validate", {"code": code})).value)
        answers.field(answer, "valid", bool)
        return CodeFault.of(answer)

    async def ask_variable(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the session's guest about a variable; its answer is not checked yet."""
        turns.refuse_own_tool(self)
        try:
            answer = (await self._call(method, dict(params))).value
        except RequestTooLargeError as exc:
            raise variables.cannot_set(str(params.get("name")), str(exc)) from None
        return answer if isinstance(answer, dict) else {}

    async def cancel(self) -> None:
        """Interrupt the running cell; one that will not be interrupted is killed."""
        if self._connection is not None and self._session and not self._connection.peer.ended:
            await self._call("cancel", {})

    @turns.not_in_own_tool
    async def fork(self) -> DaemonClientSandbox:
        """Return a live clone, on the same connection."""
        twin = self._sibling()
        await self._fork_into(twin)
        return twin

    async def _fork_into(self, twin: DaemonClientSandbox) -> None:
        """Make `twin`, which was never started, a live clone."""
        connection = self._opened()
        twin._connection, twin._session = connection, connection.hold()
        twin._context = self._context
        try:
            twin._adopt(await self._call("fork", {"twin": twin._session}))
        except BaseException:
            connection.peer.notify("forget", {"session": twin._session})
            twin._leave()
            raise

    @turns.not_in_own_tool
    async def checkpoint(self) -> str:
        """Keep the session's present state, and return the mark to roll back to."""
        return answers.field((await self._call("checkpoint", {})).value, "mark", str)

    @turns.not_in_own_tool
    async def rollback(self, mark: str) -> None:
        """Restore the session to the checkpoint; the checkpoint stays usable."""
        await self._call("rollback", {"mark": mark})

    @turns.not_in_own_tool
    async def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        marks = answers.field((await self._call("branches", {})).value, "marks", list)
        return tuple(map(str, marks))

    @turns.not_in_own_tool
    async def save(self) -> bytes:
        """Return variables and files as bytes."""
        answer = await self._call("save", {})
        return await asyncio.to_thread(blobs.read, answer.passed_fds.take())

    @cached_property
    def files(self) -> Files:
        """The guest's files, by descriptors that the daemon hands over: also while a cell runs."""
        return FolderFiles(self._folders, self.policy.file_size_bytes).reach_by(self.shell)

    async def _folders(self, changing: bool) -> dict[str, int]:  # noqa: FBT001 - as it is called
        answer = await self._call("folders", {"changing": changing})
        try:
            names = set(map(str, answers.field(answer.value, "names", list)))
            if len(names) != len(answer.passed_fds):
                raise SandboxError("the daemon named other folders than it opened")
            return {str(name): answer.passed_fds.take() for name in answer.value["names"]}
        finally:
            answer.passed_fds.close()

    async def destroy(self) -> None:
        """End the session and everything that it started."""
        self._destroyed = True
        connection, session = self._connection, self._session
        if connection is None or not session:
            return
        self._session = ""  # whoever calls from now on finds it closed
        try:
            await connection.call("destroy", {"session": session})
        except SandboxError:
            pass  # it has ended already, or the daemon has
        finally:
            self._session = session
            self._leave()

    async def detach(self) -> None:
        """Close the connection to a kept session; its token attaches to it again."""
        self._leave()

    async def _begin(self, context: Any, extra: dict[str, Any]) -> None:
        """Ask for a session with `context`, which is passed as a memory file if it is large."""
        shared = await _share(context)
        params, fds = dict(extra), list[int]()
        if shared is not None:
            params["context"] = shared.describe()
            fds.append(os.dup(shared.fd))
        elif context is not None:
            params["context"] = {"value": values.encode(context)}
        if extra and self._config.state is not None:
            params["state"] = True
            fds.append(blobs.write(self._config.state))
        self._context = context if shared is None else shared
        self._adopt(await self._call("initialize", params, fds))

    def _adopt(self, answer: Reply) -> None:
        assert self._connection is not None
        self._level = Isolation.parse(answers.field(answer.value, "isolation", str))
        self._check_level(self._level)
        self.context_is_shared = answers.field(answer.value, "context_shared", bool)
        self.token = answer.value.get("token", self.token)
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
        super()._require_open()
        if self._connection is None or not self._session:
            raise SandboxClosedError(NOT_STARTED)
        return self._connection

    async def _call(
        self, method: str, params: dict[str, Any], fds: list[int] | None = None
    ) -> Reply:
        connection = self._opened()
        try:
            return await connection.call(method, {**params, "session": self._session}, fds)
        except rpc.MessageTooLargeError as exc:
            raise RequestTooLargeError(str(exc)) from None

    async def _run(self, method: str, params: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Run code; return what the daemon answers, and the text that came beside the message.

        Its calls find the context variables of this caller by the execution's name.
        """
        self._opened()
        assert self._bridge is not None
        execution = secrets.token_hex(8)
        callers = self._bridge.callers
        callers[execution] = copy_context()
        try:
            answer = await self._call(method, {**params, "execution": execution})
        finally:
            del callers[execution]
        beside = blobs.read(answer.passed_fds.take()) if answer.passed_fds else b""
        return answers.field(answer.value, "result", dict), beside

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
    """A memory file for what is large; in a thread only if that takes time."""
    if context is None or isinstance(context, contexts.Context):
        return context
    if isinstance(context, str) and len(context) <= contexts.INLINE_LIMIT:
        return None
    return await asyncio.to_thread(contexts.share, context)
