"""Counters in memory that host and worker share: fuel used, and how the worker ended.

The host reads them when a result arrives and after the worker died; the guest cannot reach them.
SECURITY: the memory file is sealed against truncation, since reading a truncated page would kill
the host with SIGBUS. A guest that broke out into the worker may write any value there.
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
    """Why the worker ended itself."""

    NONE = 0
    FUEL = 1
    TRAP = 2
    """A WebAssembly trap, or a stack overflow."""
    EXIT = 3
    """The guest called its exit."""


class Reading(NamedTuple):
    """The fuel of the last request, and why the worker ended."""

    fuel: int
    ending: Ending = Ending.NONE


class Counters:
    """The shared page, on either side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> Counters:
        """Create the shared page, on the host."""
        fd = os.memfd_create("atoll-counters", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, mmap.PAGESIZE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return cls(fd)

    def write(self, reading: Reading) -> None:
        """Record the fuel of the last request, and how the worker ended."""
        _LAYOUT.pack_into(self._page, 0, *reading)

    def read(self) -> Reading:
        """Return the fuel of the last request, and how the worker ended, if it did."""
        fuel, ending = _LAYOUT.unpack_from(self._page)
        known = ending in Ending._value2member_map_
        return Reading(fuel, Ending(ending) if known else Ending.NONE)

    def close(self) -> None:
        """Unmap the page and close its file descriptor."""
        self._page.close()
        os.close(self.fd)
