"""The websockets of kernels and terminals: who may open it, and its frames until it closes.

SECURITY: the order is Host (the application), path, Origin, key, scope, rate; only then is the
socket accepted. A browser sends Origin with every websocket, and no page but the service's own may
open one. Cookies are not looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.routing import compile_path
from starlette.websockets import WebSocketDisconnect, WebSocketState

from atoll.guest.shared import rpc
from atoll.service.dialects.jupyter import terminals
from atoll.service.dialects.jupyter.gateway import PREFIX
from atoll.service.dialects.jupyter.messages import V1, read, write
from atoll.service.http.connections import CONNECTION
from atoll.service.http.problems import Problem
from atoll.service.http.requests import LARGE_BODY, VALUE_BYTES

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from atoll.service.access.admission import Budget
    from atoll.service.access.keys import Principal
    from atoll.service.core.service import Service
    from atoll.service.dialects.jupyter.messages import KernelMessage

PATH = f"{PREFIX}/api/kernels/{{kernel}}/channels"
UNREADABLE, REFUSED = 1007, 1008
_PATTERN = compile_path(PATH)[0]


class Socket:
    """One connection of a kernel's client."""

    def __init__(
        self, websocket: WebSocket, principal: Principal, protocol: str | None, memory: Budget
    ) -> None:
        self.principal, self._websocket, self._protocol = principal, websocket, protocol
        self._memory = memory

    async def send(self, message: KernelMessage) -> bool:
        """Send a message; return False if the client is gone.

        This waits for a client that reads slowly; a client that answers no pings is cut off.
        """
        frame = write(message, self._protocol)
        try:
            if isinstance(frame, str):
                await self._websocket.send_text(frame)
            else:
                await self._websocket.send_bytes(frame)
        except (WebSocketDisconnect, RuntimeError):  # closed by the client, or by us
            return False
        return True

    async def receive(self) -> KernelMessage:
        """Return the next message; ValueError if it cannot be read, Problem if it has no room."""
        found = await self._websocket.receive()
        if found["type"] != "websocket.receive":
            raise WebSocketDisconnect(found.get("code", 1005))
        frame = found["bytes"] if found.get("text") is None else found["text"]
        held = self._memory.admit(self.principal, _cost(frame), "a message")
        if len(frame) < LARGE_BODY:
            message = read(frame, self._protocol)
        else:
            message = await asyncio.to_thread(read, frame, self._protocol)
        message.trim()
        message.held = held
        return message

    async def close(self, code: int, reason: str) -> None:
        """Close the connection."""
        if self._websocket.application_state is not WebSocketState.DISCONNECTED:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                await self._websocket.close(code, reason)


async def serve(service: Service, websocket: WebSocket) -> None:
    """Let a client in, and answer its requests until it leaves; Problem if it is not let in."""
    path = websocket.scope["path"]
    match = _PATTERN.match(path) or terminals.PATTERN.match(path)
    if match is None:
        raise Problem(404, "not_found", f"websockets are served at {PATH}, {terminals.PATH}")
    _check_origin(websocket)
    principal = service.gateway.check(websocket)
    principal.require("execute")
    service.quotas.request(principal)
    service.act_for(principal)
    if "session" in match.groupdict():
        await terminals.serve(service, websocket, principal, match["session"], match["process"])
    else:
        await _serve_kernel(service, websocket, principal, match["kernel"])


async def _serve_kernel(
    service: Service, websocket: WebSocket, principal: Principal, ident: str
) -> None:
    kernel = service.gateway.get(principal, ident)
    protocol = V1 if V1 in websocket.scope["subprotocols"] else None
    held = service.memory.admit(principal, 0, "a message")
    if (connection := websocket.scope.get(CONNECTION)) is not None:
        connection.holding = held
    await websocket.accept(protocol)
    socket = Socket(websocket, principal, protocol, service.memory)
    try:
        with service.quotas.connection(principal), service.streams.open(principal) as stream:
            try:
                await kernel.attach(socket)
                while True:
                    await kernel.take(socket, await socket.receive())
            except asyncio.CancelledError:
                if (problem := stream.interrupted()) is None:
                    raise
                raise problem from None
    except WebSocketDisconnect:
        pass
    except ValueError as exc:
        await socket.close(UNREADABLE, str(exc)[:100])
    except Problem as exc:
        await socket.close(REFUSED, exc.detail[:100])
    finally:
        kernel.detach(socket)
        held.release()


def _cost(frame: str | bytes) -> int:
    """Return what a message takes once it is decoded, at most."""
    signs = (",", "[", "{") if isinstance(frame, str) else (b",", b"[", b"{")
    values = min(sum(map(frame.count, signs)), rpc.MAX_ITEMS)  # type: ignore[arg-type]
    width = 1 if frame.isascii() else 4
    return (1 + width) * len(frame) + VALUE_BYTES * values


def _check_origin(websocket: WebSocket) -> None:
    """Refuse the pages of other sites; programs send no Origin, or the address they connect to."""
    origin = websocket.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != websocket.headers.get("host"):
        raise Problem(403, "origin", "web pages may not open a socket of the gateway")
