"""Carries connections between the host and a guest whose kernel has a network of its own.

    guest ──TCP, loopback──▶ relay: "c" ──socket──▶ host: one end of a socket pair for the proxy,
                               ◀──── the other ────┘

    host: one end of a socket pair, and a port ──▶ relay ──TCP, loopback──▶ server in the guest

SECURITY: it runs beside the guest and with its rights, and decides nothing: the host does. What it
says of the guest's ports is the guest's word.
"""

from __future__ import annotations

import array
import os
import select
import socket

from . import rights

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

ADDRESS = ("127.0.0.1", 3128)
BACKLOG = 64
MAX_WAITING = 64
CHUNK = 1 << 16
PORT_BYTES = 2
CONNECTED, REFUSED = b"+", b"-"
CONNECT_SECONDS = 5.0
MAX_LISTED = 1 << 18


class OneWay:
    """Bytes from one socket to another; a chunk is sent before the next is read."""

    def __init__(self, source: socket.socket, target: socket.socket) -> None:
        self.source, self.target = source, target
        self.chunk = b""
        self.ended = False

    def step(self, readable: set[int], writable: set[int]) -> None:
        """Read and write without blocking."""
        try:
            if self.target.fileno() in writable and self.chunk:
                self.chunk = self.chunk[self.target.send(self.chunk) :]
            elif self.source.fileno() in readable and not self.chunk and not self.ended:
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
        others = [host] + ([listener] if len(waiting) < MAX_WAITING else [])
        ways, readable = _carry(ways, others)
        if listener.fileno() in readable:
            waiting.append(listener.accept()[0])
            host.send(b"c")
        if host_fd in readable:
            ways += _take(waiting.pop(0), host_fd)


def serve_ports(host_fd: int) -> NoReturn:
    """Connect what the host sends with servers of the guest, until the host has gone."""
    host = socket.socket(fileno=host_fd)
    ways: list[OneWay] = []
    while True:
        ways, readable = _carry(ways, [host])
        if host_fd in readable:
            ways += _answer(host)


def _answer(host: socket.socket) -> list[OneWay]:
    """Return both ways of a connection that the host asks for; none if it asks for the ports."""
    fds = array.array("i")
    asked, extra, _, _ = host.recvmsg(PORT_BYTES, socket.CMSG_SPACE(fds.itemsize))
    for _, _, data in extra:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    if len(asked) < PORT_BYTES or not fds:
        os._exit(0)
    end, port = socket.socket(fileno=fds[0]), int.from_bytes(asked, "big")
    try:
        if not port:
            with end:
                end.sendall(_listening())
            return []
        server = _connected(port)
        end.sendall(CONNECTED if server else REFUSED)
        if server:
            return _both_ways(end, server)
    except OSError:
        pass
    end.close()
    return []


def _connected(port: int) -> socket.socket | None:
    """Return a connection with a server on the loopback; None if nothing listens there."""
    for host in ("127.0.0.1", "::1"):
        try:
            return socket.create_connection((host, port), CONNECT_SECONDS)
        except OSError:
            pass
    return None


def _listening() -> bytes:
    """Return the kernel's tables of sockets, as far as they list those that listen."""
    result = b""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, "rb") as table:
                result += b"".join(row for row in table if row.split()[3:4] == [b"0A"])
        except OSError:
            pass
    return result[:MAX_LISTED]


def _carry(ways: list[OneWay], others: list[socket.socket]) -> tuple[list[OneWay], set[int]]:
    """Wait for sockets and serve them; return the ways left, and the readable descriptors."""
    poll, events = select.poll(), {}
    for end in [*others, *(way.source for way in ways if not way.chunk and not way.ended)]:
        events[end.fileno()] = select.POLLIN
    for way in ways:
        if way.chunk:
            events[way.target.fileno()] = events.get(way.target.fileno(), 0) | select.POLLOUT
    for fd, wanted in events.items():
        poll.register(fd, wanted)
    ready = poll.poll()
    readable = {fd for fd, event in ready if event & ~select.POLLOUT}
    writable = {fd for fd, event in ready if event & ~select.POLLIN}
    for way in ways:
        way.step(readable, writable)
    return _without_ended(ways), readable


def _take(guest: socket.socket, host_fd: int) -> list[OneWay]:
    """Return both ways of a connection, whose other end the host has sent."""
    try:
        proxy = socket.socket(fileno=rights.receive_all(host_fd)[0])
    except (OSError, IndexError):
        os._exit(0)
    return _both_ways(guest, proxy)


def _both_ways(first: socket.socket, other: socket.socket) -> list[OneWay]:
    for end in (first, other):
        end.setblocking(False)
    return [OneWay(first, other), OneWay(other, first)]


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
