"""A soft memory limit, so that code meets a MemoryError before the kernel has to end it.

The kernel counts address space that may be written (RLIMIT_DATA), and libraries reserve a lot
that they never touch. So before each cell the soft limit is set to what is allowed on top of what
is only reserved now. The walls that hold against hostile code are outside: control group, meter.
"""

from __future__ import annotations

import os

MARGIN = 64 << 20
_RESIDENT, _SHARED, _DATA = 1, 2, 5


class MemoryFence:
    """Keeps the soft limit where it makes sense; does nothing where there is no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def renew(self) -> None:
        """Set the soft limit for the next cell."""
        if self._limit is None:
            return
        try:
            import resource

            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = self._limit + MARGIN + _only_reserved()
            if hard != resource.RLIM_INFINITY:
                soft = min(soft, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        except (ImportError, OSError, ValueError):
            return  # no such limits here: what is outside has to do


def _only_reserved() -> int:
    """Bytes that are mapped to be written and not in memory."""
    import resource

    fd = os.open("/proc/self/statm", os.O_RDONLY)
    try:
        pages = [int(field) for field in os.read(fd, 200).split()]
    finally:
        os.close(fd)
    held = pages[_RESIDENT] - pages[_SHARED]
    return max(0, pages[_DATA] - held) * resource.getpagesize()
