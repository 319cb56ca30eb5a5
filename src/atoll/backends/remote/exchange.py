"""The service's JSON and the library's objects: a new session, the output of a cell, its result."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atoll.errors import AtollError, ConfigError, SandboxError
from atoll.files.base import Files
from atoll.policy import ExecutionPolicy
from atoll.sandbox import signatures
from atoll.sandbox.output import LineSplitter
from atoll.sandbox.result_fields import SHAPE_ERRORS
from atoll.sandbox.wire import results
from atoll.sandbox.wire.options import HANDLERS, LIMITS, SERVICE_NAMES
from atoll.types import Display, ExecuteResponse, SandboxResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.backends.remote.connection import RemoteConnection
    from atoll.config import SandboxConfig
    from atoll.network import NetworkPolicy
    from atoll.sandbox.wire.answers import GuestAnswer

    Opened = Callable[[], tuple[RemoteConnection, str]]


class RemoteFiles(Files):
    """Sends operations to the service; file contents travel as they are."""

    def __init__(self, opened: Opened) -> None:
        """`opened` returns connection and path of the session, or raises SandboxClosedError."""
        self._opened = opened

    async def _ask(self, operation: str, params: dict[str, Any]) -> dict[str, Any]:
        connection, session = self._opened()
        if operation not in ("upload", "download"):
            answer: dict[str, Any] = await connection.call(
                "POST", f"{session}/files/{operation}?raw=1", params
            )
            return answer
        path = quote(params["path"], safe="", errors="surrogateescape")
        where = f"{session}/files/content?path={path}"
        try:
            if operation == "upload":
                await connection.request("PUT", where, content=params["data"])
                return {}
            return {"data": await connection.download(where)}
        except AtollError as exc:
            problem = vars(exc).get("problem") or {}
            reason = str(problem.get("detail", ""))
            if "file_error" in problem:
                return {"error": problem["file_error"], "reason": reason}
            if isinstance(exc, ConfigError) and problem.get("code") == "too_large":
                return {"error": "too_large", "reason": reason}
            if reason.startswith("name the file"):
                return {"error": "invalid_path", "reason": reason}
            raise


Json = dict[str, Any]
"""An object of the service's JSON."""
_NOT_SENT = ("displays", "state", "workspace_path")
"""Fields of a result that a service does not send; displays are fetched by their addresses."""
_SENT = [field.name for field in fields(SandboxResult) if field.name not in _NOT_SENT]


class Listener:
    """Hands the output of one execution to the caller's functions; raises what they raise."""

    def __init__(self, config: SandboxConfig, *, shell: bool) -> None:
        on_stderr = None if shell else config.on_stderr
        self._lines = {
            name: LineSplitter(callback, config.max_output_length)
            for name, callback in (("stdout", config.on_stdout), ("stderr", on_stderr))
            if callback is not None
        }
        self._on_output: Callable[[str, str], None] | None = config.on_output
        self._failure: Exception | None = None

    def hear(self, event: Json) -> None:
        """Take an event."""
        kind = event.get("type")
        if kind not in ("stdout", "stderr"):
            return
        text = str(event.get("text"))
        if self._on_output is not None and self._failure is None:
            try:
                self._on_output(kind, text)
            except Exception as exc:  # noqa: BLE001 - a caller's callback; raised at the end
                self._failure = exc
        if kind in self._lines:
            self._lines[kind].feed(text.encode("utf-8", "surrogatepass"))

    def finish(self) -> None:
        """Hand over last lines that had no end; raise what a callback raised."""
        for splitter in self._lines.values():
            splitter.finish()
        if self._failure is not None:
            raise self._failure


def new_session(config: SandboxConfig) -> Json:
    """Return the body that opens a session, but for its context and its state."""
    policy, usual = config.policy, ExecutionPolicy()
    limits = {
        name: getattr(policy, name)
        for name in LIMITS
        if getattr(policy, name) != getattr(usual, name)
    }
    handlers = [name for name in HANDLERS if getattr(config, name) is not None]
    level = config.min_isolation
    return {
        **{given: getattr(config, name) for name, given in SERVICE_NAMES.items()},
        "network": None if config.network is None else _network_fields(config.network),
        "policy": limits,
        "env": dict(policy.env),
        "min_isolation": None if level is None else str(level),
        "tools": signatures.describe_all(config.tools),
        "callbacks": [name.removeprefix("on_") for name in handlers],
    }


def _network_fields(policy: NetworkPolicy) -> Json:
    return {name: value for name, value in policy.plain().items() if name != "private"}


async def result_of(connection: RemoteConnection, answer: Json) -> SandboxResult:
    """Return a result; its displays are fetched."""
    try:
        rows = [[file["path"], file["size"], file["media_type"]] for file in answer["artifacts"]]
        given = {"error_args": [], **answer, "artifacts": rows}
        result = results.read(SandboxResult, {name: given[name] for name in _SENT}, who="service")
        shown = [
            Display(
                media_type=str(display["media_type"]),
                data=await connection.download(display["url"].removeprefix("/api/v1")),
            )
            for display in answer["displays"]
        ]
        return replace(result, displays=tuple(shown))
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no result: {exc!r}"[:500]) from None


def response_of(answer: Json) -> ExecuteResponse:
    """Return the result of a shell command."""
    try:
        given = {"stderr": "", "network": None, **answer}
        plain = {field.name: given[field.name] for field in fields(ExecuteResponse)}
        return results.read(ExecuteResponse, plain, who="service")
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no result: {exc!r}"[:500]) from None


def listing_of(answer: Json) -> GuestAnswer:
    """Return a listing of variables as a guest writes it, to be checked like one."""
    try:
        names = ("name", "type", "size", "shape")
        rows = [[variable[name] for name in names] for variable in answer["variables"]]
    except SHAPE_ERRORS as exc:
        raise SandboxError(f"the service sent no listing: {exc!r}"[:500]) from None
    return {"variables": rows, "truncated": answer.get("truncated")}
