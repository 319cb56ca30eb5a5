"""Answers seccomp notifications: requests for a passed descriptor, and the calls of a live clone.

A guest takes the next descriptor that the host passes to it by calling `setns` with fd -1; so no
socket has to stay open in the guest. SECURITY: only the calls of a clone that the host requested
are allowed. Other calls are refused; after MOST_REFUSALS the listener closes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.jail.walls import seccomp

if TYPE_CHECKING:
    import selectors
    from collections.abc import Callable

_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_CONTINUE = 1
_NOTICE, _REPLY, _ADDITION = "=QIIiIQ6Q", "=QqiI", "=QIIII"
_ANY = 0xFFFFFFFF
MOST_REFUSALS = 64


@dataclass(frozen=True, slots=True)
class Notification:
    """A system call that waits for the supervisor's reply."""

    ident: int
    pid: int
    call: int
    argument: int

    @property
    def wants_fd(self) -> bool:
        """Whether the guest asks for a passed descriptor: `setns` with fd -1."""
        return self.call == seccomp.asked_number("setns") and self.argument & _ANY == _ANY


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer: continue, add a copy of `passed_fd` to the process, or refuse."""

    allowed: bool = False
    passed_fd: int | None = None
    on_accepted: Callable[[], None] | None = None
    """Called when the process has the answer. A signal may take the question back before: the
    kernel then drops the answer, and the same call is asked about again."""


class Listener:
    """The notifications of one filter. `decide` says what becomes of each."""

    def __init__(
        self, fd: int, decide: Callable[[Notification], Reply], selector: selectors.BaseSelector
    ) -> None:
        self._fd, self._decide, self._selector = fd, decide, selector
        self._refusals = 0
        self._poll = select.poll()
        self._poll.register(fd, select.POLLIN)
        selector.register(fd, 1, self._on_event)

    def close(self) -> None:
        """Close the listener; the kernel then answers ENOSYS."""
        if self._fd >= 0:
            self._selector.unregister(self._fd)
            os.close(self._fd)
            self._fd = -1

    @property
    def open(self) -> bool:
        """Whether notifications are still answered."""
        return self._fd >= 0

    def _on_event(self) -> None:
        events = dict(self._poll.poll(0)).get(self._fd, 0)
        if events & select.POLLIN:
            notification = self._receive()
            if notification is not None:
                self._consider(notification)
        elif events:
            self.close()  # no process with this filter is left

    def _consider(self, notification: Notification) -> None:
        try:
            reply = self._decide(notification)
        except OSError:
            reply = Reply()  # the process ended while it was checked
        with contextlib.suppress(OSError):  # killed meanwhile, or the question was taken back
            self._answer(notification, reply)
            if reply.on_accepted is not None:
                reply.on_accepted()
        if self._refusals > MOST_REFUSALS:
            self.close()

    def _answer(self, notification: Notification, reply: Reply) -> None:
        if reply.passed_fd is not None:
            answer = self._add_fd(notification, reply.passed_fd), 0, 0
        elif reply.allowed:
            answer = 0, 0, _CONTINUE
        else:
            self._refusals += 1
            answer = 0, -errno.EPERM, 0
        fcntl.ioctl(self._fd, _SEND, struct.pack(_REPLY, notification.ident, *answer))

    def _add_fd(self, notification: Notification, fd: int) -> int:
        """Add a copy of a descriptor to the process; return its number there."""
        request = bytearray(struct.pack(_ADDITION, notification.ident, 0, fd, 0, os.O_CLOEXEC))
        return int(fcntl.ioctl(self._fd, _ADD, request))

    def _receive(self) -> Notification | None:
        """Return the next notification; None if the process was killed before it was read."""
        buffer = bytearray(struct.calcsize(_NOTICE))
        try:
            fcntl.ioctl(self._fd, _RECEIVE, buffer)
        except OSError:
            return None
        ident, pid, _, call, _, _, argument, *_ = struct.unpack(_NOTICE, buffer)
        return Notification(ident, pid, call, argument)
