"""Notifications of seccomp: calls that wait until the listener of a filter has answered them."""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass

_RECEIVE, _SEND, _ADD = 0xC0502100, 0xC0182101, 0x40182103
_CONTINUE = 1
_NOTICE, _REPLY, _ADDITION = "=QIIiIQ6Q", "=QqiI", "=QIIII"
_SIZE = struct.calcsize(_NOTICE)


@dataclass(frozen=True, slots=True)
class Notice:
    """A system call that waits for an answer."""

    ident: int
    pid: int
    """The thread that made it."""
    call: int
    arguments: tuple[int, ...]


def receive(listener: int) -> Notice | None:
    """Return the next notification; None if the process was killed before it was read."""
    buffer = bytearray(_SIZE)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer)
    except OSError:
        return None
    ident, pid, _, call, _, _, *arguments = struct.unpack(_NOTICE, buffer)
    return Notice(ident, pid, call, tuple(arguments))


def proceed(listener: int, notice: Notice) -> None:
    """Let the kernel make the call; OSError if the process was killed, or took it back."""
    fcntl.ioctl(listener, _SEND, struct.pack(_REPLY, notice.ident, 0, 0, _CONTINUE))


def answer(listener: int, notice: Notice, value: int, error: int = 0) -> None:
    """Answer in place of the kernel; OSError if the process was killed, or took it back."""
    fcntl.ioctl(listener, _SEND, struct.pack(_REPLY, notice.ident, value, -error, 0))


def add_descriptor(listener: int, notice: Notice, fd: int) -> int:
    """Add a copy of a descriptor to the process; return its number there."""
    request = bytearray(struct.pack(_ADDITION, notice.ident, 0, fd, 0, os.O_CLOEXEC))
    return int(fcntl.ioctl(listener, _ADD, request))
