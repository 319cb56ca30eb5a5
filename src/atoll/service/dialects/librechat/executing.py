"""POST /exec: code runs in a fresh sandbox with the client's files, and the new ones are kept."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from atoll.sandbox.base import check_code
from atoll.service.core.work import RunRequest, RunResult, put_file
from atoll.service.dialects.librechat import wire
from atoll.service.dialects.librechat.stubs import bash_cell
from atoll.service.dialects.librechat.workspace import ExecAnswer, Workspace
from atoll.service.http import bodies
from atoll.service.http.problems import Problem, ProblemInfo, decode, encode
from atoll.service.http.requests import Json, until_gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.types import Receive, Scope, Send

    from atoll.config import SandboxConfig
    from atoll.hosting.client_callbacks import ClientCallbacks
    from atoll.sandbox.base import BaseSandbox
    from atoll.service.access.keys import Principal
    from atoll.service.core.executions import Execution
    from atoll.service.core.service import Service
    from atoll.service.core.work import Ended
    from atoll.service.http.requests import ApiRequest

T = TypeVar("T")
DEFAULT_TIMEOUT_MS = 120_000.0
LEAST_TIMEOUT_MS = 1_000.0
SPACE_SECONDS = 3.0
"""How often a space is sent ahead of a body, so that no proxy takes the connection for dead."""
MAX_BODY_BYTES = 50 << 20


async def execute(call: ApiRequest) -> Json[ExecAnswer]:
    """Run code; the answer has its output and its files. A guest's failure is in stderr."""
    check_workspace(call)
    given = await read(call, wire.Exec)
    language = given.check()
    code = given.code if language == "py" else bash_cell(given.code, given.arguments)
    check_code(code)
    workspace = Workspace(call.service, call.principal, given)
    config, callbacks = await configure(call, given, [], timeout(given, call))
    request = WorkspaceRun(code=code, config=config, callbacks=callbacks, workspace=workspace)
    execution = call.service.start(call.principal, request, inputs=call.held)
    return SpacedResponse(call, execution, workspace)


class WorkspaceRun(RunRequest, kw_only=True):
    """Code to run with the files of a workspace."""

    workspace: Workspace
    needs_sandbox: bool = True

    async def perform(self, execution: Execution, service: Service) -> Ended:
        """Run it; one at a time in a runtime that lasts."""
        runtime, runtimes = self.workspace.runtime, service.librechat.runtimes
        async with runtimes.lock(runtime) if runtime else contextlib.nullcontext():
            return await RunRequest.perform(self, execution, service)

    async def put_files(self, execution: Execution, service: Service, box: BaseSandbox) -> None:
        """Put the inputs, and what the runtime has kept, beside the code."""
        execution.enter("files")
        async for path, data in self.workspace.load(service.librechat.runtimes):
            await put_file(box, path, data)

    async def take_files(self, execution: Execution, box: BaseSandbox, answer: RunResult) -> None:
        """Keep the files that the code wrote."""
        execution.enter("files")
        await self.workspace.collect(box, answer)


async def configure(
    call: ApiRequest, given: wire.Exec, tools: list[dict[str, Any]], timeout_ms: float
) -> tuple[SandboxConfig, ClientCallbacks]:
    """Return the configuration of a sandbox for a request, and what asks the client for tools."""
    memory = call.principal.quota.memory_bytes
    asked = bodies.Sandbox(
        argv=["main.py", *given.arguments],
        timeout_ms=timeout_ms,
        tools=tools,
        policy=None if memory is None else bodies.Policy(memory_bytes=min(memory, 1 << 30)),
    )
    config, callbacks = await call.service.configure(call.principal, asked)
    return config.with_values(on_output=None), callbacks  # nobody reads events


def timeout(given: wire.Exec, call: ApiRequest) -> float:
    """Return the time limit in milliseconds, within what the key may have."""
    asked = DEFAULT_TIMEOUT_MS if given.timeout is None else given.timeout
    return float(min(max(asked, LEAST_TIMEOUT_MS), call.principal.quota.timeout_ms))


async def read(call: ApiRequest, shape: type[T]) -> T:
    """Return a JSON body in its shape; the results of tools come in it, so it may be large."""
    return await call.json(shape, read=wire.read, most=MAX_BODY_BYTES)


def check_workspace(call: ApiRequest) -> None:
    """Reject the workspace header: no workspace can be attached here."""
    if "x-librechat-code-workspace-id" in call.request.headers:
        raise Problem(400, "unsupported_capability", "attached workspaces are not served here")


def problem_of(execution: Execution) -> Problem:
    """Return the problem that an execution ended with."""
    ended = decode(execution.body, ProblemInfo)
    wait = ended.retry_after_seconds
    return Problem(execution.status, ended.code, ended.detail, retry_after=wait or None)


class SpacedResponse(Json[ExecAnswer]):
    """The answer of an execution: spaces while it runs, then JSON."""

    def __init__(self, call: ApiRequest, execution: Execution, workspace: Workspace) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        Response.__init__(self, None, 200, headers, "application/json")
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
        if execution.status >= 400:  # it is too late for a status: the answer has begun
            yield encode(self._workspace.answer("", problem_of(execution).detail))
            return
        yield encode(self._workspace.answer(*wire.texts(decode(execution.body, RunResult))))


async def health(_call: ApiRequest) -> Response:
    """Say that the service lives, as the official one does."""
    return Response("OK", media_type="text/plain")


def user_key(principal: Principal) -> str:
    """Return what tells one user of the dialect from another."""
    return f"{principal.tenant}\0{principal.user}"
