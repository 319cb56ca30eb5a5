"""What the worker counts, in memory that host and worker share: fuel, memory, how it ended.

The host reads it when a result comes, and when the worker is dead; the guest cannot reach it.
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum

_LAYOUT = struct.Struct("<QQQ")


class Ending(IntEnum):
    """Why the worker has ended itself."""

    NONE = 0
    FUEL = 1
    TRAP = 2
    """Something that WebAssembly forbids, or the end of its stack."""
    EXIT = 3
    """The guest called its exit."""


class Gauge:
    """The shared page, on either side."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def create(cls) -> Gauge:
        """A new one, on the host."""
        fd = os.memfd_create("atoll-gauge", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def write(self, fuel: int, memory: int, ending: Ending = Ending.NONE) -> None:
        """Note what the last request took, and how it ended."""
        _LAYOUT.pack_into(self._page, 0, fuel, memory, ending)

    def read(self) -> tuple[int, int, Ending]:
        """Fuel and memory of the last request, and how the worker ended, if it did."""
        fuel, memory, ending = _LAYOUT.unpack_from(self._page)
        return fuel, memory, Ending(ending)

    def close(self) -> None:
        """Let go of it."""
        self._page.close()
        os.close(self.fd)
