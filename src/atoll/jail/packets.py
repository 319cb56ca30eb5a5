"""Messages among the warden and its helpers: one JSON object a packet, descriptors beside it."""

from __future__ import annotations

import array
import errno
import json
import os
import socket
from typing import Any

MAX_PACKET = 1 << 20
MAX_FDS = 32
BUFFER = 1 << 20


class LostDescriptorsError(OSError):
    """Descriptors were sent that there was no room for; those that came have been closed."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, with room for many packets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return ends


def send(sock: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    """One message, whole or not at all. The descriptors stay the sender's to close."""
    send_encoded(sock, json.dumps(message).encode(), fds)


def send_encoded(sock: socket.socket, data: bytes, fds: list[int] | None = None) -> None:
    """The same, for who has the JSON text already."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([data], rights)


def receive(sock: socket.socket, size: int = MAX_PACKET) -> tuple[bytes, list[int]]:
    """The next packet and its descriptors; no bytes at the end."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    data, ancillary, flags, _ = sock.recvmsg(size, room, socket.MSG_CMSG_CLOEXEC)
    for _, _, received in ancillary:
        fds.frombytes(received)
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise LostDescriptorsError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds)
