"""A connection with a port of a remote session, as a socket of this process.

    caller ── socket pair ── relay ══ websocket ══ service ──▶ server in the guest

Each message has bytes as they came; an empty one says that no more follow in its direction.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import socket
import struct
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from atoll.concurrency.background import both_ways
from atoll.errors import BackendUnavailableError, SandboxError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine

    from atoll.errors import AtollError

    Failure = Callable[[int, bytes], AtollError]

CHUNK = 1 << 17
MAX_FRAME = 1 << 24
CONNECT_SECONDS = 30.0
_BINARY, _CLOSE, _PING, _PONG = 2, 8, 9, 10


async def connect(
    url: str, key: str, tls: ssl.SSLContext | None, failure: Failure
) -> tuple[socket.socket, Coroutine[None, None, None]]:
    """Return a connected socket, and the relay to run while it is used.

    `failure` makes the error of an answer that refuses the connection.
    """
    stream = Stream(*await _open(url, tls))
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await stream.shake_hands(url, key, failure)
        ours, theirs = socket.socketpair()
    except TimeoutError:
        stream.close()
        raise BackendUnavailableError("remote", f"nothing answers at {url}") from None
    except BaseException:
        stream.close()
        raise
    return ours, stream.relay(theirs)


async def _open(
    url: str, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        return await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=4 * CHUNK)
    except OSError as exc:
        raise BackendUnavailableError("remote", f"nothing answers at {url}: {exc}") from None


class Stream:
    """The client's side of a websocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def shake_hands(self, url: str, key: str, failure: Failure) -> None:
        """Ask for a websocket; raise what the service answers instead."""
        parts, nonce = urlsplit(url), base64.b64encode(secrets.token_bytes(16)).decode()
        lines = [
            f"GET {parts.path} HTTP/1.1",
            f"Host: {parts.netloc}",
            f"Authorization: Bearer {key}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            f"Sec-WebSocket-Key: {nonce}",
            "Sec-WebSocket-Version: 13",
        ]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head.split(None, 2)[1])
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError):
            raise SandboxError(f"{url} does not speak HTTP") from None
        if status != 101:
            raise failure(status, await self._body(head))

    async def _body(self, head: bytes) -> bytes:
        """Return the body of a refusal, as far as it says its length."""
        for line in head.lower().split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name == b"content-length" and value.strip().isdigit():
                with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                    return await self._reader.readexactly(min(int(value), MAX_FRAME))
        return b""

    async def relay(self, local: socket.socket) -> None:
        """Carry bytes both ways until both have ended, or one side is gone."""
        local.setblocking(False)
        try:
            await both_ways(self._up(local), self._down(local))
            await self._send(_CLOSE, struct.pack(">H", 1000))
        except (OSError, EOFError):
            pass  # the service, the server or the caller has gone
        finally:
            local.close()
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _up(self, local: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await loop.sock_recv(local, CHUNK):
            await self._send(_BINARY, data)
        await self._send(_BINARY, b"")

    async def _down(self, local: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while data := await self._receive():
            await loop.sock_sendall(local, data)
        with contextlib.suppress(OSError):
            local.shutdown(socket.SHUT_WR)

    async def _send(self, kind: int, data: bytes) -> None:
        """Send a message, masked as clients have to."""
        size = len(data)
        if size < 126:
            head = bytes([0x80 | kind, 0x80 | size])
        elif size < 1 << 16:
            head = struct.pack(">BBH", 0x80 | kind, 0xFE, size)
        else:
            head = struct.pack(">BBQ", 0x80 | kind, 0xFF, size)
        mask = secrets.token_bytes(4)
        whole = int.from_bytes((mask * (size // 4 + 1))[:size], "little")
        masked = (int.from_bytes(data, "little") ^ whole).to_bytes(size, "little")
        self._writer.write(head + mask + masked)
        await self._writer.drain()

    async def _receive(self) -> bytes:
        """Return the next message; none at the end. Pings are answered."""
        message = b""
        while True:
            kind, last, data = await self._frame()
            if kind == _CLOSE:
                raise EOFError
            if kind == _PING:
                await self._send(_PONG, data)
            elif kind != _PONG:
                message += data
                if last:
                    return message

    async def _frame(self) -> tuple[int, bool, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if size == 126:
            size = int.from_bytes(await self._reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await self._reader.readexactly(8), "big")
        if size > MAX_FRAME:
            raise EOFError
        return first & 0x0F, bool(first & 0x80), await self._reader.readexactly(size)
