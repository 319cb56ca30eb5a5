"""Serves the MCP server over stdio, or over streamable HTTP.

SECURITY: over HTTP, a request's Host, Origin and token are checked before its body is read. The
token is compared in constant time. Without a token it serves only this machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import socket
from typing import TYPE_CHECKING, Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings

from atoll.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from mcp.server import MCPServer

TOKEN_VARIABLE = "ATOLL_MCP_TOKEN"  # noqa: S105 - the name of it
SHORTEST_TOKEN = 16
MAX_BODY_BYTES = 32 << 20
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


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
    hosts = [one for name in names for one in (name, f"{name}:*")]
    origins = [f"{scheme}://{one}" for scheme in ("http", "https") for one in hosts]
    return TransportSecuritySettings(allowed_hosts=hosts, allowed_origins=origins)


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, *_), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.create_server((host, port), family=family)
    except OSError as exc:
        raise ConfigError(f"cannot serve at {host}:{port}: {exc.strerror or exc}") from None
    return made
