"""The MCP server of `atoll mcp`: sandboxes, files and large contexts as tools for MCP clients.

    asyncio.run(make_server(SandboxConfig()).run_stdio_async())

`mcp_toolset` has the tools; they run in sessions that `mcp_sessions` keeps by name. It is served
over stdio, or over streamable HTTP.

SECURITY: over HTTP, a request's Host, Origin and token are checked before its body is read. The
token is compared in constant time. Without a token it serves only this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import ipaddress
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

from atoll import __version__
from atoll.errors import AtollError, ConfigError
from atoll.extras import hint
from atoll.integrations.mcp_sessions import IDLE_SECONDS, MAX_SESSIONS, Sessions
from atoll.integrations.mcp_toolset import Tools

try:
    import uvicorn
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.types import ToolAnnotations
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_server needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping

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
    **dict.fromkeys(("list_files", "read_file", "context_grep", "context_peek"), READ_ONLY),
    "list_sessions": READ_ONLY,
    **dict.fromkeys(("context_open", "fork", "checkpoint"), ADDS),
    "ask": ASKS,
}
"""The tools by name, in the order in which a client sees them."""
INSTRUCTIONS = """\
Run Python and shell commands in a sandbox without access to this machine. Variables and files stay
in a session ("main" unless you name another) from call to call. Work on copies with fork, and undo
with checkpoint and rollback. For a text too long to read, call context_open, then context_grep and
context_peek."""
TOKEN_VARIABLE = "ATOLL_MCP_TOKEN"  # noqa: S105 - the name of it
SHORTEST_TOKEN = 16
MAX_BODY_BYTES = 32 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def make_server(
    config: SandboxConfig,
    *,
    ask: Ask | None = None,
    most_sessions: int = MAX_SESSIONS,
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
    for name, kind in ANNOTATIONS.items():
        if name != "ask" or ask is not None:
            call = _with_tool_errors(getattr(tools, name))
            server.add_tool(call, annotations=kind, structured_output=False)
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


async def serve_http(
    server: MCPServer[Any],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None,
    names: tuple[str, ...] = (),
    on_ready: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C; `on_ready` is called with the address.

    `names` are the names, besides localhost, that the Host header may have. Without a token,
    `host` has to be a loopback address.
    """
    check_host(host, token)
    listening = _listen(host, port)
    chosen = listening.getsockname()[1]
    settings = _security((*_LOOPBACK, host, *names))
    app = server.streamable_http_app(
        transport_security=settings, max_request_body_size=MAX_BODY_BYTES, host=host
    )
    config = uvicorn.Config(
        Bearer(app, token) if token else app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )
    shown = f"[{host}]" if ":" in host else host
    with listening:
        on_ready(f"http://{shown}:{chosen}/mcp")
        await uvicorn.Server(config).serve(sockets=[listening])


def check_host(host: str, token: str | None) -> None:
    """Raise ConfigError if other machines could connect without a token."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if token is None and not local:
        raise ConfigError(f"--no-token is for this machine alone, not for {host}: leave one out")


def token_from_environment() -> str:
    """Return the token of ATOLL_MCP_TOKEN, or a new one."""
    given = os.environ.get(TOKEN_VARIABLE, "").strip()
    if given and len(given) < SHORTEST_TOKEN:
        raise ConfigError(f"{TOKEN_VARIABLE} must have at least {SHORTEST_TOKEN} characters")
    return given or secrets.token_urlsafe(32)


class Bearer:
    """Passes requests with `Authorization: Bearer TOKEN` to an ASGI application."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Answer 401, or pass the request on."""
        if scope["type"] == "lifespan" or self._known(scope):
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = [(b"www-authenticate", b"Bearer"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        body = b"a token is needed: Authorization: Bearer TOKEN\n"
        await send({"type": "http.response.body", "body": body})

    def _known(self, scope: MutableMapping[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


def _security(names: tuple[str, ...]) -> TransportSecuritySettings:
    hosts = [host for name in names for host in (name, f"{name}:*")]
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(f"cannot serve at {host}:{port}: {exc.strerror or exc}") from None
    return made
