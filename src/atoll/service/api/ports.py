"""Handlers of a session's ports: what listens, previews, and connections as websockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from msgspec import Struct
from starlette.routing import compile_path
from starlette.websockets import WebSocketDisconnect, WebSocketState

from atoll.concurrency.background import both_ways
from atoll.sandbox import verbs
from atoll.sandbox.base import MAX_PORT
from atoll.service.http import bodies
from atoll.service.http.connections import CONNECTION
from atoll.service.http.problems import Problem

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.core.tenant_session import HostedSession
    from atoll.service.http.requests import ApiRequest

CONNECT = "/sessions/{session}/ports/{port}/connect"
_PATTERN = compile_path(f"/api/v1{CONNECT}")[0]
DEFAULT_SECONDS = 3600.0
CHUNK = 1 << 17
ENDED, REFUSED = 1000, 1008


class PortInfo(Struct, kw_only=True):
    """A TCP port that the session's guest listens on."""

    port: int
    address: str
    public: bool
    """Whether anybody may visit its preview."""


class PortList(Struct, kw_only=True):
    """The ports of a session."""

    items: list[PortInfo]
    previews: bool
    """Whether this service shows previews."""


class NewPreview(bodies.Body, kw_only=True):
    """POST /sessions/{id}/ports/{port}/expose."""

    seconds: float = DEFAULT_SECONDS
    """How long the link is valid."""
    public: bool = False
    """Whether anybody may visit it, without a link that is signed, until it is withdrawn."""


class PreviewInfo(Struct, kw_only=True):
    """A preview of a port."""

    url: str
    host: str
    token: str | None
    """What opens it, for programs: the header `atoll-preview`. None if it is public."""
    expires_at: float | None
    public: bool


async def list_ports(call: ApiRequest) -> PortList:
    """List the TCP ports that the guest listens on, also while a cell runs."""
    hosted = call.session
    listening = await hosted.session.carry_out(verbs.ListPorts()) if hosted.session.live else ()
    public = hosted.facts.public_ports
    rows = [
        PortInfo(port=listener.number, address=listener.address, public=listener.number in public)
        for listener in listening
    ]
    return PortList(items=rows, previews=call.service.previews.enabled)


async def expose(call: ApiRequest) -> PreviewInfo:
    """Show a port at a host name of its own, by a signed link, or to everybody."""
    hosted, port, given = call.session, port_of(call.path["port"]), await call.json(NewPreview)
    hosted.touch()
    made = call.service.previews.expose(
        call.principal, hosted, port, given.seconds, public=given.public
    )
    return PreviewInfo(
        url=made.url,
        host=made.host,
        token=made.token,
        expires_at=made.expires_at,
        public=given.public,
    )


async def withdraw(call: ApiRequest) -> None:
    """Close a port to visitors; all signed links of the session end."""
    call.service.previews.withdraw(call.session, port_of(call.path["port"]))


def port_of(text: str) -> int:
    """Return the port of a path; 400 if it is not one."""
    if not text.isdecimal() or len(text) > 5 or not 0 < int(text) <= MAX_PORT:
        raise Problem(400, "invalid", f"a port is a number from 1 to {MAX_PORT}")
    return int(text)


def is_connection(path: str) -> bool:
    """Return whether a websocket at this path is a connection with a port."""
    return _PATTERN.match(path) is not None


async def connect(service: Service, websocket: WebSocket) -> None:
    """Carry a connection with a server in a session; Problem if it is not let in.

    Messages are bytes as they come; an empty one says that no more follow in its direction.
    """
    match = _PATTERN.match(websocket.scope["path"])
    assert match is not None
    if "origin" in websocket.headers:
        raise Problem(403, "origin", "web pages may not connect to ports")
    principal = service.keys.check(websocket.headers)
    principal.require("execute")
    service.quotas.request(principal)
    service.act_for(principal)
    hosted, port = service.sessions.get(principal, match["session"]), port_of(match["port"])
    with (
        service.quotas.connection(principal),
        service.memory.admit(principal, 2 * CHUNK, "a connection with a port"),
        service.memory.admit(principal, 0, "a message") as held,
    ):
        server = await hosted.session.carry_out(verbs.Connect(port=port))
        try:
            if (connection := websocket.scope.get(CONNECTION)) is not None:
                connection.holding = held
            await websocket.accept()
            await _carry(service, websocket, server, principal, hosted)
        finally:
            server.close()


async def _carry(
    service: Service,
    websocket: WebSocket,
    server: socket.socket,
    principal: Principal,
    hosted: HostedSession,
) -> None:
    """Carry bytes both ways until both have ended, the client is gone, or its key is refused."""
    server.setblocking(False)
    code, reason = ENDED, ""
    with service.streams.open(principal, hosted.id) as stream:
        try:
            await both_ways(
                _to_server(websocket, server, hosted), _to_client(websocket, server, hosted)
            )
        except (OSError, WebSocketDisconnect, RuntimeError):
            pass  # one of the two has gone
        except asyncio.CancelledError:
            if (problem := stream.interrupted()) is None:
                raise
            code, reason = REFUSED, problem.detail[:100]
    if websocket.application_state is not WebSocketState.DISCONNECTED:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.close(code, reason)


async def _to_server(websocket: WebSocket, server: socket.socket, hosted: HostedSession) -> None:
    loop = asyncio.get_running_loop()
    while data := await websocket.receive_bytes():
        hosted.touch()
        await loop.sock_sendall(server, data)
    server.shutdown(socket.SHUT_WR)


async def _to_client(websocket: WebSocket, server: socket.socket, hosted: HostedSession) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(server, CHUNK):
        hosted.touch()
        await websocket.send_bytes(data)
    await websocket.send_bytes(b"")
