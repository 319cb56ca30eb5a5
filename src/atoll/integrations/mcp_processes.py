"""The tools of the MCP server for processes beside the cells: servers, watchers, shells."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal

from atoll.extras import hint
from atoll.integrations.mcp_outputs import ProcessList, ProcessState
from atoll.integrations.mcp_requests import owner_of
from atoll.integrations.mcp_toolset import text_content

try:
    from mcp.server.mcpserver import Context  # noqa: TC002 - the SDK reads annotations
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_processes needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from atoll.integrations.mcp_sessions import Session, Sessions
    from atoll.sandbox.process import Process
    from atoll.types import ProcessInfo

MAX_WAIT_SECONDS = 600.0
WRITE_SECONDS = 30.0
SETTLE_SECONDS = 0.05
"""For how long more output is waited for, once there is some."""
COLLECTED_BYTES = 4 << 20
"""Output that one call returns; of more, the last."""
Signal = Literal["SIGINT", "SIGTERM", "SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


class ProcessTools:
    """The tools; their docstrings are the descriptions that a model sees."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def start_process(  # noqa: PLR0917 - the SDK passes them by name
        self,
        command: str,
        ctx: Context,
        pty: bool = False,  # noqa: FBT001, FBT002
        cwd: str | None = None,
        wait_seconds: float = 1,
        session: str | None = None,
    ) -> Annotated[CallToolResult, ProcessState]:
        """Start a program that goes on running beside the other tools: a server, a watcher, a REPL.

        Returns its number, and what it prints at first. With `pty` it gets a terminal.
        """
        chosen = await self._sessions.get(owner_of(ctx.request_context), session)
        process = await chosen.box.start(command, cwd=cwd, pty=pty)
        known = {one.id for one in await chosen.box.processes()}
        kept = {ident: one for ident, one in chosen.processes.items() if ident in known}
        chosen.processes = {**kept, process.id: process}
        return await _output(chosen, process, wait_seconds)

    async def read_process(
        self, process: str, ctx: Context, wait_seconds: float = 5, session: str | None = None
    ) -> Annotated[CallToolResult, ProcessState]:
        """Return what a process has printed since the last call; wait so long for some."""
        chosen, found = await self._process(ctx, session, process)
        return await _output(chosen, found, wait_seconds)

    async def write_process(  # noqa: PLR0917
        self,
        process: str,
        text: str,
        ctx: Context,
        end: bool = False,  # noqa: FBT001, FBT002
        wait_seconds: float = 1,
        session: str | None = None,
    ) -> Annotated[CallToolResult, ProcessState]:
        """Write to a process's input, then return what it prints. A line ends with a newline.

        `end` closes its input. To a terminal, character 3 is Ctrl-C.
        """
        chosen, found = await self._process(ctx, session, process)
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await found.write(text, end=end)
        except TimeoutError:
            raise ToolError(f"process {process} does not read its input") from None
        return await _output(chosen, found, wait_seconds)

    async def signal_process(
        self, process: str, ctx: Context, signal: Signal = "SIGTERM", session: str | None = None
    ) -> Annotated[CallToolResult, ProcessState]:
        """Send a signal to a process and its process group: SIGINT, SIGTERM, SIGKILL ..."""
        chosen, found = await self._process(ctx, session, process)
        await found.signal(signal)
        return await _output(chosen, found, 1)

    async def wait_process(
        self, process: str, ctx: Context, timeout_seconds: float = 60, session: str | None = None
    ) -> Annotated[CallToolResult, ProcessState]:
        """Wait until a process has ended, or the time is over; return what it printed meanwhile."""
        chosen, found = await self._process(ctx, session, process)
        return await _output(chosen, found, timeout_seconds, to_the_end=True)

    async def list_processes(
        self, ctx: Context, session: str | None = None
    ) -> Annotated[CallToolResult, ProcessList]:
        """List the processes of a session: those that run, and the last that have ended."""
        chosen = await self._sessions.get(owner_of(ctx.request_context), session)
        rows = [_state(chosen, one.info) for one in await chosen.box.processes()]
        lines = [f"{row.process}: {row.command} ({_words(row)})" for row in rows]
        facts = ProcessList(session=chosen.name, processes=rows)
        text = TextContent(text="\n".join(lines) or "(no process was started)")
        return CallToolResult(content=[text], structured_content=facts.model_dump())

    async def _process(
        self, ctx: Context, session: str | None, ident: str
    ) -> tuple[Session, Process]:
        chosen = await self._sessions.get(owner_of(ctx.request_context), session)
        if ident not in chosen.processes:
            raise ToolError(f"there is no process {ident!r:.40}: start one with start_process")
        return chosen, chosen.processes[ident]


async def _output(
    session: Session, process: Process, seconds: float, *, to_the_end: bool = False
) -> CallToolResult:
    """Return what a process prints: the first of it, or all until its end or the time is over."""
    until = time.monotonic() + max(0.0, min(seconds, MAX_WAIT_SECONDS))
    collected, lost, wait = bytearray(), -process.dropped, until - time.monotonic()
    while True:
        found = await process.poll(timeout_ms=wait * 1000)
        data = found.stdout + found.stderr
        collected += data
        lost += max(0, len(collected) - COLLECTED_BYTES)
        del collected[:-COLLECTED_BYTES]
        left, settling = until - time.monotonic(), bool(collected) and not to_the_end
        is_over = left <= 0 and found.info.running
        if is_over or not (data or (found.info.running and not settling)):
            break
        wait = SETTLE_SECONDS if settling else max(0.0, left)
    session.used = time.monotonic()
    state = _state(session, process.info)
    content: list[Any] = list(text_content(session, collected.decode("utf-8", "replace")))
    lost += process.dropped
    missing = f"; {lost:,} bytes before that are lost" if lost else ""
    content.append(TextContent(text=f"[process {process.id}: {_words(state)}{missing}]"))
    return CallToolResult(content=content, structured_content=state.model_dump())


def _words(state: ProcessState) -> str:
    return "running" if state.running else f"ended with {state.exit_code}"


def _state(session: Session, info: ProcessInfo) -> ProcessState:
    return ProcessState(
        session=session.name,
        process=info.id,
        command=info.shown,
        running=info.running,
        exit_code=info.exit_code,
    )
