"""The MCP server of `atoll mcp`: sandboxes, files and large contexts as tools for MCP clients.

    asyncio.run(make_server(SandboxConfig()).run_stdio_async())

    mcp_http ──▶ SDK ──▶ mcp_approvals ──▶ mcp_tasks ──▶ mcp_toolset ──▶ mcp_sessions ──▶ sandbox
    (or stdio)    └────▶ mcp_resources: lists, subscriptions, completion

It is served over stdio, or over streamable HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.errors import AtollError, ConfigError
from atoll.extras import hint
from atoll.integrations.mcp_approvals import Approvals
from atoll.integrations.mcp_processes import ProcessTools
from atoll.integrations.mcp_resources import FILES, OUTPUTS, Bus, FileResources, Server
from atoll.integrations.mcp_sessions import IDLE_SECONDS, MAX_SESSIONS, Sessions
from atoll.integrations.mcp_tasks import AFTER_SECONDS, Tasks
from atoll.integrations.mcp_toolset import Tools

try:
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
    from mcp.types import ToolAnnotations
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_server needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from mcp.server import MCPServer

    from atoll.config import SandboxConfig
    from atoll.integrations.mcp_toolset import Ask

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
ASKS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
"""A model is asked, which costs money and runs code."""
CHANGES = ToolAnnotations(destructive_hint=True, open_world_hint=False)
ANNOTATIONS = {
    **dict.fromkeys(
        ("run_python", "run_shell", "write_file", "rollback", "close_session"), CHANGES
    ),
    **dict.fromkeys(("start_process", "write_process", "signal_process"), CHANGES),
    **dict.fromkeys(("list_files", "read_file", "context_grep", "context_peek"), READ_ONLY),
    **dict.fromkeys(("list_sessions", "list_processes"), READ_ONLY),
    **dict.fromkeys(("read_process", "wait_process"), READ_ONLY),
    **dict.fromkeys(("context_open", "open_session", "fork", "checkpoint"), ADDS),
    "ask": ASKS,
}
"""The tools by name, in the order in which a client sees them."""
INSTRUCTIONS = """\
Run Python and shell commands in a sandbox without access to this machine. Variables and files stay
in a session from call to call: pass the `session` that a result names. Work on copies with fork,
and undo with checkpoint and rollback. Servers and REPLs run on with start_process. For a text too
long to read, call context_open, then context_grep and context_peek."""
LONG = ("run_python", "run_shell", "wait_process", "ask")
"""Tools whose calls may become tasks."""
PROCESS = ("_process", "_processes")


def make_server(
    config: SandboxConfig,
    *,
    ask: Ask | None = None,
    most_sessions: int = MAX_SESSIONS,
    idle_seconds: float = IDLE_SECONDS,
    approve: Collection[str] = (),
    task_after_seconds: float = AFTER_SECONDS,
) -> MCPServer[None]:
    """Return the server; its sandboxes have this configuration. Without `ask` it lacks that tool.

    `auto` chooses a backend that is at least jailed; a weaker one has to be named. The user is
    asked before calls of the tools in `approve`.
    """
    if unknown := set(approve) - set(ANNOTATIONS):
        known = ", ".join(ANNOTATIONS)
        raise ConfigError(f"no tool {min(unknown)!r} to approve: use one of {known}")
    tasks, bus = Tasks(LONG, after_seconds=task_after_seconds), Bus()
    sessions = Sessions(config, most=most_sessions, idle_seconds=idle_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        sweeping = asyncio.ensure_future(sessions.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.shield(tasks.close())
            await asyncio.shield(sessions.close_all())

    server = Server(
        "atoll",
        title="Atoll",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        lifespan=lifespan,
        subscriptions=bus,
        extensions=[*([Approvals(approve)] if approve else []), tasks],
    )
    server.files = files = FileResources(sessions, bus)
    server.middleware.append(files.middleware)
    server.completion()(files.complete)  # type: ignore[no-untyped-call]
    tools = Tools(sessions, files.changed, ask)
    _add_tools(server, tools, ProcessTools(sessions), has_model=ask is not None)
    return server


def _add_tools(server: Server, tools: Tools, processes: ProcessTools, *, has_model: bool) -> None:
    for name, kind in ANNOTATIONS.items():
        if name != "ask" or has_model:
            method = getattr(processes if name.endswith(PROCESS) else tools, name)
            call, text = _with_tool_errors(method), inspect.getdoc(method)
            server.add_tool(call, description=text, annotations=kind, structured_output=True)
    server.resource(FILES, description="A file of a session")(_with_resource_errors(tools.file))
    server.resource(OUTPUTS, description="A long output, whole")(
        _with_resource_errors(tools.output)
    )


def _with_tool_errors(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the tool with Atoll's errors as ToolError, whose message the model sees."""

    @functools.wraps(tool)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await tool(*args, **kwargs)
        except (AtollError, OSError) as exc:
            raise ToolError(str(exc)) from None

    return call


def _with_resource_errors(read: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(read)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await read(*args, **kwargs)
        except (AtollError, OSError, ToolError) as exc:
            raise ResourceNotFoundError(str(exc)) from None

    return call
