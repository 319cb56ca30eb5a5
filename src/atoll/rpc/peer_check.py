"""Checks the process on the other end of the daemon's socket; client and daemon use this check.

A process is accepted if it has the same user id, user namespace and mount namespace.

SECURITY: a sandbox's working folder may contain the daemon's socket (it may be the whole home), and
a guest may have its user's own id. So a guest could connect to the daemon, or bind a socket there
and impersonate the daemon. Its namespaces distinguish it from its user's processes.
"""

from __future__ import annotations

import os
import select
import socket
import struct

_SOL_SOCKET = 1
_SO_PEERPIDFD = 77
_NAMESPACES = ("user", "mnt")
_CREDENTIALS = struct.Struct("3i")


class RefusedError(Exception):
    """The process on the other end is not accepted."""


def check(sock: socket.socket) -> int:
    """Return a pidfd of the process that connected, or that listens; RefusedError."""
    pid, uid = credentials(sock)
    if uid != os.geteuid():
        raise RefusedError(f"it belongs to user {uid}")
    try:
        pidfd = _pidfd(sock, pid)
    except OSError:
        raise RefusedError("it has gone") from None
    if why := _refusal_reason(pid, pidfd):
        os.close(pidfd)
        raise RefusedError(why)
    return pidfd


def credentials(sock: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other end, from the kernel (SO_PEERCRED)."""
    data = sock.getsockopt(_SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def _refusal_reason(pid: int, pidfd: int) -> str:
    try:
        alike = all(_namespace(pid, kind) == _namespace("self", kind) for kind in _NAMESPACES)
    except OSError:
        return "its namespaces cannot be read"
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    if poller.poll(0):
        return "it has gone"  # its pid may have been reused
    return "" if alike else "it lives in other namespaces"


def _pidfd(sock: socket.socket, pid: int) -> int:
    """Return a pidfd, by SO_PEERPIDFD or, on older kernels, by the pid."""
    try:
        data = sock.getsockopt(_SOL_SOCKET, _SO_PEERPIDFD, struct.calcsize("i"))
    except OSError:
        return os.pidfd_open(pid)
    fd: int = struct.unpack("i", data)[0]
    return fd


def _namespace(process: int | str, kind: str) -> tuple[int, int]:
    facts = os.stat(f"/proc/{process}/ns/{kind}")
    return facts.st_dev, facts.st_ino
