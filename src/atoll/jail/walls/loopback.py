"""The loopback device of a jail, and a TCP socket that listens there for the host: to its proxy.

    host: "network" ──▶ supervisor ──fork──▶ helper: enters the jail's network, listens on loopback
      ▲                                        │
      └────── the listening socket ────────────┘   the host accepts; the guest can only connect

SECURITY: no relay runs in the guest, and the jail's network stays empty. The helper enters the
network namespace alone: it sees no file and no process of the guest.
"""

from __future__ import annotations

import fcntl
import functools
import socket
import struct

from atoll.jail.walls import fetched_fd, syscalls, users

PROXY_ADDRESS = ("127.0.0.1", 3128)
BACKLOG = 64
TCP_BUFFER = b"4096 16384 131072"
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def bring_up(*, counted: bool) -> None:
    """Bring up the loopback device, with small buffers.

    It stays down if the buffers cannot be limited and no control group counts them.
    """
    try:
        for name in ("tcp_rmem", "tcp_wmem"):
            syscalls.write_file(f"/proc/sys/net/ipv4/{name}", TCP_BUFFER)
    except OSError:
        if not counted:
            return
    request = struct.pack("16sH14x", b"lo", _IFF_UP | _IFF_RUNNING)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def listen_in(network: int) -> int:
    """Return a socket that listens on the loopback of a network namespace; OSError if it cannot."""
    return fetched_fd.fetch(functools.partial(_listen, network))


def _listen(network: int) -> int:
    enter(network)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(PROXY_ADDRESS)
    listener.listen(BACKLOG)
    return listener.detach()


def enter(network: int) -> None:
    """Enter a network namespace, and first the user namespace that owns it: rights are there."""
    users.enter_owner(network)
    syscalls.join(network)
