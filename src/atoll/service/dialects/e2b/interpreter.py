"""Handlers of E2B's code interpreter: cells, streamed, and code contexts.

A context besides the default one is a namespace in the session's process: it has variables and a
working folder of its own, and shares everything else. Cells run one at a time.
"""

from __future__ import annotations

import json
import time
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from atoll.sandbox.base import check_code
from atoll.service.core.work import CellRequest, RunResult, ShellRequest, ShellResult
from atoll.service.dialects.e2b.filing import HOME, absolute
from atoll.service.dialects.jupyter.cell_messages import CellResult
from atoll.service.http.problems import Problem, ProblemInfo, encode
from atoll.service.http.requests import EventResponse
from atoll.service.ids import new_id
from atoll.types import stderr_with_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from atoll.sandbox.command import CommandOptions
    from atoll.service.core.executions import Execution
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.core.work import SessionRequest
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event
    from atoll.types import Display

DEFAULT = "default"
MAX_CONTEXTS = 64
_NAMES = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "text/latex": "latex",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "application/json": "json",
    "application/javascript": "javascript",
}
_TRACE = "Traceback (most recent call last):"
_KINDS = {
    "timeout": "TimeoutError",
    "cpu": "TimeoutError",
    "fuel": "TimeoutError",
    "memory": "MemoryError",
    "cancelled": "KeyboardInterrupt",
    "exited": "SystemExit",
    "crashed": "SandboxLost",
    "broken": "SandboxLost",
}
_PYTHON = (None, "python", "python3")
Line = dict[str, Any]
"""One JSON object of the interpreter's stream."""


class Cell(msgspec.Struct, kw_only=True):
    """POST /execute."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class NewContext(msgspec.Struct, kw_only=True):
    """POST /contexts."""

    language: str | None = None
    cwd: str | None = None


class ContextInfo(msgspec.Struct):
    """A code context."""

    id: str
    cwd: str
    language: str = "python"


async def health(call: ApiRequest) -> None:
    """Say that the sandbox runs."""
    call.service.e2b.sandbox(call)


async def execute(call: ApiRequest) -> EventResponse:
    """Run a cell, and stream its output, results and error, one JSON object a line."""
    given, hosted = await call.json(Cell), call.service.e2b.sandbox(call)
    if given.context_id and given.language:
        raise Problem(400, "invalid", "name a context or a language, not both")
    request: SessionRequest
    check_code(given.code)
    if given.language in ("bash", "sh"):
        options: CommandOptions = {"env": given.env_vars or {}}
        request = ShellRequest(hosted=hosted, text=given.code, command=given.code, options=options)
    elif given.language in _PYTHON:
        request = CellRequest(hosted=hosted, text=given.code, code=_cell(call, hosted, given))
    else:
        raise Problem(400, "invalid", f"the language {given.language!r:.40} is not served")
    service = call.service
    execution = service.start(call.principal, request, inputs=call.held)
    lines = _lines(execution, hosted, service.settings.keepalive_seconds)
    return EventResponse(call, lines, lambda: service.spawn(execution.cancel()))


async def list_contexts(call: ApiRequest) -> list[ContextInfo]:
    """List the code contexts of a sandbox."""
    hosted = call.service.e2b.sandbox(call)
    own = {DEFAULT: HOME, **call.service.e2b.facts(hosted).contexts}
    return [ContextInfo(ident, cwd) for ident, cwd in own.items()]


async def create_context(call: ApiRequest) -> ContextInfo:
    """Make a code context."""
    given, hosted = await call.json(NewContext), call.service.e2b.sandbox(call)
    if given.language not in _PYTHON:
        raise Problem(400, "invalid", f"the language {given.language!r:.40} has no contexts")
    own = call.service.e2b.facts(hosted).contexts
    if len(own) >= MAX_CONTEXTS:
        raise Problem(429, "rate_limited", f"a sandbox has at most {MAX_CONTEXTS} contexts")
    ident = new_id("ctx")
    own[ident] = absolute(given.cwd or HOME)
    return ContextInfo(ident, own[ident])


async def restart_context(call: ApiRequest) -> None:
    """Throw a context's variables away; files, and other contexts, stay."""
    hosted, ident = _known(call)
    if ident != DEFAULT:
        await _forget(hosted, ident)
        return
    async with hosted.session as box:
        names = [variable.name for variable in await box.variables()]
        await box.execute(f"for _one in {names!r}: globals().pop(_one, None)\ndel _one")


async def remove_context(call: ApiRequest) -> None:
    """Delete a context; the default one cannot be."""
    hosted, ident = _known(call)
    if ident == DEFAULT:
        raise Problem(400, "invalid", "the default context cannot be removed")
    del call.service.e2b.facts(hosted).contexts[ident]
    await _forget(hosted, ident)


def refuse(problem: Problem, _request_id: str) -> Response:
    """Return an error as the interpreter's client shows it: plain text."""
    status = 502 if problem.status == 410 else problem.status
    return Response(problem.detail, status, media_type="text/plain")


async def _forget(hosted: HostedSession, ident: str) -> None:
    """Delete the variables of a context."""
    async with hosted.session as box:
        await box.execute(f"globals().get('_e2b_contexts', {{}}).pop({ident!r}, None);")


def _known(call: ApiRequest) -> tuple[HostedSession, str]:
    hosted, ident = call.service.e2b.sandbox(call), call.path["context"]
    if ident != DEFAULT and ident not in call.service.e2b.facts(hosted).contexts:
        raise Problem(404, "not_found", f"Context {ident[:60]} not found")
    return hosted, ident


def _cell(call: ApiRequest, hosted: HostedSession, given: Cell) -> str:
    """Return the code for the session: as it is, or wrapped so that it runs in a context."""
    ident = given.context_id if given.context_id != DEFAULT else None
    contexts = call.service.e2b.facts(hosted).contexts
    if ident is not None and ident not in contexts:
        raise Problem(404, "not_found", f"Context {ident[:60]} not found")
    if ident is None and not given.env_vars:
        return given.code
    source = resources.files("atoll.service.dialects.e2b").joinpath("context_cell.py").read_text()
    arguments = (ident, given.code, given.env_vars or {}, contexts.get(ident or ""))
    words = ", ".join(map(repr, arguments))
    return f"(lambda s: (exec({source!r}, s), s['run'](globals(), {words}))[1])({{}})"


async def _lines(
    execution: Execution, hosted: HostedSession, pause: float
) -> AsyncIterator[list[Event]]:
    """Yield an execution's events as the interpreter's client reads them."""
    async for events in execution.events(0, pause):
        lines: list[Line] = []
        for _, kind, line in events:
            if kind in ("stdout", "stderr"):
                lines.append(_printed(kind, json.loads(line)["text"]))
            elif kind == "keepalive":
                lines.append({"type": "keepalive"})
            elif kind == "dropped":
                missing = json.loads(line)["events"]
                text = f"[{missing} pieces of output were dropped: read faster]\n"
                lines.append(_printed("stderr", text))
            elif kind in ("result", "fault"):
                if hosted.over and not getattr(execution.outcome(), "success", False):
                    # The SDK takes a broken stream of a sandbox that is gone for a kill.
                    raise ConnectionAbortedError
                lines += _end(execution)
                count = hosted.facts.executions
                lines.append({"type": "number_of_executions", "execution_count": count})
                lines.append({"type": "end_of_execution"})
        if lines:
            yield [(0, line["type"], encode(line)) for line in lines]


def _printed(kind: str, text: str) -> Line:
    return {"type": kind, "text": text, "timestamp": time.time_ns()}


def _end(execution: Execution) -> list[Line]:
    """Return what an execution shows at its end: displays, its value, its error."""
    ended = execution.outcome()
    if isinstance(ended, ProblemInfo):
        name = ended.error_class or ended.code
        return [_failed(name, ended.detail, ended.detail)]
    if isinstance(ended, ShellResult):
        if not ended.exit_code and not ended.error:
            return []
        text = ended.error or f"exit status {ended.exit_code}"
        return [_failed("CommandError", text, text)]
    lines = _results(ended, execution.displays)
    return lines if ended.success else [*lines, _fault_of(ended)]


def _results(ended: RunResult, displays: Sequence[Display]) -> list[Line]:
    """Return the displays, and as the last the value with all its forms."""
    cell = CellResult(
        success=ended.success,
        kind=ended.kind,
        error_type=ended.error_type,
        error=ended.error,
        value_repr=ended.value_repr,
        is_scalar=isinstance(ended.value, str | int | float),
        displays=displays,
    )
    lines: list[Line] = []
    for kind, content in cell.messages(0):
        line: Line = {"type": "result", "is_main_result": kind == "execute_result"}
        for media_type, shown in content["data"].items():
            line |= _form(media_type, shown)
        if "dataframe" in line.get("html", "") and isinstance(ended.value, dict):
            line["data"] = ended.value
        if line.get("text", "").startswith("<PIL.") and lines and "png" in lines[-1]:
            line["png"] = lines.pop()["png"]  # the image that is the value
        lines.append(line)
    return lines


def _fault_of(result: RunResult) -> Line:
    name = result.error_type or _KINDS.get(result.kind, "Error")
    text = result.error or result.kind
    _, begun, trace = result.stderr.rpartition(_TRACE)
    shown = stderr_with_error(begun + trace if begun else "", text, result.kind)
    return _failed(name, text.removeprefix(f"{name}: "), shown)


def _failed(name: str, value: str, trace: str) -> Line:
    return {"type": "error", "name": name, "value": value, "traceback": trace}


def _form(media_type: str, shown: str) -> Line:
    """Return one form of a value under the name that the client knows it by."""
    name = _NAMES.get(media_type, "extra")
    if name == "json":
        try:
            return {"json": json.loads(shown)}
        except (ValueError, RecursionError):
            return {"text": shown}
    if name == "text" and len(shown) > 1 and shown[0] == shown[-1] and shown[0] in "'\"":
        shown = shown[1:-1]
    return {name: {media_type: shown} if name == "extra" else shown}
