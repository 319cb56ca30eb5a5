"""POST /exec: code runs in a fresh sandbox with the client's files, and the new ones are kept."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from atoll.sandbox.base import check_code
from atoll.service.dialects.librechat import wire
from atoll.service.dialects.librechat.stubs import bash_cell
from atoll.service.dialects.librechat.workspace import Workspace
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, encode
from atoll.service.http.requests import as_json, until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Execution
    from atoll.service.http.requests import Call

T = TypeVar("T")
DEFAULT_TIMEOUT_MS = 120_000.0
LEAST_TIMEOUT_MS = 1_000.0
SPACE_SECONDS = 3.0
"""How often a space is sent ahead of a body, so that no proxy takes the connection for dead."""
MAX_BODY_BYTES = 50 << 20


async def execute(call: Call) -> Response:
    """Run code; the answer has its output and its files. A guest's failure is in stderr."""
    check_workspace(call)
    given = await read(call, wire.Exec)
    language = given.check()
    code = given.code if language == "py" else bash_cell(given.code, given.arguments)
    check_code(code)
    workspace = Workspace(call.service, call.principal, given)
    config, callbacks = prepare(call, given, {"tools": [], "asks": []}, timeout(given, call))
    execution = call.service.executions.new(call.principal, None)
    work = Work(workspace, config, callbacks, code)
    call.service.begin(execution, work.carry_out(call, execution), call.held)
    return SpacedResponse(call, execution, workspace)


@dataclass(frozen=True, slots=True)
class Work:
    """Code to run with the files of a workspace."""

    workspace: Workspace
    config: SandboxConfig
    callbacks: ClientCallbacks
    code: str
    setup: str = ""

    async def carry_out(self, call: Call, execution: Execution) -> dict[str, Any]:
        """Run it; one at a time in a runtime that lasts."""
        runtimes, ident = call.service.librechat.runtimes, self.workspace.runtime
        async with runtimes.lock(ident) if ident else contextlib.nullcontext():
            return await call.service.run_once(
                execution, self.config, self.code, callbacks=self.callbacks,
                files=self.workspace.load(runtimes),
                finish=self.workspace.collect, setup=self.setup,
            )  # fmt: skip


def prepare(
    call: Call, given: wire.Exec, asks: dict[str, Any], timeout_ms: float
) -> tuple[SandboxConfig, ClientCallbacks]:
    """Return the configuration of a sandbox for a request."""
    asked = bodies.Sandbox(argv=["main.py", *given.arguments], timeout_ms=timeout_ms)
    quota = call.principal.quota
    if quota.memory_bytes is not None:
        asked.policy = bodies.Policy(memory_bytes=min(quota.memory_bytes, 1 << 30))
    return call.service.prepare(asked.config(quota, call.service.settings), asks)


def timeout(given: wire.Exec, call: Call) -> float:
    """Return the time limit in milliseconds, within what the key may have."""
    asked = DEFAULT_TIMEOUT_MS if given.timeout is None else given.timeout
    return float(min(max(asked, LEAST_TIMEOUT_MS), call.principal.quota.timeout_ms))


async def read(call: Call, shape: type[T]) -> T:
    """Return a JSON body in its shape; the results of tools come in it, so it may be large."""
    return await call.decoded(lambda body: wire.read(body, shape), MAX_BODY_BYTES)


def check_workspace(call: Call) -> None:
    """Refuse a request for a workspace that is attached elsewhere: there is none."""
    if "x-librechat-code-workspace-id" in call.request.headers:
        raise Problem(400, "unsupported_capability", "attached workspaces are not served here")


def problem_of(execution: Execution) -> Problem:
    """Return the problem that an execution ended with."""
    told = msgspec.json.decode(execution.body)
    wait = told.get("retry_after_seconds")
    return Problem(execution.status, told["code"], told["detail"], retry_after=wait)


class SpacedResponse(Response):
    """The answer of an execution: spaces while it runs, then JSON."""

    def __init__(self, call: Call, execution: Execution, workspace: Workspace) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no",
                   wire.PROFILE_HEADER: wire.profile(call.request)}  # fmt: skip
        super().__init__(None, 200, headers, "application/json")
        del self.headers["content-length"]
        self._call, self._execution, self._workspace = call, execution, workspace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; a client that goes away cancels the execution."""
        if not await until_gone(receive, self._answer(scope, receive, send)):
            await self._execution.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        execution = self._execution
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(execution.wait(), SPACE_SECONDS)
        if execution.done and execution.status >= 400:
            answer = wire.refusal(problem_of(execution), "")
            await answer(scope, receive, send)
            return
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for piece in self._pieces():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pieces(self) -> AsyncIterator[bytes]:
        execution = self._execution
        while not execution.done:
            yield b" "
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(execution.wait(), SPACE_SECONDS)
        known = self._workspace.answer()
        if execution.status >= 400:  # it is too late for a status: the answer has begun
            yield encode({**known, "stdout": "", "stderr": problem_of(execution).detail})
            return
        stdout, stderr = wire.texts(msgspec.json.decode(execution.body))
        yield encode({**known, "stdout": stdout, "stderr": stderr})


async def health(_call: Call) -> Response:
    """Say that the service lives, as the official one does."""
    return Response("OK", media_type="text/plain")


def answered(call: Call, value: Any, status: int = 200) -> Response:
    """Return a JSON answer with the profile that was asked for."""
    response = as_json(value, status)
    response.headers[wire.PROFILE_HEADER] = wire.profile(call.request)
    return response


def user_key(principal: Principal) -> str:
    """Return what tells one user of the dialect from another."""
    return f"{principal.tenant}\0{principal.user}"
