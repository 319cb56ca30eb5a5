"""Messages between the supervisor and its helpers: one JSON object a packet, with descriptors."""

from __future__ import annotations

import array
import errno
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PACKET = 1 << 20
MAX_FDS = 32
BUFFER = 1 << 20
SHORTAGES = frozenset({errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS})
"""The kernel lacks memory for a packet, or room for descriptors under way: that passes."""
SEND_ATTEMPTS, PAUSE_SECONDS = 5, 0.01
_buffers: list[bytearray] = []
"""Buffers that no thread uses at the moment."""


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
    send_bytes(sock, json.dumps(message).encode(), fds)


def send_bytes(sock: socket.socket, data: bytes, fds: Sequence[int] | None = None) -> None:
    """Send a packet, again if the kernel is short of memory: a lost one would be waited for."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    for attempt in range(1, SEND_ATTEMPTS + 1):
        try:
            sock.sendmsg([data], rights)
        except OSError as exc:
            if exc.errno not in SHORTAGES or attempt == SEND_ATTEMPTS:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def receive(sock: socket.socket, size: int = MAX_PACKET) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors; no bytes at the end.

    Raise BlockingIOError if there is none yet, or the kernel has no memory for it: it stays there.
    """
    # One buffer is used again: allocating so much for each packet takes longer than to receive it.
    buffer = _buffers.pop() if _buffers else bytearray(MAX_PACKET)
    fds = array.array("i")
    room = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    try:
        whole = memoryview(buffer)[:size]
        length, ancillary, flags, _ = sock.recvmsg_into([whole], room, socket.MSG_CMSG_CLOEXEC)
        data = bytes(whole[:length])
    except OSError as exc:
        if exc.errno in SHORTAGES:
            raise BlockingIOError(exc.errno, os.strerror(exc.errno)) from exc
        raise
    finally:
        _buffers.append(buffer)
    for _, _, received in ancillary:
        fds.frombytes(received)
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise LostDescriptorsError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds)
