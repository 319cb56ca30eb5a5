"""Descriptors for a guest: a socket beside its channel that carries nothing else, and one way.

A descriptor is sent just before the request that mentions it, one a message, and the guest takes
them in that order (see guest/rights.py for its half).

SECURITY: the host never reads here, so no descriptor of a guest's ever comes in; its end is shut
for reading, and the guest's for writing with it.
"""

from __future__ import annotations

import array
import socket
from typing import TYPE_CHECKING, Self

from atoll.errors import SandboxError

if TYPE_CHECKING:
    from types import TracebackType


class RightsSocket:
    """The host's end. Sending never waits, whatever the guest does with its own.

    Start the guest in a `with` block: after it the guest's end is the guest's alone.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.shutdown(socket.SHUT_RD)

    @property
    def guest_fd(self) -> int:
        """The end that the guest is started with."""
        return self._theirs.fileno()

    def send(self, fd: int) -> None:
        """Put a descriptor on its way; it stays the caller's to close."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            self._ours.sendmsg([b"x"], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            raise SandboxError("the guest does not take the descriptors it is sent") from None
        except OSError as exc:
            reason = f"the guest cannot be given a descriptor: {exc.strerror}"
            raise SandboxError(reason) from None

    def close(self) -> None:
        """Let go of both ends."""
        self._ours.close()
        self._theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._theirs.close()
        if kind is not None:
            self._ours.close()
