"""Descriptors from the host: they come over a socket of their own, in the order of its requests."""

from __future__ import annotations

import os
import sys

FD_BYTES = 4


class Rights:
    """The guest's end. A forked child has none."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def receive(self) -> int:
        """The next descriptor, which the host has sent already; OSError if there is none."""
        import _socket

        room = _socket.CMSG_SPACE(FD_BYTES)
        flags = _socket.MSG_CMSG_CLOEXEC | _socket.MSG_DONTWAIT
        end = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, self._fd)
        try:
            _, ancillary, _, _ = end.recvmsg(1, room, flags)
        finally:
            end.detach()
        if not ancillary:
            raise OSError("the host sent no descriptor")
        return int.from_bytes(ancillary[0][2][:FD_BYTES], sys.byteorder)

    def reopen(self, fd: int) -> None:
        """A clone is sent descriptors by a socket of its own."""
        self._fd = fd

    def close_in_child(self) -> None:
        """What the host sends is not for a forked child."""
        try:
            os.close(self._fd)
        except OSError:
            pass
        self._fd = -1
