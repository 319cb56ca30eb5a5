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
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from atoll.sandbox.base import check_code
from atoll.service.core.work import RunResult
from atoll.service.dialects.librechat import stubs, wire
from atoll.service.dialects.librechat.executing import (
    check_workspace,
    configure,
    problem_of,
    read,
    timeout,
    user_key,
)
from atoll.service.dialects.librechat.toolrun import (
    IDLE_SECONDS,
    MAX_CALLS,
    ToolCall,
    ToolRequest,
    ToolRun,
)
from atoll.service.dialects.librechat.workspace import ExecAnswer, Workspace
from atoll.service.http.problems import Problem, decode
from atoll.service.http.requests import Json, until_gone

if TYPE_CHECKING:
    from atoll.service.http.requests import ApiRequest

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}\Z")
_REQUEST = re.compile(r"[A-Za-z0-9_-]{16,128}\Z")
_STOPPED = "the service stopped it, or its caller went away"
_HEADER = "x-librechat-code-request-id"


class WaitingProgram(Struct, kw_only=True):
    """Code that waits for its tools: call them, and send what they return with the token."""

    status: Literal["tool_call_required"] = "tool_call_required"
    continuation_token: str
    tool_calls: list[ToolCall]
    session_id: str


class EndedProgram(ExecAnswer, kw_only=True):
    """Code that has ended: how, what it printed, and its files."""

    status: Literal["completed", "error"]
    error: str | UnsetType = UNSET


class Cancellation(Struct):
    """What becomes of a request that is to be cancelled."""

    status: Literal["already_completed", "cancellation_requested"]


Program = WaitingProgram | EndedProgram


@dataclass(slots=True)
class Continuation:
    """What a token stands for."""

    run: ToolRun
    user: str
    expires: float
    body: bytes = b""
    answer: asyncio.Future[Program] | None = None


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
        """Return what waits; 400 for a malformed token, 404 if nothing waits, 403 if another's."""
        if not _TOKEN.match(token):
            raise Problem(400, "invalid", "the continuation_token is not valid")
        waiting = self._waiting.get(_digest(token))
        if waiting is None or waiting.expires < time.monotonic():
            raise Problem(404, "not_found", "Execution not found or expired")
        if waiting.user != user:
            raise Problem(403, "forbidden", "the execution belongs to another user")
        return waiting

    def check_name(self, user: str, ident: str | None, run: ToolRun | None = None) -> None:
        """Raise 409 if the id of a request is in use by another run, or was cancelled before."""
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

    def name(self, user: str, ident: str | None, run: ToolRun) -> None:
        """Let a request be cancelled by its id; 409 as `check_name`."""
        self.check_name(user, ident, run)
        if ident is not None:
            self._requests[user, ident] = time.monotonic() + IDLE_SECONDS, run

    def cancelled(self, user: str, ident: str) -> ToolRun | None:
        """Return the run of a request that is to be cancelled; remember one still to come."""
        if not _REQUEST.match(ident):
            raise Problem(400, "invalid", "request_id is not valid")
        self._forget_old()
        until = time.monotonic() + IDLE_SECONDS
        return self._requests.setdefault((user, ident), (until, None))[1]

    def _forget_old(self) -> None:
        now = time.monotonic()
        self._waiting = {k: v for k, v in self._waiting.items() if v.expires >= now}
        self._requests = {k: v for k, v in self._requests.items() if v[0] >= now}


async def programmatic(call: ApiRequest) -> Json[Program]:
    """Run code with the client's tools, or go on with their results."""
    check_workspace(call)
    given = await read(call, wire.Programmatic)
    if given.continuation_token is not None:
        return Json(await _continue(call, given))
    call.service.require_accepting()
    return Json(await _until_answer(call, await _start(call, given)))


async def cancel(call: ApiRequest) -> Json[Cancellation]:
    """Cancel a request by the id that its header had; it may still be on its way."""
    given = await read(call, wire.Cancel)
    run = call.service.librechat.continuations.cancelled(user_key(call.principal), given.request_id)
    if run is not None and run.done:
        return Json(Cancellation("already_completed"))
    if run is not None:
        await run.cancel()
    return Json(Cancellation("cancellation_requested"), 202)


async def _start(call: ApiRequest, given: wire.Programmatic) -> ToolRun:
    language = given.check()
    if not given.tools or len(given.tools) > stubs.MAX_TOOLS:
        raise Problem(400, "invalid", f"tools: from 1 to {stubs.MAX_TOOLS}")
    setup, code = stubs.programs(language, given.tools, given.code, given.arguments)
    check_code(code)
    user, ident = user_key(call.principal), call.request.headers.get(_HEADER)
    continuations = call.service.librechat.continuations
    continuations.check_name(user, ident)
    longest = call.principal.quota.timeout_ms  # the run has a clock of its own
    config, callbacks = await configure(call, given, [{"name": stubs.HOST_CALL}], longest)
    continuations.check_name(user, ident)
    request = ToolRequest(
        code=code,
        setup=setup,
        config=config,
        callbacks=callbacks,
        workspace=Workspace(call.service, call.principal, given),
        seconds=timeout(given, call) / 1000,
    )
    run = call.service.start(call.principal, request, inputs=call.held, kind=ToolRun)
    assert isinstance(run, ToolRun)
    continuations.name(user, ident, run)
    return run


async def _continue(call: ApiRequest, given: wire.Programmatic) -> Program:
    user, continuations = user_key(call.principal), call.service.librechat.continuations
    waiting = continuations.get(given.continuation_token or "", user)
    results = given.tool_results or []
    if not 0 < len(results) <= MAX_CALLS:
        raise Problem(400, "invalid", f"tool_results: from 1 to {MAX_CALLS}")
    if waiting.answer is not None:
        if waiting.body != call.fingerprint:
            raise Problem(409, "in_use", "the continuation_token was used with other results")
        if not waiting.answer.done():
            raise Problem(409, "in_use", "another continuation of this execution runs")
        return waiting.answer.result()
    waiting.run.answer_calls(results)
    waiting.body, waiting.answer = call.fingerprint, asyncio.get_running_loop().create_future()
    continuations.name(user, call.request.headers.get(_HEADER), waiting.run)
    try:
        answer = await _until_answer(call, waiting.run)
    except BaseException as exc:
        failed = exc if isinstance(exc, Exception) else Problem(503, "cancelled", _STOPPED)
        waiting.answer.set_exception(failed)
        waiting.answer.exception()  # a retry need never come for it
        raise
    finally:
        waiting.expires = time.monotonic() + IDLE_SECONDS
    waiting.answer.set_result(answer)
    return answer


async def _until_answer(call: ApiRequest, run: ToolRun) -> Program:
    if not await until_gone(call.request.receive, run.until_stopped()):
        await run.cancel()
        await run.wait()
    if not run.done:
        token = call.service.librechat.continuations.issue(run, user_key(call.principal))
        return WaitingProgram(
            continuation_token=token, tool_calls=run.pending(), session_id=run.workspace.storage
        )
    if run.status >= 400:
        raise problem_of(run)
    return _ended(run)


def _ended(run: ToolRun) -> EndedProgram:
    result = decode(run.body, RunResult)
    if run.timed_out and result.kind == "cancelled":
        result.kind = "timeout"
    error = "Execution failed or timed out" if run.abandoned else wire.error_text(result)
    return EndedProgram(
        **msgspec.structs.asdict(run.workspace.answer(*wire.texts(result))),
        status="completed" if error is None else "error",
        error=UNSET if error is None else error,
    )


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
