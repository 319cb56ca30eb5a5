"""Messages around the supervisor: one JSON object a packet, with descriptors.

Host, supervisor, zygote host, zygote and starting jails all speak this form. Only a live clone,
which runs hostile code, sends the supervisor fixed words instead: see atoll.jail.zygote.clone.
"""

from __future__ import annotations

import array
import errno
import json
import os
import select
import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_PACKET = 1 << 20
SMALL = 1 << 14
"""The most that a zygote receives: each fork would copy the entries of a larger buffer's pages."""
MAX_FDS = 32
BUFFER = 1 << 20
SHORTAGES = frozenset({errno.ENOMEM, errno.ENOBUFS, errno.ETOOMANYREFS})
"""The kernel lacks memory for a packet, or room for descriptors under way: that passes."""
SEND_ATTEMPTS, PATIENT_ATTEMPTS, PAUSE_SECONDS = 5, 300, 0.01
"""How often a packet is tried: by processes that serve others, and by one that has only itself."""
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_TRUNCATED = int(socket.MSG_CTRUNC)
"""What json.loads and `&` come down to. They run more Python code than all else here, and a zygote
copies the pages of all that it runs, for each guest."""
_buffers: list[bytearray] = []
"""Buffers that no thread uses at the moment."""


@dataclass(slots=True)
class Message:
    """What happened or is asked for, its fields, and the descriptors that came with it."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)
    fds: list[int] = field(default_factory=list)


class LostDescriptorsError(OSError):
    """Descriptors were sent that there was no room for; those that came have been closed."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, with room for many packets."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
    return ends


def end(fd: int) -> socket.socket:
    """Wrap `fd` as the end of a pair; naming its kind avoids three system calls."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def encode(kind: str, fields: dict[str, Any]) -> bytes:
    """Return the bytes of a message."""
    return json.dumps({"kind": kind, **fields}).encode()


def send(sock: socket.socket, kind: str, fds: Sequence[int] = (), **fields: Any) -> None:
    """Send a message, whole or not at all. The sender closes the descriptors."""
    send_bytes(sock, encode(kind, fields), fds)


def send_bytes(
    sock: socket.socket, data: bytes, fds: Sequence[int] = (), attempts: int = SEND_ATTEMPTS
) -> None:
    """Send a packet, again if the kernel is short of memory: a lost one would be waited for."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    for attempt in range(1, attempts + 1):
        try:
            sock.sendmsg([data], rights)
        except OSError as exc:
            if exc.errno not in SHORTAGES or attempt == attempts:
                raise
            time.sleep(PAUSE_SECONDS)
        else:
            return


def receive(sock: socket.socket, size: int = MAX_PACKET) -> Message | None:
    """Return the next message; None if the other end has gone.

    Raise BlockingIOError if there is none yet, or the kernel has no memory for it: it stays there.
    """
    data, fds = receive_bytes(sock, size)
    if not data:
        return None
    fields, _ = _scan(data.decode(), 0)
    return Message(fields.pop("kind"), fields, fds)


def receive_bytes(sock: socket.socket, size: int = MAX_PACKET) -> tuple[bytes, list[int]]:
    """Return the next packet and its descriptors; no bytes at the end."""
    # One buffer is used again: allocating so much for each packet takes longer than to receive it.
    buffer = _buffers.pop() if _buffers else bytearray(size)
    if len(buffer) < size:
        buffer = bytearray(size)
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
    if flags & _TRUNCATED:
        close_all(fds)
        raise LostDescriptorsError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds)


def is_readable(fd: int, seconds: float = 0) -> bool:
    """Return whether a descriptor can be read, within a time; False for one that is closed."""
    if fd < 0:
        return False
    poller = select.poll()  # select() takes no descriptor from 1024 on, as a busy supervisor has
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def close_all(fds: Iterable[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
