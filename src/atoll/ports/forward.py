"""A listener on this machine's loopback whose connections end at a port of a guest.

client ──▶ 127.0.0.1, random port ──relay──▶ socket in the guest's network ──▶ server in the guest
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial
from typing import TYPE_CHECKING

from atoll.concurrency.background import Background, both_ways
from atoll.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[int], Awaitable[socket.socket]]


CHUNK = 1 << 18
"""Bytes read at once; the next are read when these are sent."""


async def relay(
    client: socket.socket, server: socket.socket, count: Callable[[int], None] | None = None
) -> None:
    """Carry bytes both ways until both sides have ended, then close both sockets.

    The end of one way is passed on, and the other goes on: a client may send all of a request,
    close its half, and read the answer. `count` is called with each number of bytes.
    """
    for end in (client, server):
        end.setblocking(False)
    # A side that breaks the connection off ends the other's.
    with client, server, contextlib.suppress(OSError):
        await both_ways(_carry(client, server, count), _carry(server, client, count))


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


BACKLOG = 512
MAX_CONNECTIONS = 1000
"""Connections of one listener at a time; further ones wait to be accepted."""
ACCEPT_PAUSE = 0.1


class Forwards:
    """The listeners of one sandbox, by port."""

    def __init__(self) -> None:
        self._open: dict[int, Forward] = {}

    def url(self, port: int, connect: Connect, local_port: int = 0) -> str:
        """Return the URL of the listener for a port; open it if there is none."""
        if port not in self._open:
            self._open[port] = Forward(port, connect, local_port)
        return self._open[port].url

    async def close(self) -> None:
        """Close every listener and its connections."""
        opened, self._open = list(self._open.values()), {}
        for forward in opened:
            await forward.close()


class Forward:
    """One listener; `connect` returns a connection with the port of the guest."""

    def __init__(self, port: int, connect: Connect, local_port: int = 0) -> None:
        self._port, self._connect = port, connect
        self._listener = socket.create_server(("127.0.0.1", local_port), backlog=BACKLOG)
        self._listener.setblocking(False)
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._connections = Background()
        self._accepting = asyncio.ensure_future(self._accept())

    @property
    def url(self) -> str:
        """Where it listens, as a server of HTTP; any protocol over TCP can be used."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    async def close(self) -> None:
        """Close the listener and all its connections."""
        self._accepting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._accepting
        self._listener.close()
        self._connections.cancel()
        await self._connections.wait()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._places.acquire()
            try:
                client, _ = await loop.sock_accept(self._listener)
            except OSError:  # no descriptor is free
                self._places.release()
                await asyncio.sleep(ACCEPT_PAUSE)
                continue
            serving = self._connections.spawn(self._serve(client))
            serving.add_done_callback(partial(self._over, client))

    def _over(self, client: socket.socket, _task: asyncio.Task[None]) -> None:
        client.close()  # a task that was cancelled before it ran did not
        self._places.release()

    async def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(SandboxError):  # the client finds its connection closed
            await relay(client, await self._connect(self._port))
