"""RemoteSandbox: a session of `atoll serve`, used as if it were here."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from atoll.backends._client_sandbox import ClientSandbox
from atoll.backends.remote import connection as connections
from atoll.backends.remote import results
from atoll.backends.remote.connection import encode
from atoll.backends.remote.exchange import Listener, new_session
from atoll.backends.remote.files import RemoteFiles
from atoll.config import SandboxConfig
from atoll.errors import (
    AtollError,
    BackendUnavailableError,
    ConfigError,
    SandboxClosedError,
    SandboxLostError,
)
from atoll.guest.shared import values
from atoll.policy import Capability, Isolation
from atoll.sandbox import context as contexts
from atoll.sandbox import guard, turns
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import NOT_STARTED, check_code
from atoll.sandbox.bridge import CallFailedError, HostBridge
from atoll.sandbox.wire import answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from atoll.backends.remote.connection import RemoteConnection
    from atoll.backends.remote.uploads import Upload
    from atoll.files.base import Files
    from atoll.network import NetworkPolicy
    from atoll.types import ExecuteResponse, SandboxResult


class RemoteSandbox(ClientSandbox):
    """A sandbox of the service at `url`. With `session`, initialize() attaches to that one."""

    backend: ClassVar[str] = "remote"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.HOST_FOLDER,
        Capability.INTERPRETER,
        Capability.NETWORK,
        Capability.FETCH,
    }

    def __init__(self, config: SandboxConfig | None = None, *, session: str | None = None) -> None:
        super().__init__(config or SandboxConfig(backend="remote"))
        _check_network(self._config.network)
        if self._config.workspace is not None or self._config.policy.mounts:
            raise ConfigError("a remote sandbox sees no folders of this machine: upload files")
        if self._config.python is not None:
            raise ConfigError("a remote sandbox has the service's Python: leave `python` out")
        self.session = session
        self._attach = session is not None
        self._connection: RemoteConnection | None = None
        self._upload: Upload | None = None

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether a service answers, and how strong its sandboxes are."""
        try:
            connection = connections.take(config)
        except AtollError as exc:
            return _missing(exc)
        try:
            url = f"{connection.url.rstrip('/')}/health/detailed"
            found = await connection.call("GET", url, timeout=10)
            level = Isolation.parse(found["sandbox"]["isolation"])
        except (AtollError, LookupError, TypeError) as exc:
            return _missing(exc)
        finally:
            await connections.release(connection)
        limits = {"all": "as in the backend that the service uses"}
        details = {"url": connection.url, "version": str(found.get("version"))}
        return Availability(usable=True, isolation=level, limits=limits, details=details)

    async def initialize(self, context: Any = None) -> None:
        """Open a session with `context`, or attach to one. Again: start afresh."""
        guard.require(self._config.guard)
        if self._connection is not None and self.session is not None:
            connection, path = self._opened()
            before, self._upload = self._upload, None
            try:
                given = await self._send_context(connection, context)
                self._adopt(await connection.call("POST", f"{path}/restart", {"context": given}))
            except BaseException:
                before, self._upload = self._upload, before
                raise
            finally:
                await _drop(connection, before)
            return
        connection = self._connection = connections.take(self._config)
        self._destroyed = False
        try:
            if self._attach:
                self._adopt(await connection.call("GET", f"/sessions/{self.session}"))
            else:
                self._adopt(await self._create(connection, context))
        except BaseException:
            await self.destroy()
            raise

    async def _run_cell(self, params: dict[str, Any], key: str | None) -> SandboxResult:
        async with self._using() as connection:
            answer = await self._run("executions", params, key)
            return await results.result_of(connection, answer)

    async def _run_command(self, params: dict[str, Any]) -> ExecuteResponse:
        async with self._using():
            return results.response_of(await self._run("shell", params, None))

    async def _send_tools(self, described: list[Any]) -> None:
        await self._call("PUT", "/tools", {"tools": described})

    async def validate_code(self, code: str) -> bool:
        """Return whether the code compiles in the guest's Python, without running it."""
        check_code(code)
        return answers.field(await self._call("POST", "/validate", {"code": code}), "valid", bool)

    async def ask_variable(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the session's guest about a variable; its answer is not checked yet."""
        turns.refuse_own_tool(self)
        if method == "variables":
            query = "?hidden=1" if params.get("hidden") else ""
            return results.listing_of(await self._call("GET", f"/variables{query}"))
        name = quote(str(params["name"]), safe="", errors="surrogatepass")
        if method == "set_variable":
            await self._call("PUT", f"/variables/{name}", {"value": params["value"]})
            return {"set": True}
        query = "exists=1" if method == "has_variable" else f"plain={int(bool(params['plain']))}"
        try:
            answer = await self._call("GET", f"/variables/{name}?{query}")
        except SandboxClosedError as exc:
            if (vars(exc).get("problem") or {}).get("code") == "no_variable":
                return {"found": False}
            raise
        return {"found": True, **answers.mapping(answer)}

    async def cancel(self) -> None:
        """Interrupt the running cell; one that will not be interrupted is killed."""
        if self._connection is not None and self.session is not None and not self._destroyed:
            await self._call("POST", "/cancel")

    @turns.not_in_own_tool
    async def fork(self) -> RemoteSandbox:
        """Return a live clone."""
        connection, path = self._opened()
        made = await connection.call("POST", f"{path}/fork", {})
        described = answers.field(made[0] if type(made) is list and made else None, "session", dict)
        twin = RemoteSandbox(self._config)
        twin._connection, twin._context = connections.take(self._config), self._context
        if self._upload is not None:
            twin._upload = connection.uploads.share(self._upload)
        try:
            twin._adopt(described)
        except BaseException:
            await twin.destroy()
            raise
        return twin

    @turns.not_in_own_tool
    async def checkpoint(self) -> str:
        """Keep the session's present state, and return the mark to roll back to."""
        return answers.field(await self._call("POST", "/checkpoints", {}), "id", str)

    @turns.not_in_own_tool
    async def rollback(self, mark: str) -> None:
        """Restore the session to the checkpoint; the checkpoint stays usable."""
        await self._call("POST", "/rollback", {"mark": mark})

    @turns.not_in_own_tool
    async def branches(self) -> tuple[str, ...]:
        """Return the marks of the checkpoints that are kept, oldest first."""
        marks = answers.field(await self._call("GET", "/checkpoints"), "marks", list)
        return tuple(answers.field(one, "id", str) for one in marks)

    @turns.not_in_own_tool
    async def save(self) -> bytes:
        """Return variables and files as bytes; the service keeps no copy."""
        connection, path = self._opened()
        state = answers.field(await connection.call("POST", f"{path}/save"), "id", str)
        blob = (await connection.request("GET", f"/states/{state}")).content
        await connection.call("DELETE", f"/states/{state}")
        return bytes(blob)

    @cached_property
    def files(self) -> Files:
        """The session's files; usable while a cell runs."""
        return RemoteFiles(self._opened).reach_by(self.shell)

    async def destroy(self) -> None:
        """End the session and everything that it started."""
        self._destroyed = True
        connection, session = self._connection, self.session
        upload, self._upload, self._connection = self._upload, None, None
        if not self._attach:
            self.session = None
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        self._context = None
        if connection is None:
            return
        try:
            with contextlib.suppress(AtollError):  # it has ended already, or the service has
                if session is not None:
                    await connection.call("DELETE", f"/sessions/{session}")
            await _drop(connection, upload)
        finally:
            await connections.release(connection)

    async def _create(self, connection: RemoteConnection, context: Any) -> dict[str, Any]:
        given = await self._send_context(connection, context)
        body, state = {**new_session(self._config), "context": given}, self._config.state
        if state is None:
            return answers.mapping(await connection.call("POST", "/sessions", body))
        kept = answers.field(await connection.call("POST", "/states", content=state), "id", str)
        try:
            body["state"] = kept
            return answers.mapping(await connection.call("POST", "/sessions", body))
        finally:
            await connection.call("DELETE", f"/states/{kept}")

    async def _send_context(self, connection: RemoteConnection, context: Any) -> Any:
        """Return what a request says of the context; a large one is uploaded, once."""
        self._context = context
        if context is None:
            return None
        if isinstance(context, str) and len(context) <= contexts.INLINE_LIMIT:
            return {"text": context}
        shared = await asyncio.to_thread(contexts.share, context)
        if shared is None:
            return {"value": values.encode(context)}
        self._context = shared
        self._upload = await connection.uploads.hold(connection, shared)
        return {"id": self._upload.ident}

    def _adopt(self, described: dict[str, Any]) -> None:
        """Take over what the service says of the session."""
        self.session = answers.field(described, "id", str)
        self._level = Isolation.parse(answers.field(described, "isolation", str))
        self._check_level(self._level)
        self.context_is_shared = answers.field(described, "context_shared", bool)
        self._bridge = self._bridge or HostBridge(self._config, self._context_value)

    async def _run(self, where: str, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        """Start an execution, hear its events, answer its calls; return its result."""
        connection, path = self._opened()
        listener = Listener(self._config, shell=where == "shell")
        calls: set[asyncio.Task[None]] = set()
        execution = ""
        try:
            events = connection.events(f"{path}/{where}", body, key)
            async with contextlib.aclosing(events) as stream:
                async for event in stream:
                    kind = event.get("type")
                    if kind == "accepted":
                        execution = answers.field(event, "execution", str)
                    elif kind == "tool_call":
                        work = self._answer(connection, execution, event)
                        task = asyncio.ensure_future(work)
                        calls.add(task)
                        task.add_done_callback(calls.discard)
                    elif kind == "result":
                        listener.finish()
                        return answers.field(event, "result", dict)
                    elif kind == "fault":
                        problem = answers.field(event, "problem", dict)
                        status = answers.field(problem, "status", int)
                        raise connections.error_of(status, encode(problem))
                    else:
                        listener.hear(event)
        except ConfigError as exc:
            if (vars(exc).get("problem") or {}).get("code") == "key_reused":
                message = f"the key {key!r} was used with other code: use another key for it"
                raise ConfigError(message) from None
            raise
        finally:
            for task in list(calls):
                task.cancel()
        raise SandboxLostError("the service ended the stream of events before the result")

    async def _answer(
        self, connection: RemoteConnection, execution: str, call: dict[str, Any]
    ) -> None:
        """Run a tool that the guest calls, and send its answer."""
        assert self._bridge is not None
        answer: dict[str, Any] = {"id": call.get("id")}
        try:
            answer["value"] = await self._bridge.handle("host.call", call)
        except CallFailedError as exc:
            answer.update(error=str(exc), raised=exc.data)
        with contextlib.suppress(AtollError):  # the cell has ended meanwhile
            await connection.call("POST", f"/executions/{execution}/tool_results", [answer])

    @contextlib.asynccontextmanager
    async def _using(self) -> AsyncIterator[RemoteConnection]:
        """Keep the connection open meanwhile, also if the sandbox is destroyed."""
        connection, _ = self._opened()
        connection.users += 1
        try:
            yield connection
        finally:
            await connections.release(connection)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection, session = self._opened()
        return await connection.call(method, session + path, body)

    def _require_open(self) -> None:
        self._opened()

    def _opened(self) -> tuple[RemoteConnection, str]:
        """Return connection and path of the session; SandboxClosedError if it is not open."""
        super()._require_open()
        if self._connection is None or self.session is None:
            raise SandboxClosedError(NOT_STARTED)
        return self._connection, f"/sessions/{self.session}"


def _missing(exc: Exception) -> Availability:
    """Return that no service can be used, and what to do; an error of the backend says both."""
    if isinstance(exc, BackendUnavailableError):
        return Availability(usable=False, reason=exc.reason, hint=exc.hint or connections.HINT)
    return Availability(usable=False, reason=str(exc), hint=connections.HINT)


async def _drop(connection: RemoteConnection, upload: Upload | None) -> None:
    if upload is not None:
        await connection.uploads.drop(connection, upload)


def _check_network(policy: NetworkPolicy | None) -> None:
    """Raise ConfigError for what the service would not take: it decides by its own list."""
    if policy is not None and (policy.private or policy.on_request is not None):
        raise ConfigError(
            "a remote sandbox reaches the hosts that its service allows: leave `private` and "
            "`on_request` out"
        )
