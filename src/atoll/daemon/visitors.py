"""Who may speak to the daemon: processes of its own user that see the same world as it does.

SECURITY: a sandbox's working folder may hold the daemon's socket (it may be the whole home), and
a guest may run under its user's own id. It lives in namespaces of its own, and that gives it away.
"""

from __future__ import annotations

import os
import select
import struct
from typing import TYPE_CHECKING

from atoll.wire.peer import credentials

if TYPE_CHECKING:
    import socket

_SOL_SOCKET = 1
_SO_PEERPIDFD = 77
_NAMESPACES = ("user", "mnt")


class RefusedError(Exception):
    """Whoever connected is not let in: why."""


def examine(sock: socket.socket) -> int:
    """A hold on the process that connected, which ends when it does; RefusedError."""
    pid, uid = credentials(sock)
    if uid != os.geteuid():
        raise RefusedError(f"it belongs to user {uid}")
    try:
        pidfd = _pidfd(sock, pid)
    except OSError:
        raise RefusedError("it has gone") from None
    if why := _strangeness(pid, pidfd):
        os.close(pidfd)
        raise RefusedError(why)
    return pidfd


def _strangeness(pid: int, pidfd: int) -> str:
    try:
        alike = all(_namespace(pid, kind) == _namespace("self", kind) for kind in _NAMESPACES)
    except OSError:
        return "nothing can be told of it"
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if poller.poll(0):
        return "it has gone"  # and its number may be another's by now
    return "" if alike else "it lives in other namespaces"


def _pidfd(sock: socket.socket, pid: int) -> int:
    """A hold on the process that connected; by its number where the kernel has no better way."""
    try:
        data = sock.getsockopt(_SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except OSError:
        return os.pidfd_open(pid)
    fd: int = struct.unpack("i", data)[0]
    return fd


def _namespace(process: int | str, kind: str) -> tuple[int, int]:
    facts = os.stat(f"/proc/{process}/ns/{kind}")
    return facts.st_dev, facts.st_ino
