"""RemoteSandbox: a session of `atoll serve`, used as if it were here."""

from __future__ import annotations

import asyncio
import contextlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from urllib.parse import quote

from atoll.backends._client_sandbox import ClientSandbox
from atoll.backends.remote import connection as connections
from atoll.backends.remote import processes
from atoll.backends.remote.connection import encode
from atoll.backends.remote.exchange import (
    Listener,
    RemoteFiles,
    listing_of,
    new_session,
    response_of,
    result_of,
)
from atoll.concurrency.background import Background
from atoll.config import SandboxConfig
from atoll.errors import (
    AtollError,
    BackendUnavailableError,
    ConfigError,
    SandboxClosedError,
    SandboxLostError,
    UnsupportedError,
)
from atoll.guest.shared import values
from atoll.policy import Capability, Isolation
from atoll.sandbox import context as contexts
from atoll.sandbox import guard, turns, verbs
from atoll.sandbox.availability import Availability
from atoll.sandbox.base import NOT_STARTED, PREVIEW_SECONDS, check_port
from atoll.sandbox.bridge import CallFailedError, HostBridge
from atoll.sandbox.wire import answers
from atoll.types import CodeFault, Preview

if TYPE_CHECKING:
    from atoll.backends.remote.connection import RemoteConnection
    from atoll.backends.remote.exchange import Json
    from atoll.backends.remote.uploads import Upload
    from atoll.files.base import Files
    from atoll.network import NetworkPolicy
    from atoll.sandbox.wire.answers import GuestAnswer

R = TypeVar("R")


class RemoteSandbox(ClientSandbox):
    """A sandbox of the service at `url`. With `session`, initialize() attaches to that one."""

    backend: ClassVar[str] = "remote"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {
        Capability.FOLDERS,
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
        self._relays = Background()

    @classmethod
    async def availability(cls, config: SandboxConfig) -> Availability:
        """Whether a service answers, and how strong its sandboxes are."""
        try:
            connection = connections.take(config)
        except AtollError as exc:
            return _missing(exc)
        try:
            url = f"{connection.url.rstrip('/')}/health/detailed"
            answer = await connection.call("GET", url, timeout=10)
            level = Isolation.parse(answer["sandbox"]["isolation"])
        except (AtollError, LookupError, TypeError) as exc:
            return _missing(exc)
        finally:
            await connections.release(connection)
        limits = {"all": "as in the backend that the service uses"}
        details = {"url": connection.url, "version": str(answer.get("version"))}
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

    async def _send(self, request: verbs.Request[R]) -> R:
        """Ask the service by HTTP, where a verb is a route."""
        connection, path = self._opened()
        call, result = connection.call, cast("Any", None)
        asked = cast("verbs.Request[Any]", request)
        match asked:
            case verbs.CodeRequest():
                result = await self._stream(asked)
            case verbs.Validate(code=code):
                answer = await call("POST", f"{path}/validate", {"code": code})
                answers.field(answer, "valid", bool)
                result = CodeFault.of(answer)
            case verbs.ListVariables(hidden=hidden):
                rows = await call("GET", f"{path}/variables{'?hidden=1' if hidden else ''}")
                result = listing_of(rows)
            case verbs.VariableRequest():
                result = await self._variable(asked)
            case verbs.SetTools(tools=tools):
                await call("PUT", f"{path}/tools", {"tools": tools})
            case verbs.Cancel():
                await call("POST", f"{path}/cancel")
            case verbs.ListPorts():
                listed = answers.field(await call("GET", f"{path}/ports"), "items", list)
                pairs = [[row.get("port"), row.get("address")] for row in listed]
                result = answers.read_ports(pairs)
            case verbs.Connect(port=port):
                result, relay = await connection.connect(f"{path}/ports/{port}/connect")
                self._relays.spawn(relay)
            case verbs.Rollback(mark=mark):
                await call("POST", f"{path}/rollback", {"mark": mark})
            case _:
                result = await self._state(asked)
        return cast("R", result)

    async def _state(self, request: verbs.Request[Any]) -> Any:
        """Ask for checkpoints and states, which are resources of the service."""
        connection, path = self._opened()
        if isinstance(request, verbs.Checkpoint):
            made = await connection.call("POST", f"{path}/checkpoints", {})
            return answers.field(made, "id", str)
        if isinstance(request, verbs.Branches):
            listed = await connection.call("GET", f"{path}/checkpoints")
            marks = answers.field(listed, "marks", list)
            return tuple(answers.field(mark, "id", str) for mark in marks)
        if isinstance(request, verbs.Commit):
            made = await connection.call("POST", f"{path}/commit", request.params())
            return answers.read_committed(made)
        if not isinstance(request, verbs.Save):
            raise UnsupportedError(self.backend, request.verb)
        state = answers.field(await connection.call("POST", f"{path}/save"), "id", str)
        blob = await connection.download(f"/states/{state}")
        await connection.call("DELETE", f"/states/{state}")  # the service keeps no copy
        return blob

    async def _variable(self, request: verbs.VariableRequest) -> GuestAnswer:
        """Ask about one variable; return the answer as a guest gives it."""
        connection, path = self._opened()
        params = request.params()
        name = quote(str(params["name"]), safe="", errors="surrogatepass")
        where = f"{path}/variables/{name}"
        if isinstance(request, verbs.SetVariable):
            await connection.call("PUT", where, {"value": request.value})
            return {"set": True}
        exists = isinstance(request, verbs.HasVariable)
        query = "exists=1" if exists else f"plain={int(params.get('plain', False))}"
        try:
            answer = await connection.call("GET", f"{where}?{query}")
        except SandboxClosedError as exc:
            if (vars(exc).get("problem") or {}).get("code") == "no_variable":
                return {"found": False}
            raise
        return {"found": True, **answers.mapping(answer)}

    async def ask_process(self, request: verbs.ProcessRequest[R]) -> R:
        """Ask the service about processes, which are resources of the session."""
        answer: R = await processes.ask(*self._opened(), request)
        return answer

    def _is_open(self) -> bool:
        return self._connection is not None and self.session is not None and not self._destroyed

    async def fork(self) -> RemoteSandbox:
        """Return a live clone."""
        turns.refuse_own_tool(self)
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

    async def expose(
        self, port: int, *, seconds: float = PREVIEW_SECONDS, public: bool = False
    ) -> Preview:
        """Show a server in the session to browsers; return the link, signed unless it is public.

        UnsupportedError if the service shows no previews.
        """
        connection, path = self._opened()
        body = {"seconds": seconds, "public": public}
        made = await connection.call("POST", f"{path}/ports/{check_port(port)}/expose", body)
        token, expires = made.get("token"), made.get("expires_at")
        return Preview(url=answers.field(made, "url", str), token=token, expires_at=expires)

    @cached_property
    def files(self) -> Files:
        """The session's files; usable while a cell runs."""
        return RemoteFiles(self._opened).reach_by(self.shell)

    async def destroy(self) -> None:
        """End the session and everything that it started."""
        self._destroyed = True
        await self._close_forwards()
        self._relays.cancel()
        await self._relays.wait()
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

    async def _create(self, connection: RemoteConnection, context: Any) -> Json:
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

    def _adopt(self, described: Json) -> None:
        """Take over what the service says of the session."""
        self.session = answers.field(described, "id", str)
        self._level = Isolation.parse(answers.field(described, "isolation", str))
        self._check_level(self._level)
        self.context_is_shared = answers.field(described, "context_shared", bool)
        self._bridge = self._bridge or HostBridge(self._config, self._context_value)

    async def _stream(self, request: verbs.CodeRequest[Any]) -> Any:
        """Start an execution, hear its events, answer its calls; return its result."""
        connection, path = self._opened()
        is_shell = isinstance(request, verbs.Shell)
        body, where = request.params(), "shell" if is_shell else "executions"
        key, listener = body.pop("key", None), Listener(self._config, shell=is_shell)
        calls = Background()
        execution = ""
        connection.users += 1  # it stays open meanwhile, also if the sandbox is destroyed
        try:
            events = connection.events(f"{path}/{where}", body, key)
            async with contextlib.aclosing(events) as stream:
                async for event in stream:
                    kind = event.get("type")
                    if kind == "accepted":
                        execution = answers.field(event, "execution", str)
                    elif kind == "tool_call":
                        calls.spawn(self._answer(connection, execution, event))
                    elif kind == "result":
                        listener.finish()
                        answer = answers.field(event, "result", dict)
                        if is_shell:
                            return response_of(answer)
                        return await result_of(connection, answer)
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
            calls.cancel()
            await connections.release(connection)
        raise SandboxLostError("the service ended the stream of events before the result")

    async def _answer(self, connection: RemoteConnection, execution: str, call: Json) -> None:
        """Run a tool that the guest calls, and send its answer."""
        assert self._bridge is not None
        answer: Json = {"id": call.get("id")}
        try:
            answer["value"] = await self._bridge.handle("host.call", call)
        except CallFailedError as exc:
            answer.update(error=str(exc), raised=exc.data)
        with contextlib.suppress(AtollError):  # the cell has ended meanwhile
            await connection.call("POST", f"/executions/{execution}/tool_results", [answer])

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
    """Raise ConfigError for options that the service refuses: it decides by its own list."""
    if policy is not None and (policy.private or policy.on_request is not None):
        raise ConfigError(
            "a remote sandbox reaches the hosts that its service allows: leave `private` and "
            "`on_request` out"
        )
