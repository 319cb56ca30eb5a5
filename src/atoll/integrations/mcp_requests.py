"""Whose a request to the MCP server is, and what its handlers may ask about it.

SECURITY: an owner is a connection that the SDK knows (stdio, or the session id of a handshake), or
the token that `mcp_http` has checked. What a client writes into a header is not an identity:
protocols without a handshake have no session id, so theirs is ignored.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from atoll.extras import hint
from atoll.integrations.mcp_sessions import Owner

try:
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as exc:
    raise ImportError(f"atoll.integrations.mcp_requests needs the MCP SDK. {hint('mcp')}") from exc

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    Request = ServerRequestContext[Any, Any]

TOKEN_OWNER = "atoll.owner"  # noqa: S105 - a key of an ASGI scope
"""Where `mcp_http` puts the name of the token's owner in a request's scope."""
CURRENT: ContextVar[Request] = ContextVar("atoll_mcp_request")
"""The request that is handled in this task."""


def owner_of(request: Request) -> Owner:
    """Return the owner of the sessions that a request may use."""
    web = request.request
    if web is None:  # stdio: one client to a process
        return Owner(name="", connected=True)
    token = web.scope.get(TOKEN_OWNER, "")
    if request.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return Owner(name=token, connected=False)
    connection = web.headers.get("mcp-session-id", "")
    return Owner(name=f"{token}/{connection}", connected=bool(connection))


def declares_extension(request: Request, identifier: str) -> bool:
    """Return whether the client has said that it knows an extension."""
    known = request.session.client_capabilities
    return known is not None and identifier in (known.extensions or {})
