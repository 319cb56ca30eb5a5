"""The tasks extension of MCP (io.modelcontextprotocol/tasks): calls that outlast their request.

    tools/call ──▶ ends within `after_seconds` ──▶ result, as without the extension
               └─▶ else a task ──▶ tasks/get until it is completed, failed or cancelled

SECURITY: a task is found under its owner only, by an identifier that cannot be guessed. The number
of tasks that are kept is limited; above it, calls are answered without one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from atoll.extras import hint
from atoll.integrations.mcp_requests import declares_extension, owner_of

try:
    from mcp.server.extension import Extension, MethodBinding
    from mcp.shared.exceptions import MCPError
    from mcp_types import (
        HEADER_MISMATCH,
        INTERNAL_ERROR,
        INVALID_PARAMS,
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        CallToolResult,
        RequestParams,
    )
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_tasks needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import Collection

    from mcp.server.context import CallNext, HandlerResult
    from mcp_types import CallToolRequestParams

    from atoll.integrations.mcp_requests import Request

IDENTIFIER = "io.modelcontextprotocol/tasks"
AFTER_SECONDS = 3.0
"""How long a call is waited for before it becomes a task."""
KEEP_SECONDS = 3600.0
MAX_TASKS = 256
POLL_MILLISECONDS = 1000


@dataclass(eq=False, slots=True, kw_only=True)
class Task:
    """A call that goes on after its request was answered."""

    owner: str
    running: asyncio.Future[HandlerResult]
    id: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    updated: datetime = field(default_factory=lambda: datetime.now(UTC))
    message: str = ""

    def note(self, message: str) -> None:
        """Remember how far it is."""
        self.message, self.updated = message, datetime.now(UTC)

    @property
    def status(self) -> str:
        """`working`, `completed`, `failed` or `cancelled`."""
        if not self.running.done():
            return "working"
        if self.running.cancelled():
            return "cancelled"
        return "completed" if self._error() is None else "failed"

    def fields(self, kept: timedelta) -> dict[str, Any]:
        """Return the fields that every message about it has."""
        known: dict[str, Any] = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created.isoformat(),
            "lastUpdatedAt": self.updated.isoformat(),
            "ttlMs": int(kept.total_seconds() * 1000),
            "pollIntervalMs": POLL_MILLISECONDS,
        }
        return known | ({"statusMessage": self.message} if self.message else {})

    def details(self) -> dict[str, Any]:
        """Return its result or error; nothing while it works, or after it was cancelled."""
        if self.status == "failed":
            return {"error": self._error()}
        if self.status != "completed":
            return {}
        result = self.running.result()
        assert isinstance(result, CallToolResult)
        return {"result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}

    def _error(self) -> dict[str, Any] | None:
        failed = self.running.exception()
        if isinstance(failed, MCPError):
            return failed.error.model_dump(by_alias=True, mode="json", exclude_none=True)
        if failed is not None or not isinstance(self.running.result(), CallToolResult):
            return {"code": INTERNAL_ERROR, "message": "the call failed on the server"}
        return None


class Notes:
    """Takes the progress of a call for the task that it may become."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.last = ""

    def put(self, message: str) -> None:
        """Remember a line of progress."""
        self.last = message
        if self.task is not None:
            self.task.note(message)


NOTES: ContextVar[Notes | None] = ContextVar("atoll_mcp_notes", default=None)
"""Where a tool says how far its call is."""


class TaskParams(RequestParams):
    """What tasks/get and tasks/cancel take; the input of tasks/update answers no question."""

    task_id: str


class Tasks(Extension):
    """Makes tasks of calls that take long, for clients that know the extension."""

    identifier = IDENTIFIER

    def __init__(
        self,
        names: Collection[str],
        *,
        after_seconds: float = AFTER_SECONDS,
        keep_seconds: float = KEEP_SECONDS,
        most: int = MAX_TASKS,
    ) -> None:
        """`names` are the tools whose calls may become tasks."""
        self._names, self._after = frozenset(names), after_seconds
        self._kept, self._most = timedelta(seconds=keep_seconds), most
        self._tasks: dict[str, Task] = {}

    def methods(self) -> list[MethodBinding]:
        """Return the methods that the extension adds."""
        known = {"tasks/get": self._get, "tasks/update": self._update, "tasks/cancel": self._cancel}
        versions = frozenset(MODERN_PROTOCOL_VERSIONS)
        return [
            MethodBinding(name, TaskParams, handler, versions) for name, handler in known.items()
        ]

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: Request, call_next: CallNext
    ) -> HandlerResult:
        """Answer a call that ends in time with its result, and any other with a task."""
        if params.name not in self._names or not declares_extension(ctx, IDENTIFIER):
            return await call_next(ctx)
        notes = Notes()
        token = NOTES.set(notes)
        try:
            running: asyncio.Future[HandlerResult] = asyncio.ensure_future(call_next(ctx))
        finally:
            NOTES.reset(token)
        try:
            await asyncio.wait({running}, timeout=self._after)
            if running.done() or not self._has_room():
                return await running
        except asyncio.CancelledError:
            running.cancel()
            raise
        notes.task = task = Task(owner=owner_of(ctx).name, running=running, message=notes.last)
        running.add_done_callback(lambda _: task.note(task.message))
        self._tasks[task.id] = task
        return {"resultType": "task", **task.fields(self._kept)}

    async def close(self) -> None:
        """Cancel what runs."""
        running = [task.running for task in self._tasks.values()]
        for one in running:
            one.cancel()
        if running:
            await asyncio.wait(running)

    def _has_room(self) -> bool:
        """Delete tasks that are too old; return whether one more may be kept."""
        oldest = datetime.now(UTC) - self._kept
        for task in [known for known in self._tasks.values() if known.created < oldest]:
            if task.running.done():
                del self._tasks[task.id]
        return len(self._tasks) < self._most

    async def _get(self, ctx: Request, params: TaskParams) -> HandlerResult:
        task = self._known(ctx, params)
        return {"resultType": "complete", **task.fields(self._kept), **task.details()}

    async def _update(self, ctx: Request, params: TaskParams) -> HandlerResult:
        self._known(ctx, params)  # no task waits for input: an answer has nothing to answer
        return {"resultType": "complete"}

    async def _cancel(self, ctx: Request, params: TaskParams) -> HandlerResult:
        task = self._known(ctx, params)
        if task.running.cancel():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait({task.running}, timeout=self._after)
        return {"resultType": "complete"}

    def _known(self, ctx: Request, params: TaskParams) -> Task:
        if not declares_extension(ctx, IDENTIFIER):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {IDENTIFIER: {}}}}
            text = f"declare the extension {IDENTIFIER} to use tasks"
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, text, needed)
        web = ctx.request
        named = params.task_id if web is None else web.headers.get("mcp-name", params.task_id)
        if named != params.task_id:
            raise MCPError(HEADER_MISMATCH, "the header Mcp-Name names another task")
        task = self._tasks.get(params.task_id)
        if task is None or task.owner != owner_of(ctx).name:
            raise MCPError(INVALID_PARAMS, f"there is no task {params.task_id!r:.70}")
        return task
