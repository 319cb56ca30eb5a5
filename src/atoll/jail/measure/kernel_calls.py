"""System calls that sandboxes need and that an old or filtered kernel may not have.

Each is called with arguments that a kernel which has it refuses as invalid, so nothing happens.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass

INVALID, NONE = -1, 0
_ABSENT = (errno.ENOSYS, errno.EPERM)
"""What an old kernel answers, and what some filters answer."""
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call, the first Linux that has it, and invalid arguments to probe it with."""

    name: str
    since: str
    numbers: tuple[int, int]
    """On x86_64 and on aarch64."""
    arguments: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} (Linux {self.since} has it)"


ALWAYS = (
    KernelCall("pidfd_open", "5.3", (434, 434), (INVALID, NONE)),
    KernelCall("pidfd_send_signal", "5.1", (424, 424), (INVALID, NONE, NONE, INVALID)),
    KernelCall("openat2", "5.6", (437, 437), (INVALID, NONE, NONE, NONE)),
    KernelCall("close_range", "5.9", (436, 436), (2, 1, NONE)),
    KernelCall("memfd_create", "3.17", (319, 279), (NONE, INVALID)),
)
"""What every sandbox on this machine needs: the supervisor, files, contexts."""
WALLS = (KernelCall("seccomp", "3.17", (317, 277), (INVALID, NONE, NONE)),)
"""What any wall of the kernel needs."""
JAIL = (
    KernelCall("open_tree", "5.2", (428, 428), (INVALID, NONE, INVALID)),
    KernelCall("mount_setattr", "5.12", (442, 442), (INVALID, NONE, INVALID, NONE, NONE)),
)
"""What a root of the guest's own needs besides."""


def missing(calls: tuple[KernelCall, ...]) -> tuple[KernelCall, ...]:
    """Return those of the calls that this kernel, or a filter around this process, lacks."""
    return tuple(call for call in calls if _is_missing(call))


def in_words(calls: tuple[KernelCall, ...]) -> str:
    """Return a reason that names missing calls; empty if none is missing."""
    return f"this kernel does not offer {', '.join(map(str, calls))}" if calls else ""


def newest(calls: tuple[KernelCall, ...]) -> str:
    """Return the first version of Linux that has all of the calls."""
    return max((call.since for call in calls), key=lambda text: tuple(map(int, text.split("."))))


def _is_missing(call: KernelCall) -> bool:
    number = call.numbers[os.uname().machine == "aarch64"]
    arguments = [ctypes.c_long(value) for value in (number, *call.arguments)]
    return _syscall(*arguments) < 0 and ctypes.get_errno() in _ABSENT


def is_gvisor() -> bool:
    """Return whether the kernel is gVisor's, which always names itself so."""
    return os.uname().version == "#1 SMP Sun Jan 10 15:06:54 PST 2016"
