"""A helper in a jail's own network, which makes TCP sockets there for the host to connect.

    host: "enter" ──▶ supervisor ──fork──▶ helper: enters the jail's network
      │                                      │
      └── "socket", "ports" ────────────────▶│   answers with a socket, or the ports in use

SECURITY: the helper enters the network namespace alone: it sees no file and no process of the
guest, and the guest does not see it. What listens is read from the kernel, not asked of the guest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from typing import TYPE_CHECKING, NoReturn

from atoll.jail.measure import socket_table
from atoll.jail.supervisor import packets
from atoll.jail.walls import loopback, syscalls

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_PORTS = 1000
"""Ports in one answer: the lowest."""
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


def start(network: int, host: socket.socket) -> int:
    """Fork a helper that serves the host on this socket in a network; return its pid."""
    helper = os.fork()
    if helper:
        return helper
    try:
        syscalls.close_all_but({0, 1, 2, network, host.fileno()})
        loopback.enter(network)
        syscalls.drop_capabilities()
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel forgets it above
        _serve(host)
    except Exception as exc:  # noqa: BLE001 - nothing may unwind into the supervisor's loop
        packets.send(host, "failed", reason=f"{type(exc).__name__}: {exc}"[:1000])
    finally:
        os._exit(0)


def _serve(host: socket.socket) -> NoReturn:
    """Answer the host until it is gone."""
    while True:
        asked = packets.receive(host, packets.SMALL)
        if asked is None:
            os._exit(0)
        try:
            _answer(host, asked)
        except OSError as exc:
            packets.send(host, "failed", reason=str(exc)[:1000])


def _answer(host: socket.socket, asked: packets.Message) -> None:
    if asked.kind == "socket":
        family = socket.AF_INET6 if asked.fields["ipv6"] else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as made:
            packets.send(host, "socket", [made.fileno()])
    else:
        listening = sorted(set(_listening()))[:MAX_PORTS]
        packets.send(host, "ports", ports=listening)


def _listening() -> Iterator[tuple[int, str]]:
    """Yield port and address of each socket that listens in this process's network."""
    for path in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as table:  # without IPv6
            table.readline()
            yield from socket_table.listening(table)
