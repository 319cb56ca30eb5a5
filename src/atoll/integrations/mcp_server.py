"""The MCP server of `atoll mcp`: sandboxes, files and large contexts as tools for MCP clients.

    asyncio.run(serve_stdio(make_server(SandboxConfig())))

`mcp_toolset` has the tools; they run in sessions that `mcp_sessions` keeps by name.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.errors import AtollError
from atoll.extras import hint
from atoll.integrations.mcp_sessions import IDLE_SECONDS, MOST_SESSIONS, Sessions
from atoll.integrations.mcp_toolset import Tools

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
    from mcp.types import ToolAnnotations
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_server needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from atoll.config import SandboxConfig
    from atoll.integrations.mcp_toolset import Ask

READ_ONLY = ToolAnnotations(read_only_hint=True, open_world_hint=False)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
ASKS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=True)
"""A model is asked, which costs money and runs code."""
CHANGES = ToolAnnotations(destructive_hint=True, open_world_hint=False)
INSTRUCTIONS = """\
Run Python and shell commands in a sandbox without access to this machine. Variables and files stay
in a session ("main" unless you name another) from call to call. Work on copies with fork, and undo
with checkpoint and rollback. For a text too long to read, call context_open, then context_grep and
context_peek."""


def make_server(
    config: SandboxConfig,
    *,
    ask: Ask | None = None,
    most_sessions: int = MOST_SESSIONS,
    idle_seconds: float = IDLE_SECONDS,
) -> MCPServer[None]:
    """Return the server; its sandboxes have this configuration. Without `ask` it lacks that tool.

    `auto` chooses a backend that is at least jailed; a weaker one has to be named.
    """
    sessions = Sessions(config, most=most_sessions, idle_seconds=idle_seconds)

    @contextlib.asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        sweeping = asyncio.ensure_future(sessions.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            await asyncio.shield(sessions.close_all())

    server = MCPServer(
        "atoll",
        title="Atoll",
        version=__version__,
        instructions=INSTRUCTIONS,
        log_level="WARNING",
        lifespan=lifespan,
    )
    tools = Tools(sessions, ask)
    kinds: list[tuple[ToolAnnotations, list[Callable[..., Awaitable[Any]]]]] = [
        (CHANGES, [tools.run_python, tools.run_shell, tools.write_file, tools.rollback,
                   tools.close_session]),
        (READ_ONLY, [tools.list_files, tools.read_file, tools.context_grep, tools.context_peek,
                     tools.list_sessions]),
        (ADDS, [tools.context_open, tools.fork, tools.checkpoint]),
        (ASKS, [tools.ask] if ask else []),
    ]  # fmt: skip
    for kind, made in kinds:
        for tool in made:
            server.add_tool(_with_tool_errors(tool), annotations=kind, structured_output=False)
    server.resource("atoll://{session}/files/{+path}", description="A file of a session")(
        _with_resource_errors(tools.file)
    )
    server.resource("atoll://{session}/outputs/{number}", description="A long output, whole")(
        _with_resource_errors(tools.output)
    )
    return server


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
