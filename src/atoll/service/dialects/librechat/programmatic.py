"""POST /exec/programmatic: code that calls the client's tools, in one sandbox from start to end.

The guest waits in its call while the client carries it out: nothing runs twice. A continuation
token stands for the waiting guest; it is used once, and a retry gets the same answer again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from atoll.sandbox.base import check_code
from atoll.service.dialects.librechat import executing, stubs, wire
from atoll.service.dialects.librechat.toolrun import IDLE_SECONDS, MOST_CALLS, ToolRun
from atoll.service.dialects.librechat.workspace import Workspace
from atoll.service.http.problems import Problem
from atoll.service.http.requests import until_gone

if TYPE_CHECKING:
    from starlette.responses import Response

    from atoll.service.http.requests import Call

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_REQUEST = re.compile(r"[A-Za-z0-9_-]{16,128}\Z")
_STOPPED = "the service stopped it, or its caller went away"
_HEADER = "x-librechat-code-request-id"


@dataclass(slots=True)
class Continuation:
    """What a token stands for."""

    run: ToolRun
    user: str
    expires: float
    body: bytes = b""
    answer: asyncio.Future[dict[str, Any]] | None = None


class Continuations:
    """Guests that wait for clients, by the hashes of their tokens; requests by their ids."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, Continuation] = {}
        self._requests: dict[tuple[str, str], tuple[float, ToolRun | None]] = {}

    def issue(self, run: ToolRun, user: str) -> str:
        """Return a token for a guest that waits."""
        self._forget_old()
        token = secrets.token_urlsafe(32)
        self._waiting[_digest(token)] = Continuation(run, user, time.monotonic() + IDLE_SECONDS)
        return token

    def get(self, token: str, user: str) -> Continuation:
        """Return what waits; 400 for what is no token, 404 if nothing waits, 403 if another's."""
        if not _TOKEN.match(token):
            raise Problem(400, "invalid", "the continuation_token is not valid")
        found = self._waiting.get(_digest(token))
        if found is None or found.expires < time.monotonic():
            raise Problem(404, "not_found", "Execution not found or expired")
        if found.user != user:
            raise Problem(403, "forbidden", "the execution belongs to another user")
        return found

    def name(self, user: str, ident: str | None, run: ToolRun) -> None:
        """Let a request be cancelled by its id; 409 if the id is in use or was cancelled before."""
        if ident is None:
            return
        if not _REQUEST.match(ident):
            raise Problem(400, "invalid", f"{_HEADER} is not valid")
        self._forget_old()
        known = self._requests.get((user, ident))
        if known is not None and known[1] is None:
            raise Problem(409, "cancelled", "the request was cancelled before it came")
        if known is not None and known[1] is not None and known[1] is not run:
            raise Problem(409, "in_use", f"{_HEADER} is in use")
        self._requests[user, ident] = time.monotonic() + IDLE_SECONDS, run

    def cancelled(self, user: str, ident: str) -> ToolRun | None:
        """Return the run of a request that is to be cancelled; remember one still to come."""
        if not _REQUEST.match(ident):
            raise Problem(400, "invalid", "request_id is not valid")
        self._forget_old()
        found = self._requests.setdefault((user, ident), (time.monotonic() + IDLE_SECONDS, None))
        return found[1]

    def _forget_old(self) -> None:
        now = time.monotonic()
        self._waiting = {k: v for k, v in self._waiting.items() if v.expires >= now}
        self._requests = {k: v for k, v in self._requests.items() if v[0] >= now}


async def programmatic(call: Call) -> Response:
    """Run code with the client's tools, or go on with what they returned."""
    executing.check_workspace(call)
    given = await executing.read(call, wire.Programmatic)
    if given.continuation_token is not None:
        return executing.answered(call, await _continue(call, given))
    call.service.require_accepting()
    run = _start(call, given)
    return executing.answered(call, await _until_answer(call, run))


async def cancel(call: Call) -> Response:
    """Cancel a request by the id that its header had; it may still be on its way."""
    given = await executing.read(call, wire.Cancel)
    user = executing.user_key(call.principal)
    run = call.service.librechat.continuations.cancelled(user, given.request_id)
    if run is not None and run.done:
        return executing.answered(call, {"status": "already_completed"})
    if run is not None:
        await run.cancel()
    return executing.answered(call, {"status": "cancellation_requested"}, 202)


def _start(call: Call, given: wire.Programmatic) -> ToolRun:
    language = given.check()
    if not given.tools or len(given.tools) > stubs.MOST_TOOLS:
        raise Problem(400, "invalid", f"tools: from 1 to {stubs.MOST_TOOLS}")
    setup, code = stubs.programs(language, given.tools, given.code, given.arguments)
    check_code(code)
    limit = executing.timeout(given, call)
    settings = call.service.settings
    held = call.service.memory.admit(call.principal, 0, "the calls and the result of a program")
    run = ToolRun(call.principal, settings.event_bytes, limit / 1000, held)
    user, ident = executing.user_key(call.principal), call.request.headers.get(_HEADER)
    call.service.librechat.continuations.name(user, ident, run)
    run.workspace = workspace = Workspace(call.service, call.principal, given)
    asks = {"tools": [{"name": stubs.HOST_CALL}], "asks": []}
    longest = call.principal.quota.timeout_ms  # the run has a clock of its own
    config, callbacks = executing.prepare(call, given, asks, longest)
    work = executing.Work(workspace, config, callbacks, code, setup)
    call.service.begin(run, work.carry_out(call, run), call.held)
    return run


async def _continue(call: Call, given: wire.Programmatic) -> dict[str, Any]:
    user = executing.user_key(call.principal)
    found = call.service.librechat.continuations.get(given.continuation_token or "", user)
    results = given.tool_results or []
    if not 0 < len(results) <= MOST_CALLS:
        raise Problem(400, "invalid", f"tool_results: from 1 to {MOST_CALLS}")
    if found.answer is not None:
        if found.body != call.fingerprint:
            raise Problem(409, "in_use", "the continuation_token was used with other results")
        if not found.answer.done():
            raise Problem(409, "in_use", "another continuation of this execution runs")
        return found.answer.result()
    found.run.answer_calls(results)
    found.body, found.answer = call.fingerprint, asyncio.get_running_loop().create_future()
    ident = call.request.headers.get(_HEADER)
    call.service.librechat.continuations.name(user, ident, found.run)
    try:
        answer = await _until_answer(call, found.run)
    except BaseException as exc:
        failed = exc if isinstance(exc, Exception) else Problem(503, "cancelled", _STOPPED)
        found.answer.set_exception(failed)
        found.answer.exception()  # a retry need never come for it
        raise
    finally:
        found.expires = time.monotonic() + IDLE_SECONDS
    found.answer.set_result(answer)
    return answer


async def _until_answer(call: Call, run: ToolRun) -> dict[str, Any]:
    if not await until_gone(call.request.receive, run.until_stopped()):
        await run.cancel()
        await run.wait()
    if not run.done:
        user = executing.user_key(call.principal)
        token = call.service.librechat.continuations.issue(run, user)
        waits = {"status": "tool_call_required", "continuation_token": token}
        return {**waits, "tool_calls": run.pending(), "session_id": run.workspace.storage}
    if run.status >= 400:
        raise executing.problem_of(run)
    return _ended(run)


def _ended(run: ToolRun) -> dict[str, Any]:
    result = msgspec.json.decode(run.body)
    if run.timed_out and result["kind"] == "cancelled":
        result["kind"] = "timeout"
    stdout, stderr = wire.texts(result)
    known = {"stdout": stdout, "stderr": stderr, **run.workspace.answer()}
    error = "Execution failed or timed out" if run.abandoned else wire.error_text(result)
    if error is None:
        return {"status": "completed", **known}
    return {"status": "error", "error": error, **known}


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
