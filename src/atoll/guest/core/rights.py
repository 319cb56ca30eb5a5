"""Descriptors from the host: the guest asks, and the host's side puts the next one into it.

The question is a system call that would enter a namespace and names none. The guest's filter
hands it to the host's side, so no socket has to stay open in here. A kernel of the guest's own
hands nothing on: there they come on a socket.
"""

from __future__ import annotations

import os

from . import context

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NO_NAMESPACE = -1
MAX_AT_ONCE = 8
_SOCKETS: list[int] = []
"""The socket on which descriptors come, if they come on one."""
_LIBRARIES: list[Any] = []
"""The C library, once it was needed: to open it takes as long as ten calls of it."""


class Descriptors:
    """Context and states, which the host passes as descriptors."""

    def text(self, width: int, length: int, ascii_only: bool) -> tuple[str, bool]:
        """Return the context's text, and whether it is shared instead of copied."""
        return context.load(receive(), width, length, ascii_only)

    def stream(self) -> DescriptorStream:
        """Return the stream of a saved state."""
        return DescriptorStream(receive())


class DescriptorStream:
    """Bytes through a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: memoryview) -> int:
        """Write some of the data; return how many bytes."""
        return os.write(self._fd, data)

    def readinto(self, room: memoryview) -> int:
        """Read into `room`; return how many bytes, 0 at the end."""
        return os.readv(self._fd, [room])

    def close(self) -> None:
        """Close the descriptor, unless guest code has."""
        try:
            os.close(self._fd)
        except OSError:
            pass


def receive_on(fd: int) -> None:
    """Receive descriptors on this socket from now on."""
    _SOCKETS[:] = [fd]


def receive() -> int:
    """Receive the next descriptor from the host; OSError if it has none ready."""
    if _SOCKETS:
        fds = receive_all(_SOCKETS[0])
        if not fds:
            raise OSError(0, "no descriptor from the host")
        return fds[0]
    import ctypes

    fd: int = c_library().setns(NO_NAMESPACE, 0)
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, "no descriptor from the host: {}".format(os.strerror(code)))
    return fd


def c_library() -> Any:
    """Return the C library; a clone inherits it from the guest, which has received its socket."""
    if not _LIBRARIES:
        import ctypes

        _LIBRARIES.append(ctypes.CDLL(None, use_errno=True))
    return _LIBRARIES[0]


def receive_all(fd: int) -> list[int]:
    """Return the descriptors that come with the next byte on a socket."""
    return receive_with(fd)[1]


def receive_with(fd: int) -> tuple[bytes, list[int]]:
    """Return the next byte on a socket, and the descriptors that come with it."""
    import array
    import socket

    fds = array.array("i")
    with socket.socket(fileno=os.dup(fd)) as end:
        byte, extra, _, _ = end.recvmsg(1, socket.CMSG_SPACE(MAX_AT_ONCE * fds.itemsize))
    for _, _, data in extra:
        fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return byte, fds.tolist()
