"""Accepts connections; those of this user's own processes become peers."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
from typing import TYPE_CHECKING, Any

from atoll.rpc import peer_check
from atoll.rpc.connection import Peer

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from atoll.rpc.passed_fds import PassedFds, Reply

    Serve = Callable[[str, dict[str, Any], PassedFds], Awaitable[Reply]]
    OnNotification = Callable[[str, dict[str, Any]], None]

ACCEPT_AT_ONCE = 32
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LOG = logging.getLogger("atoll.daemon")


class SocketListener:
    """Calls `on_connect` with the socket of each process that connects."""

    def __init__(self, on_connect: Callable[[socket.socket], None]) -> None:
        self._on_connect = on_connect
        self._listener: socket.socket | None = None

    def start(self, listener: socket.socket) -> None:
        """Take connections from now on."""
        listener.setblocking(False)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def close(self) -> None:
        """Take no more of them."""
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()

    def _accept(self) -> None:
        """Accept waiting connections, at most ACCEPT_AT_ONCE of them."""
        assert self._listener is not None
        for _ in range(ACCEPT_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    self._pause()
                    return
                raise
            self._on_connect(sock)

    def _pause(self) -> None:
        """No descriptor is left: leave newcomers waiting for a while instead of spinning."""
        assert self._listener is not None
        loop, listener = asyncio.get_running_loop(), self._listener
        loop.remove_reader(listener.fileno())

        def listen_again() -> None:
            if listener.fileno() >= 0:
                loop.add_reader(listener.fileno(), self._accept)

        loop.call_later(0.1, listen_again)


class ClientListener(SocketListener):
    """Calls `welcome` with the socket and a pidfd of each process that may connect."""

    def __init__(
        self, may_connect: Callable[[], bool], welcome: Callable[[socket.socket, int], None]
    ) -> None:
        super().__init__(self._examine)
        self._may_connect, self._welcome = may_connect, welcome

    def _examine(self, sock: socket.socket) -> None:
        try:
            if not self._may_connect():
                raise peer_check.RefusedError("there are too many")  # noqa: TRY301
            process = peer_check.check(sock)
        except peer_check.RefusedError as exc:
            _LOG.warning("refused a connection: %s", exc)
            sock.close()
        else:
            self._welcome(sock, process)


def watched_peer(
    sock: socket.socket,
    process: int,
    serve: Serve,
    on_notification: OnNotification,
    farewell: Callable[[str], None],
) -> Peer:
    """Return a peer that ends with its process, whose pidfd it closes.

    A fork of the client holds a copy of its socket, so its end is not the client's end.
    """
    loop = asyncio.get_running_loop()

    def end(why: str) -> None:
        loop.remove_reader(process)
        os.close(process)
        farewell(why)

    peer = Peer(sock, serve, on_notification, end)
    loop.add_reader(process, functools.partial(peer.end, "it has gone", gone=True))
    return peer
