"""Handlers of E2B's code interpreter: cells, streamed, and code contexts.

A context besides the default one is a namespace in the session's process: it has variables and a
working folder of its own, and shares everything else. Cells run one at a time.
"""

from __future__ import annotations

import base64
import json
import time
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from atoll.sandbox.base import check_code
from atoll.service.dialects.e2b.paths import HOME, absolute
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse, as_json, nothing
from atoll.service.ids import new_id
from atoll.types import stderr_with_error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.core.executions import Event, Execution
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import Call
    from atoll.types import Display

DEFAULT = "default"
MOST_CONTEXTS = 64
_NAMES = {
    "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "text/latex": "latex",
    "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
    "application/json": "json", "application/javascript": "javascript",
}  # fmt: skip
_BINARY = ("png", "jpeg", "pdf")
_TRACE = "Traceback (most recent call last):"
_KINDS = {
    "timeout": "TimeoutError", "cpu": "TimeoutError", "fuel": "TimeoutError",
    "memory": "MemoryError", "cancelled": "KeyboardInterrupt", "exited": "SystemExit",
    "crashed": "SandboxLost", "broken": "SandboxLost",
}  # fmt: skip


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


async def health(call: Call) -> Response:
    """Say that the sandbox runs."""
    call.service.e2b.sandbox(call)
    return nothing()


async def execute(call: Call) -> Response:
    """Run a cell, and stream its output, results and error, one JSON object a line."""
    given, hosted = await call.json(Cell), call.service.e2b.sandbox(call)
    if given.context_id and given.language:
        raise Problem(400, "invalid", "name a context or a language, not both")
    verb = "shell" if given.language in ("bash", "sh") else "execute"
    if verb == "execute" and given.language not in (None, "python", "python3"):
        raise Problem(400, "invalid", f"the language {given.language!r:.40} is not served")
    check_code(given.code)
    text = given.code if verb == "shell" else _cell(call, hosted, given)
    service = call.service
    execution = service.executions.new(call.principal, hosted.id)
    hosted.history.add(execution, verb, given.code)
    options: dict[str, Any] = {"env": given.env_vars or {}} if verb == "shell" else {}
    service.begin(
        execution,
        service.run_in_session(execution, hosted, text, verb=verb, timeout_ms=None, **options),
        call.held,
    )
    lines = _lines(execution, hosted, service.settings.keepalive_seconds)
    return EventResponse(call, lines, lambda: service.spawn(execution.cancel()))


async def list_contexts(call: Call) -> Response:
    """List the code contexts of a sandbox."""
    hosted = call.service.e2b.sandbox(call)
    own = call.service.e2b.facts(hosted).contexts
    return as_json([_context(DEFAULT, HOME), *(_context(*one) for one in own.items())])


async def create_context(call: Call) -> Response:
    """Make a code context."""
    given, hosted = await call.json(NewContext), call.service.e2b.sandbox(call)
    if given.language not in (None, "python", "python3"):
        raise Problem(400, "invalid", f"the language {given.language!r:.40} has no contexts")
    own = call.service.e2b.facts(hosted).contexts
    if len(own) >= MOST_CONTEXTS:
        raise Problem(429, "rate_limited", f"a sandbox has at most {MOST_CONTEXTS} contexts")
    ident = new_id("ctx")
    own[ident] = absolute(given.cwd or HOME)
    return as_json(_context(ident, own[ident]))


async def restart_context(call: Call) -> Response:
    """Throw a context's variables away; files, and other contexts, stay."""
    hosted, ident = _known(call)
    if ident != DEFAULT:
        await _quietly(hosted, f"globals().get('_e2b_contexts', {{}}).pop({ident!r}, None)")
        return nothing()
    async with hosted.session.in_turn() as box:
        names = [one.name for one in await box.variables()]
        await box.execute(f"for _one in {names!r}: globals().pop(_one, None)\ndel _one")
    return nothing()


async def remove_context(call: Call) -> Response:
    """Delete a context; the default one cannot be."""
    hosted, ident = _known(call)
    if ident == DEFAULT:
        raise Problem(400, "invalid", "the default context cannot be removed")
    del call.service.e2b.facts(hosted).contexts[ident]
    await _quietly(hosted, f"globals().get('_e2b_contexts', {{}}).pop({ident!r}, None)")
    return nothing()


def refuse(problem: Problem, _request_id: str) -> Response:
    """Return an error as the interpreter's client shows it: plain text."""
    status = 502 if problem.status == 410 else problem.status
    return Response(problem.detail, status, media_type="text/plain")


async def _quietly(hosted: HostedSession, code: str) -> None:
    async with hosted.session.in_turn() as box:
        await box.execute(f"{code};")


def _known(call: Call) -> tuple[HostedSession, str]:
    hosted, ident = call.service.e2b.sandbox(call), call.path["context"]
    if ident != DEFAULT and ident not in call.service.e2b.facts(hosted).contexts:
        raise Problem(404, "not_found", f"Context {ident[:60]} not found")
    return hosted, ident


def _context(ident: str, cwd: str) -> dict[str, str]:
    return {"id": ident, "language": "python", "cwd": cwd}


def _cell(call: Call, hosted: HostedSession, given: Cell) -> str:
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
        told: list[dict[str, Any]] = []
        for _, kind, line in events:
            found = json.loads(line)
            if kind in ("stdout", "stderr"):
                told.append(_printed(kind, found["text"]))
            elif kind == "keepalive":
                told.append({"type": "keepalive"})
            elif kind == "dropped":
                text = f"[{found['events']} pieces of output were dropped: read faster]\n"
                told.append(_printed("stderr", text))
            elif kind in ("result", "fault"):
                told += _end(found, execution, hosted)
        if told:
            yield [(0, one["type"], encode(one)) for one in told]


def _printed(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "text": text, "timestamp": time.time_ns()}


def _end(
    found: dict[str, Any], execution: Execution, hosted: HostedSession
) -> list[dict[str, Any]]:
    count: dict[str, Any] = {"type": "number_of_executions", "execution_count": hosted.executions}
    last: list[dict[str, Any]] = [count, {"type": "end_of_execution"}]
    if found["type"] == "fault":
        problem = found["problem"]
        name, text = problem.get("class") or problem["code"], problem["detail"]
        return [_failed(name, text, text), *last]
    result = found["result"]
    if result["kind"] == "shell":
        return [*_of_shell(result), *last]
    told = [_shown(one) for one in execution.displays]
    if result["value_repr"] is not None:
        text = result["value_repr"]
        text = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
        told.append({"type": "result", "text": text, "is_main_result": True})
    if not result["success"]:
        told.append(_fault_of(result))
    return [*told, *last]


def _of_shell(result: dict[str, Any]) -> list[dict[str, Any]]:
    if not result["exit_code"] and not result["error"]:
        return []
    text = result["error"] or f"exit status {result['exit_code']}"
    return [_failed("CommandError", text, text)]


def _fault_of(result: dict[str, Any]) -> dict[str, Any]:
    name = result["error_type"] or _KINDS.get(result["kind"], "Error")
    text = result["error"] or result["kind"]
    _, begun, trace = result["stderr"].rpartition(_TRACE)
    shown = stderr_with_error(begun + trace if begun else "", text, result["kind"])
    return _failed(name, text.removeprefix(f"{name}: "), shown)


def _failed(name: str, value: str, trace: str) -> dict[str, Any]:
    return {"type": "error", "name": name, "value": value, "traceback": trace}


def _shown(display: Display) -> dict[str, Any]:
    name = _NAMES.get(display.media_type, "extra")
    found: Any = display.data.decode("utf-8", "replace") if name not in _BINARY else None
    if name in _BINARY:
        found = base64.b64encode(display.data).decode()
    elif name == "json":
        try:
            found = json.loads(display.data)
        except (ValueError, RecursionError):
            name = "text"
    elif name == "extra":
        found = {display.media_type: base64.b64encode(display.data).decode()}
    return {"type": "result", name: found, "is_main_result": False}
