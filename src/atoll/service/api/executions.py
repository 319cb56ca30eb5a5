"""Handlers of executions: one-shot runs, cells and commands, their events, tools and cancels."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from starlette.responses import Response

from atoll.sandbox import command as commands
from atoll.sandbox.base import check_code
from atoll.service.access import permissions
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import (
    NDJSON,
    SSE,
    EventResponse,
    as_json,
    nothing,
    raw_json,
    until_gone,
)
from atoll.service.storage.idempotency import Answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from atoll.sandbox.base import BaseSandbox
    from atoll.service.core.executions import Event, Execution
    from atoll.service.http.requests import Call

    Work = Callable[[Execution], Coroutine[Any, Any, dict[str, Any]]]

MAX_RETURNED_BYTES = 32 << 20
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9.+-]{1,64}/[A-Za-z0-9.+-]{1,64}\Z")


async def run(call: Call) -> Response:
    """Run code in a fresh sandbox, which is destroyed at its end."""
    given = await call.json(bodies.Run)
    check_code(given.code)
    service = call.service
    config, callbacks = service.prepare(
        given.config(
            call.principal.quota, service.settings, **permissions.wanted(given, service.settings)
        ),
        given.asks(),
    )
    config = await service.contexts.give(call.principal, config, callbacks, given.context)
    call.held.grow(sum(len(one.content_b64) for one in given.files) * 3 // 4)
    files = await asyncio.to_thread(lambda: [bodies.file_bytes(one) for one in given.files])
    given.files = []  # decoded: no need to keep both

    # An execution that others can hear of can be cancelled, for which it needs a sandbox to name.
    heard = given.detach or call.place is not None or _wants_events(call)

    def work(execution: Execution) -> Coroutine[Any, Any, dict[str, Any]]:
        attach = partial(_attach_files, execution)
        return service.run_once(
            execution, config, given.code, callbacks=callbacks,
            files=_each(files) if files else None,
            finish=attach if given.return_files else _no_more if heard else None,
        )  # fmt: skip

    return await _respond(call, None, work, detach=given.detach)


async def execute(call: Call) -> Response:
    """Run a cell in a session."""
    given = await call.json(bodies.Cell)
    check_code(given.code)
    return await _in_session(call, "execute", given.code, given)


async def shell(call: Call) -> Response:
    """Run a shell command in a session."""
    given = await call.json(bodies.Command)
    command, options = commands.from_params(msgspec.structs.asdict(given))
    commands.to_params(command, options)  # so that what cannot be run is refused at once
    return await _in_session(call, "shell", command, given, **options)


async def show(call: Call) -> Response:
    """Return an execution's result; 202 while it runs."""
    execution = _find(call)
    if not execution.done:
        return as_json({"id": execution.id, "session": execution.session, "kind": None}, 202)
    return raw_json(Answer(execution.status, execution.body))


async def events(call: Call) -> Response:
    """Stream an execution's events, from the one after `after` or Last-Event-ID."""
    pause = call.service.settings.keepalive_seconds
    return EventResponse(call, _find(call).events(call.after, pause))


async def cancel(call: Call) -> Response:
    """Interrupt an execution; its result says so, and a session's variables are kept."""
    execution = _find(call)
    await execution.cancel()
    return as_json({"id": execution.id, "done": execution.done}, 202)


async def tool_results(call: Call) -> Response:
    """Answer tool calls of an execution."""
    execution = _find(call)
    execution.answer(await call.json(list[bodies.ToolResult]))
    return nothing()


async def display(call: Call) -> Response:
    """Return a display's bytes, which the guest made: as a download, and never as a page."""
    execution, number = _find(call), call.path["number"]
    if not number.isdecimal() or int(number[:9]) >= len(execution.displays):
        raise Problem(404, "not_found", "the execution has no such display")
    shown = execution.displays[int(number[:9])]
    headers = {
        "content-disposition": "attachment",
        "content-security-policy": "sandbox; default-src 'none'",
        "x-media-type": shown.media_type if _MEDIA_TYPE.match(shown.media_type) else "unknown",
    }
    return Response(shown.data, 200, headers, "application/octet-stream")


async def _in_session(
    call: Call,
    verb: str,
    text: commands.Command,
    given: bodies.Cell | bodies.Command,
    **options: Unpack[commands.CommandOptions],
) -> Response:
    hosted = call.session
    limit = None
    if given.timeout_ms is not None:
        limit = bodies.timeout_within(given.timeout_ms, call.principal.quota)
        if not 0 < limit < float("inf"):
            raise Problem(400, "invalid", f"timeout_ms must be positive, not {limit!r}")

    def work(execution: Execution) -> Coroutine[Any, Any, dict[str, Any]]:
        hosted.history.add(execution, verb, commands.shown(text))
        return call.service.run_in_session(
            execution, hosted, text, verb=verb, timeout_ms=limit, **options
        )

    return await _respond(call, hosted.id, work, detach=given.detach)


async def _respond(call: Call, session: str | None, work: Work, *, detach: bool) -> Response:
    """Start an execution, or find that of the same idempotency key; answer as the caller asks."""
    service, place = call.service, call.place
    found = None if place is None else service.answers.find(place, call.fingerprint)
    if isinstance(found, Answer):
        return _replayed(call, found)
    execution = found or service.executions.new(call.principal, session)
    if found is None:
        if place is not None:
            execution.key = hashlib.sha256(repr(place).encode()).hexdigest()
            room = service.stored.reserve(call.principal)
            service.answers.begin(place, call.fingerprint, execution, room)
        service.begin(execution, work(execution), call.held)
        if place is not None:
            assert execution.task is not None
            execution.task.add_done_callback(lambda _: _remember(call, place, execution))
    if detach:
        return as_json({"id": execution.id, "session": session, "kind": None}, 202)
    owned = place is None  # who sends a key will come back for the result
    if _wants_events(call):
        events = execution.events(0, service.settings.keepalive_seconds)
        return EventResponse(call, events, partial(_abandon, call, execution) if owned else None)
    if not await until_gone(call.request.receive, execution.wait()) and owned:
        await execution.cancel()
    return raw_json(Answer(execution.status or 499, execution.body), again=found is not None)


def _abandon(call: Call, execution: Execution) -> None:
    """Interrupt what nobody waits for any more."""
    call.service.spawn(execution.cancel())


def _remember(call: Call, place: tuple[str, str, str], execution: Execution) -> None:
    refused = execution.status in (400, 403, 429, 503) and not execution.has_run
    answer = None if refused else Answer(execution.status, execution.body)
    call.service.answers.finish(place, answer)


def _replayed(call: Call, answer: Answer) -> Response:
    if not _wants_events(call):
        return raw_json(answer, again=True)
    kind, name = ("fault", "problem") if answer.status >= 400 else ("result", "result")
    line = encode({"seq": 1, "type": kind, name: msgspec.Raw(answer.body)})
    told = _once([(1, kind, line)])
    return EventResponse(call, told, headers={"idempotent-replayed": "true"})


async def _once(events: list[Event]) -> AsyncIterator[list[Event]]:
    yield events


def _wants_events(call: Call) -> bool:
    accept = call.request.headers.get("accept", "")
    return NDJSON in accept or SSE in accept


def _find(call: Call) -> Execution:
    return call.service.executions.get(call.principal, call.path["execution"])


async def _no_more(_box: BaseSandbox, _answer: dict[str, Any]) -> None:
    """Add nothing to an answer."""


async def _each(files: list[tuple[str, bytes]]) -> AsyncIterator[tuple[str, bytes]]:
    for pair in files:
        yield pair


async def _attach_files(execution: Execution, box: BaseSandbox, answer: dict[str, Any]) -> None:
    """Put the files that the code wrote into the answer, while there is room for them."""
    room = MAX_RETURNED_BYTES
    for one in answer["artifacts"]:
        # It is held as bytes, as base64 in the answer, and in the encoded answer.
        if one["size"] > room or not execution.held.fits(execution.held.size + 4 * one["size"]):
            one["left_out"] = "too_large"
            continue
        (found,) = await box.files.download([one["path"]])
        if found.content is None:
            one["left_out"] = str(found.error)
        elif len(found.content) <= room:
            room -= len(found.content)
            encoded = await asyncio.to_thread(base64.b64encode, found.content)
            one["content_b64"] = encoded.decode()
        else:
            one["left_out"] = "too_large"
