"""Connections of clients that are slow to ask or slow to read, and websockets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    import h11

    from atoll.service.access.admission import Holding

CONNECTION = "atoll.connection"
"""The name of a websocket's connection in its scope."""
TRY_AGAIN_LATER = 1013
MAX_UNASKED_BYTES = 8 << 10
"""What a client may send on a websocket before its key was checked."""
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_SOCKET_LOG = logging.Logger("atoll.service.socket", logging.WARNING)  # noqa: LOG001 - a level of its own
_SOCKET_LOG.parent = logging.getLogger("atoll.service")


class ReadTimeout(asyncio.Protocol):
    """Cuts off a client that reads nothing of its answer for `stall_seconds`.

    Without it a client that never reads holds its connection, and whatever waits to send to it,
    for ever: TCP keeps a connection whose window is closed. Closing would wait for the client too.
    """

    stall_seconds = 120.0
    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        loop = asyncio.get_running_loop()
        self._stalled = loop.call_later(self.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the stall timer: the client has read."""
        self._has_read()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the stall timer: the client is gone."""
        self._has_read()
        super().connection_lost(exc)

    def _has_read(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class GuardedProtocol(ReadTimeout, H11Protocol):
    """HTTP/1.1 with a time limit for a request's head; uvicorn itself waits for ever."""

    header_seconds = 10.0
    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came; wait for the rest of a head that is not whole."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timer of the head."""
        self._forget()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to a websocket; refuse it if there are too many."""
        if len(self.connections) > (self.limit_concurrency or len(self.connections)):
            self.transport.write(_TOO_MANY)
            self.transport.close()
            return
        super().handle_websocket_upgrade(event)

    def _watch(self) -> None:
        upgraded = self.transport.get_protocol() is not self  # it is a websocket's now
        if upgraded or (self.cycle is not None and not self.cycle.response_complete):
            self._forget()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._waiting = self.loop.call_later(self.header_seconds, self.transport.close)

    def _forget(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class QuietSocket(ReadTimeout, WebSocketsSansIOProtocol):
    """A websocket whose address is not logged: Jupyter's clients put their key into it.

    What has arrived of messages is counted for the tenant that opened it (`holding`); before the
    key was checked, a client may send next to nothing.
    """

    holding: Holding | None = None

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.logger = self.conn.logger = _SOCKET_LOG

    def handle_connect(self, event: Any) -> None:
        """Start the application, which finds this connection in its scope."""
        super().handle_connect(event)
        if not self.close_sent:
            cast("dict[str, Any]", self.scope)[CONNECTION] = self

    def data_received(self, data: bytes) -> None:
        """Take what came, if there is room for it; close the connection if there is not."""
        if self._count(len(data)):
            super().data_received(data)
        elif not self.transport.is_closing():
            self.conn.fail(TRY_AGAIN_LATER, "no room in memory for the message")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
            self.transport.close()

    async def receive(self) -> Any:
        """Return the next message, which its reader counts from now on."""
        message = await super().receive()
        self._count(0)
        return message

    def _count(self, more: int) -> bool:
        """Count what has arrived and was not delivered; return whether there is room for it."""
        waiting = (m.get("text") or m.get("bytes") or "" for m in self.queue._queue)  # type: ignore[attr-defined]  # noqa: SLF001
        size = len(self.conn.reader.buffer) + more
        size += sum(map(len, self.frames)) + sum(map(len, waiting))
        if self.holding is None:
            return not self.handshake_initiated or size <= MAX_UNASKED_BYTES
        return self.holding.fits(size)

    async def send(self, message: Any) -> None:
        """Send; remember that a socket which was refused needs no handshake any more."""
        await super().send(message)
        self.handshake_complete |= self.close_sent
