"""What the worker counts, in memory that host and worker share: fuel, and how it ended.

The host reads it when a result comes, and when the worker is dead; the guest cannot reach it.
SECURITY: it is sealed, as a host that reads where a page was cut off is ended by the kernel; and
a worker that a guest has broken out into may write anything there.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from enum import IntEnum
from typing import NamedTuple

_LAYOUT = struct.Struct("<QQ")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Ending(IntEnum):
    """Why the worker has ended itself."""

    NONE = 0
    FUEL = 1
    TRAP = 2
    """Something that WebAssembly forbids, or the end of its stack."""
    EXIT = 3
    """The guest called its exit."""


class Reading(NamedTuple):
    """What the last request took."""

    fuel: int
    ending: Ending = Ending.NONE


class Gauge:
    """The shared page, on either side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> Gauge:
        """A new one, on the host."""
        fd = os.memfd_create("atoll-gauge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, mmap.PAGESIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd)

    def write(self, reading: Reading) -> None:
        """Note what the last request took, and how it ended."""
        _LAYOUT.pack_into(self._page, 0, *reading)

    def read(self) -> Reading:
        """What the last request took, and how the worker ended, if it did."""
        fuel, ending = _LAYOUT.unpack_from(self._page)
        known = ending in Ending._value2member_map_
        return Reading(fuel, Ending(ending) if known else Ending.NONE)

    def close(self) -> None:
        """Let go of it."""
        self._page.close()
        os.close(self.fd)
