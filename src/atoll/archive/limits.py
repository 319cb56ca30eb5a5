"""What an archive may cost: every number that is held to while one is read."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from atoll.errors import ArchiveLimitError
from atoll.policy import MIB, check_positive

FREE_BYTES = MIB
"""So much may come out of however little: a ratio says nothing about a small file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """The limits of one archive; the error that one is hit with has its name."""

    max_archive_bytes: int = 256 * MIB
    """The file itself."""
    max_member_bytes: int = 64 * MIB
    """One member, unpacked."""
    max_total_bytes: int = 512 * MIB
    """All members, unpacked."""
    max_ratio: float = 200
    """Bytes unpacked for each byte packed, of a member and of the whole, from 1 MiB on."""
    max_members: int = 10_000
    """Entries of any kind, or pages."""
    max_name_bytes: int = 1024
    max_header_bytes: int = 4 * MIB
    """A zip's directory; one header of a tar."""
    max_depth: int = 3
    """Archives within each other, the outermost counted."""
    max_seconds: float = 30
    """One operation."""
    max_memory_bytes: int = 1024 * MIB
    """The address space of the process that reads."""

    def __post_init__(self) -> None:
        for one in fields(self):
            check_positive(one.name, getattr(self, one.name))

    def check(self, limit: str, value: float, what: str) -> None:
        """ArchiveLimitError if there is more of it than the limit of this name."""
        most = getattr(self, limit)
        if value > most:
            raise ArchiveLimitError(limit, value=value, most=most, what=what)

    def check_ratio(self, unpacked: int, packed: int, what: str) -> None:
        """ArchiveLimitError if far more comes out than went in."""
        if unpacked > FREE_BYTES:
            self.check("max_ratio", round(unpacked / max(packed, 1), 1), f"the ratio of {what}")


class Clock:
    """The time of one operation, asked after every piece of work."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self.start()

    def start(self) -> None:
        """An operation begins."""
        self._start = time.monotonic()

    @property
    def late(self) -> bool:
        """Whether it has taken too long."""
        return time.monotonic() - self._start > self._limits.max_seconds

    def check(self) -> None:
        """ArchiveLimitError if so."""
        if self.late:
            most = self._limits.max_seconds
            raise ArchiveLimitError("max_seconds", most=most, what="the time in seconds")
