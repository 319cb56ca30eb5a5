"""Carries a guest's connections to the host's proxy, where the guest's kernel has no network.

    guest ──TCP, loopback──▶ relay: "c" ──socket──▶ host: one end of a socket pair for the proxy,
                               ◀──── the other ────┘

SECURITY: it runs beside the guest and with its rights, and decides nothing: the proxy does.
"""

from __future__ import annotations

import os
import select
import socket

from . import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

ADDRESS = ("127.0.0.1", 3128)
BACKLOG = 64
MOST_WAITING = 64
CHUNK = 1 << 16


class OneWay:
    """Bytes from one socket to another; a chunk is sent before the next is read."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.chunk = b""
        self.ended = False

    def step(self, readable: list[socket.socket], writable: list[socket.socket]) -> None:
        """Read or write what is possible without waiting."""
        try:
            if self.target in writable and self.chunk:
                self.chunk = self.chunk[self.target.send(self.chunk) :]
            elif self.source in readable and not self.chunk and not self.ended:
                self.chunk = self.source.recv(CHUNK)
                if not self.chunk:
                    self.ended = True
                    self.target.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            pass
        except OSError:
            self.ended, self.chunk = True, b""


def listen() -> socket.socket:
    """Return the socket that clients in the guest connect to."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(ADDRESS)
    listener.listen(BACKLOG)
    return listener


def serve(listener: socket.socket, host_fd: int) -> NoReturn:
    """Serve until the host has gone."""
    host = socket.socket(fileno=host_fd)
    waiting: list[socket.socket] = []
    ways: list[OneWay] = []
    while True:
        reads = [host] + ([listener] if len(waiting) < MOST_WAITING else [])
        reads += [way.source for way in ways if not way.chunk and not way.ended]
        readable, writable, _ = select.select(reads, [way.target for way in ways if way.chunk], [])
        for way in ways:
            way.step(readable, writable)
        ways = _without_ended(ways)
        if listener in readable:
            waiting.append(listener.accept()[0])
            host.send(b"c")
        if host in readable:
            ways += _connect(waiting.pop(0), host_fd)


def _connect(guest: socket.socket, host_fd: int) -> list[OneWay]:
    """Return both ways of a connection, whose other end the host has sent."""
    try:
        proxy = socket.socket(fileno=rights.receive_all(host_fd)[0])
    except (OSError, IndexError):
        os._exit(0)
    for end in (guest, proxy):
        end.setblocking(False)
    return [OneWay(guest, proxy), OneWay(proxy, guest)]


def _without_ended(ways: list[OneWay]) -> list[OneWay]:
    """Close connections that have ended both ways; return the ways of the others."""
    left = []
    for there, back in zip(ways[::2], ways[1::2]):
        if there.ended and back.ended and not there.chunk and not back.chunk:
            there.source.close()
            back.source.close()
        else:
            left += [there, back]
    return left
