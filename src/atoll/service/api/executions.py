"""Handlers of executions: one-shot runs, cells and commands, their events, tools and cancels."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from starlette.responses import Response

from atoll.sandbox import command as commands
from atoll.sandbox.base import MAX_CODE_LENGTH, check_code
from atoll.service.core.work import (
    CellRequest,
    Request,
    RunRequest,
    RunResult,
    ShellRequest,
    ShellResult,
)
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import EventResponse, Json, until_gone
from atoll.service.storage.idempotency import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from atoll.service.core.executions import Execution
    from atoll.service.http.requests import ApiRequest
    from atoll.service.http.streams import Event
    from atoll.types import Display

_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+-]{1,64}\Z")


class Accepted(Struct):
    """An execution that goes on: ask for its result by its id."""

    id: str
    session: str | None
    kind: None = None


class CancelledExecution(Struct):
    """An execution that was asked to stop; its result says whether it did."""

    id: str
    done: bool


async def run(call: ApiRequest) -> Json[RunResult | Accepted] | EventResponse:
    """Run code in a fresh sandbox, which is destroyed at its end."""
    given = await call.json(bodies.Run)
    if len(given.code) > MAX_CODE_LENGTH:
        check_code(given.code)
    service, principal, callbacks = call.service, call.principal, None
    if given.is_plain:
        options = msgspec.convert(given, bodies.Options, from_attributes=True)
        config = bodies.plain_config(options, principal.quota, service.settings.max_output_bytes)
    else:
        config, callbacks = await service.configure(principal, given)
    files: list[tuple[str, bytes]] = []
    if given.files:
        call.held.grow(sum(len(file.content_b64) for file in given.files) * 3 // 4)
        files = await asyncio.to_thread(bodies.files, given.files)
    # An execution that others can hear of can be cancelled, for which it needs a sandbox to name.
    heard = given.detach or "idempotency-key" in call.request.headers or call.wants_events
    request = RunRequest(
        code=given.code,
        config=config,
        callbacks=callbacks,
        stdin=given.stdin if given.stdin_b64 is None else given.standard_input(),
        files=files,
        return_files=given.return_files,
        needs_sandbox=heard or given.return_files or bool(files),
    )
    return await _respond(call, request, detach=given.detach)


async def execute(call: ApiRequest) -> Json[RunResult | Accepted] | EventResponse:
    """Run a cell in a session."""
    given = await call.json(bodies.Cell)
    check_code(given.code)
    request = CellRequest(
        hosted=call.session,
        text=given.code,
        code=given.code,
        timeout_ms=_timeout(call, given.timeout_ms),
    )
    return await _respond(call, request, detach=given.detach)


async def shell(call: ApiRequest) -> Json[ShellResult | Accepted] | EventResponse:
    """Run a shell command in a session."""
    given = await call.json(bodies.Command)
    command, options = commands.from_params(msgspec.structs.asdict(given))
    commands.to_params(command, options)  # so that what cannot be run is refused at once
    request = ShellRequest(
        hosted=call.session,
        text=commands.shown(command),
        command=command,
        options=options,
        timeout_ms=_timeout(call, given.timeout_ms),
    )
    return await _respond(call, request, detach=given.detach)


async def show(call: ApiRequest) -> Json[RunResult | ShellResult | Accepted]:
    """Return an execution's result; 202 while it runs."""
    execution = _find(call)
    if not execution.done:
        return Json(Accepted(execution.id, execution.session), 202)
    return Json.of(Answer(execution.status, execution.body))


async def events(call: ApiRequest) -> EventResponse:
    """Stream an execution's events, from the one after `after` or Last-Event-ID."""
    pause = call.service.settings.keepalive_seconds
    return EventResponse(call, _find(call).events(call.after, pause))


async def cancel(call: ApiRequest) -> CancelledExecution:
    """Interrupt an execution; its result says so, and a session's variables are kept."""
    execution = _find(call)
    await execution.cancel()
    return CancelledExecution(execution.id, execution.done)


async def tool_results(call: ApiRequest) -> None:
    """Answer tool calls of an execution."""
    execution = _find(call)
    execution.answer(await call.json(list[bodies.ToolResult]))


async def display(call: ApiRequest) -> Response:
    """Return a display's bytes, which the guest made: as a download, and never as a page."""
    shown = display_of(call)
    headers = {
        "content-disposition": "attachment",
        "content-security-policy": "sandbox; default-src 'none'",
        "x-media-type": shown.media_type if _MEDIA_TYPE.match(shown.media_type) else "unknown",
    }
    return Response(shown.data, 200, headers, "application/octet-stream")


def display_of(call: ApiRequest) -> Display:
    """Return the display that the path names; 404 if the execution has none of that number."""
    displays, number = _find(call).displays, call.path["number"]
    if not number.isdecimal() or int(number[:9]) >= len(displays):
        raise Problem(404, "not_found", "the execution has no such display")
    return displays[int(number[:9])]


def _timeout(call: ApiRequest, asked: float | None) -> float | None:
    if asked is None:
        return None
    limit = bodies.timeout_within(asked, call.principal.quota)
    if not 0 < limit < float("inf"):
        raise Problem(400, "invalid", f"timeout_ms must be positive, not {limit!r}")
    return limit


async def _respond(
    call: ApiRequest, request: Request, *, detach: bool
) -> Json[Any] | EventResponse:
    """Start an execution, or find that of the same idempotency key; answer as the caller asks."""
    service, scope = call.service, call.idempotency
    known = None if scope is None else service.answers.find(scope)
    if isinstance(known, Answer):
        return _replayed(call, known)
    execution: Execution = known or service.start(
        call.principal, request, inputs=call.held, once=scope
    )
    if detach:
        return Json(Accepted(execution.id, request.session), 202)
    owned = scope is None  # who sends a key will come back for the result
    if call.wants_events:
        events = execution.events(0, service.settings.keepalive_seconds)
        return EventResponse(call, events, partial(_abandon, call, execution) if owned else None)
    if not await until_gone(call.request.receive, execution.wait()) and owned:
        await execution.cancel()
    return Json.of(Answer(execution.status or 499, execution.body), again=known is not None)


def _abandon(call: ApiRequest, execution: Execution) -> None:
    """Interrupt an execution whose client has gone."""
    call.service.spawn(execution.cancel())


def _replayed(call: ApiRequest, answer: Answer) -> Json[Any] | EventResponse:
    if not call.wants_events:
        return Json.of(answer, again=True)
    kind, name = ("fault", "problem") if answer.status >= 400 else ("result", "result")
    line = encode({"seq": 1, "type": kind, name: msgspec.Raw(answer.body)})
    return EventResponse(call, _once((1, kind, line)), headers={"idempotent-replayed": "true"})


async def _once(event: Event) -> AsyncIterator[list[Event]]:
    yield [event]


def _find(call: ApiRequest) -> Execution:
    return call.service.executions.get(call.principal, call.path["execution"])
