"""Carries bytes between two connected sockets, both ways, with back-pressure."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK = 1 << 18
"""Bytes read at once; the next are read when these are sent."""


async def relay(
    client: socket.socket,
    server: socket.socket,
    count: Callable[[int], None] | None = None,
) -> None:
    """Carry bytes both ways until both sides have ended, then close both sockets.

    The end of one way is passed on, and the other goes on: a client may send all of a request,
    close its half, and read the answer. `count` is called with each number of bytes.
    """
    for end in (client, server):
        end.setblocking(False)
    ways = [
        asyncio.ensure_future(_carry(client, server, count)),
        asyncio.ensure_future(_carry(server, client, count)),
    ]
    try:
        await asyncio.gather(*ways)
    except OSError:
        pass  # one side has broken the connection off: so is the other's
    finally:
        for way in ways:
            way.cancel()
        try:  # the loop has to let go of the descriptors before they are closed, and used again
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            client.close()
            server.close()


async def _carry(
    source: socket.socket, target: socket.socket, count: Callable[[int], None] | None
) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, CHUNK):
        if count is not None:
            count(len(data))
        await loop.sock_sendall(target, data)
    with contextlib.suppress(OSError):  # it is closed already
        target.shutdown(socket.SHUT_WR)
