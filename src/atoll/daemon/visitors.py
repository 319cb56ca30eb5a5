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


def refusal(sock: socket.socket) -> str:
    """Why whoever connected is not let in; nothing if all is well."""
    pid, uid = credentials(sock)
    if uid != os.geteuid():
        return f"it is of user {uid}"
    try:
        pidfd = _pidfd(sock, pid)
    except OSError:
        return "it has gone"
    try:
        alike = all(_namespace(pid, kind) == _namespace("self", kind) for kind in _NAMESPACES)
        poller = select.poll()  # select() ends at descriptor 1024
        poller.register(pidfd, select.POLLIN)
        gone = bool(poller.poll(0))  # and its number may be another's by now
    except OSError:
        return "nothing can be told of it"
    finally:
        os.close(pidfd)
    return "it has gone" if gone else "" if alike else "it lives in other namespaces"


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
