"""Byte streams with back-pressure: of a socket, and TLS on top of another stream."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

CHUNK = 64 * 1024
HELLO_BYTES = 64 * 1024
"""Most bytes of a ClientHello; clients send less."""


class Stream(Protocol):
    """Bytes in both directions."""

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Send bytes; wait if the other side does not take them."""
        ...

    def close(self) -> None:
        """Close at once."""
        ...


class PlainStream:
    """A connected socket."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, acknowledge: bool
    ) -> None:
        """With `acknowledge`, the kernel acknowledges bytes at once, not after its timer of 40 ms.

        The library requests sends the body only after the head was acknowledged.
        """
        self._reader, self._writer = reader, writer
        self._socket = writer.get_extra_info("socket") if acknowledge else None

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        data = await self._reader.read(CHUNK)
        if self._socket is not None and data:
            with contextlib.suppress(OSError):  # the kernel resets TCP_QUICKACK
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes; wait if the other side does not take them."""
        self._writer.write(data)
        await self._writer.drain()

    async def end(self) -> None:
        """Send EOF, if the transport supports it."""
        with contextlib.suppress(OSError, NotImplementedError):
            if self._writer.can_write_eof():
                self._writer.write_eof()

    def close(self) -> None:
        """Close at once; bytes that were written are still sent."""
        self._writer.close()

    def abort(self) -> None:
        """Drop the connection and its unsent bytes."""
        self._writer.transport.abort()

    def has_unread(self) -> bool:
        """Return whether the other side has closed it, or sent bytes that were not read."""
        waiting: bytearray = self._reader._buffer  # type: ignore[attr-defined]  # noqa: SLF001
        return self._reader.at_eof() or bool(waiting)


class TlsStream:
    """The server's side of TLS over another stream."""

    def __init__(self, below: Stream, context: ssl.SSLContext) -> None:
        self._below = below
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Do the TLS handshake; ssl.SSLError if it fails, EOFError if the client has gone."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise EOFError from None
            except ssl.SSLError:
                await self._flush()  # the alert
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        """Return the next bytes; none at the end."""
        while True:
            try:
                return self._tls.read(CHUNK)
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    return b""
            except ssl.SSLError:
                return b""  # closed: HTTP itself marks the end of a message

    async def write(self, data: bytes) -> None:
        """Send bytes; wait if the other side does not take them."""
        self._tls.write(data)
        await self._flush()

    def close(self) -> None:
        """Close the stream below."""
        self._below.close()

    async def _fill(self) -> bool:
        data = await self._below.read()
        self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._below.write(data)


class ReplayedStream:
    """A stream whose first bytes were already read."""

    def __init__(self, below: Stream, first: bytes) -> None:
        self._below, self._first = below, first
        self.write, self.close = below.write, below.close

    async def read(self) -> bytes:
        """Return the first bytes, then what follows."""
        if self._first:
            first, self._first = self._first, b""
            return first
        return await self._below.read()


async def read_hello(stream: Stream) -> tuple[bytes, str | None]:
    """Return a client's first TLS message and the server name in it.

    OpenSSL parses it. ssl.SSLError if it is not TLS, EOFError if it never ends.
    """
    names: list[str | None] = []

    def note(_tls: object, name: str | None, _context: object) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_HANDSHAKE_FAILURE  # ends the handshake here

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note  # called with None as well
    incoming = ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    read = b""
    while not names:
        data = await stream.read()
        read += data
        if not data or len(read) > HELLO_BYTES:
            raise EOFError
        incoming.write(data)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLError:
            if not names:
                raise
    return read, names[0]


async def pump(source: Stream, target: Stream, count: Callable[[int], None]) -> None:
    """Carry bytes one way until the source ends; `count` is called with each number of bytes."""
    while data := await source.read():
        count(len(data))
        await target.write(data)
